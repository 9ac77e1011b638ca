"""What users have (arrays, tensors, lists, data frames, PyTorch datasets), as checked tensors.

What is no real number raises a TypeError, what is missing, infinite, empty or of another shape a
ValueError: one sentence that says what was required of what, and what arrived.
"""

import textwrap
from collections.abc import Sequence, Sized
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.utils import check_array
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

__all__ = ["encode", "inputs", "numbers", "pair", "targets"]

WHOLE = 2**53  # floats beyond it are whole numbers whatever was meant
# Everything else is made into float64: few operations know unsigned or very short numbers.
KNOWN = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)

# Only what an array is made of: shapes and values are checked here, against what NC needs.
UNCHECKED: dict[str, Any] = {
    **{"dtype": None, "ensure_2d": False, "allow_nd": True, "ensure_all_finite": False},
    **{"ensure_min_samples": 0, "ensure_min_features": 0},
}


def inputs(
    name: str,
    X: object,
    *,
    shape: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Returns input points as a tensor, (points, D) or (points, channels, height, width).

    Args:
        name: What errors call them.
        X: Numbers of any type: an array, a tensor, nested lists or a data frame.
        shape: What a point must be: `(D,)` or `(channels, height, width)`; any of the two if
            `None`. Where there is one feature, a list of points will do; where there is one
            channel, images may come without it, or as rows of pixels.
        dtype: PyTorch's default if `None`.
        device: Where X is if `None`.

    Example:
        >>> inputs("X_tr", [[1, 2], [3, 4]], shape=(2,), dtype=torch.float32)
        tensor([[1., 2.],
                [3., 4.]])
    """
    values = _not_empty(name, X)
    got = tuple(values.shape)
    wanted = tuple(shape or ())
    if got and got[1:] in _short_forms(wanted):
        values = values.reshape(len(values), *wanted)
    fits = values.shape[1:] == wanted and values.ndim if wanted else values.ndim in (2, 4)
    if not fits:
        sizes = ", ".join(map(str, wanted)) or "features) or (points, channels, height, width"
        raise ValueError(f"{name} must be (points, {sizes}), got shape {got}")
    return _finite(name, values, dtype, device)


def targets(
    name: str,
    y: object,
    *,
    labels: bool,
    outputs: int | None = None,
    points: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Returns targets as a tensor: labels, int64 (points,), or real targets, (points, C).

    Args:
        name: What errors call them.
        y: Numbers of any type, as for `inputs`; real targets of one output may come as a list.
            Labels that are names go through `encode` first.
        labels: Whether they are labels, 0 ... outputs - 1, rather than real numbers.
        outputs: Classes, or outputs of a real target; any number if `None`.
        points: How many there must be; any number if `None`.
        dtype: Of real targets; PyTorch's default if `None`.
        device: Where y is if `None`.
    """
    values = _not_empty(name, y)
    got = tuple(values.shape)
    if labels and got[1:] == (1,):
        values = values.squeeze(1)
    elif not labels and values.ndim == 1:
        values = values.unsqueeze(1)
    columns = values.shape[1:]
    if len(columns) != (0 if labels else 1) or (outputs and not labels and columns[0] != outputs):
        wanted = "(points,), one label each" if labels else f"(points, {outputs or 'outputs'})"
        raise ValueError(f"{name} must be {wanted}, got shape {got}")
    if points is not None and len(values) != points:
        raise ValueError(
            f"{name} must be one for each of the {points} points, got {len(values)} of them"
        )
    if not labels:
        return _finite(name, values, dtype, device)
    return _labels(name, values, outputs).to(device)


def encode(y: object, classes: Sequence[object], *, name: str = "y") -> Tensor:
    """Returns the place of each label among the classes, int64 (points,).

    Labels may be of any kind: an array, a tensor, a list or a column of a data frame.

    Example:
        >>> encode(["dog", "cat", "dog"], ["cat", "dog"])
        tensor([1, 0, 1])
    """
    if isinstance(y, Tensor) or _holds_tensors(y):
        y = numbers(name, y).tolist()
    labels = np.asarray(y, dtype=object)  # of text and numbers NumPy would make text
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or not len(labels):
        raise ValueError(f"{name} must be (points,), one label each, got shape {labels.shape}")
    places = {label: i for i, label in enumerate(classes)}
    found = []
    for label in labels.tolist():
        try:
            found.append(places[label])
        except (KeyError, TypeError):  # a list, say, is no label
            known = ", ".join(map(str, classes[:10])) + (", ..." if len(classes) > 10 else "")
            raise ValueError(
                f"{name} must hold labels of the classes {known}, got {_short(label)}"
            ) from None
    return torch.tensor(found, dtype=torch.int64)


def pair(name: str, data: object, y: object = None) -> tuple[Any, Any]:
    """Returns inputs and targets of a PyTorch dataset, in order; anything else stays as it is.

    PyTorch's own random numbers, which a `DataLoader` draws from, stay as they are.

    Args:
        name: What errors call it.
        data: A `Dataset` or a `DataLoader` of inputs or of pairs (x, y), gone through once; or
            inputs.
        y: Targets of inputs that come alone.
    """
    if not isinstance(data, Dataset | DataLoader):
        return data, y
    with torch.random.fork_rng(devices=[]):
        items = [_item(name, item) for item in _items(name, data)]
    if not items:
        raise ValueError(f"{name} must not be empty, got {type(data).__name__} of no points")
    if len({len(item) for item in items}) > 1:
        raise TypeError(f"{name} must give pairs (x, y) or inputs alone, got both")
    batched = isinstance(data, DataLoader) and data.batch_sampler is not None
    X, *rest = zip(*items, strict=True)
    points = _joined(name, X, batched)
    if not rest:
        return points, y
    if y is not None:
        raise TypeError(f"{name} must give inputs alone where targets are given, got pairs (x, y)")
    if any(isinstance(part, list | tuple if batched else str) for part in rest[0]):  # text
        return points, [label for part in rest[0] for label in part] if batched else list(rest[0])
    return points, _joined(f"targets of {name}", rest[0], batched)


def numbers(name: str, values: object) -> Tensor:
    """Returns an array, a tensor, a number, nested lists or a data frame as a tensor.

    It has the type and the shape of what was given.
    """
    if _holds_tensors(values):
        return _joined(name, values, batched=False)
    if not isinstance(values, Tensor):
        array = _array(name, values)
        shared = array.flags.writeable and min(array.strides, default=0) >= 0
        values = torch.from_numpy(array if shared else array.copy())
    if values.is_nested or values.layout != torch.strided or values.is_quantized or values.is_meta:
        raise TypeError(f"{name} must be a dense tensor that holds values, got another kind")
    if values.is_complex():
        raise TypeError(f"{name} must hold real numbers, got {values.dtype}")
    values = values.detach()
    return values if values.dtype in KNOWN else values.to(torch.float64)


def _array(name: str, values: Any) -> NDArray[Any]:
    """Returns an array of a type that PyTorch can share."""
    if isinstance(values, pd.DataFrame) and values.shape[1]:
        columns = [_array(f"column {c} of {name}", column) for c, column in values.items()]
        return np.column_stack(columns)
    array: NDArray[Any]
    if values is None or isinstance(values, Dataset | DataLoader):
        raise TypeError(f"{name} must be an array of numbers, got {type(values).__name__}")
    if np.ma.is_masked(values):
        raise ValueError(f"{name} must have no missing values, got a masked array")
    try:
        if isinstance(values, np.ndarray | Real):  # as points of datasets are: no time to lose
            array = np.asarray(values)
        else:
            array = check_array(values, **UNCHECKED)
        text = [v for v in array.flat if isinstance(v, str)] if array.dtype.kind in "OU" else []
        if array.dtype.kind == "O" and not text:
            array = array.astype(np.float64)
    except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:
        if "inhomogeneous" in str(error):
            raise ValueError(f"{name} must have rows of one length, got several") from None
        reason = textwrap.shorten(str(error).rstrip("."), 120, placeholder=" ... ").strip(" .")
        raise TypeError(
            f"{name} must be an array of numbers, got {type(values).__name__}: {reason}"
        ) from None
    if text:
        raise TypeError(f"{name} must hold numbers, got text: {_short(str(text[0]))}")
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must hold numbers, got {array.dtype}")
    if array.dtype.isnative and array.itemsize <= 8:
        return array
    with np.errstate(over="ignore"):  # reported as infinity
        return array.astype(np.float64)


def _holds_tensors(values: object) -> bool:
    return isinstance(values, list | tuple) and any(isinstance(value, Tensor) for value in values)


def _not_empty(name: str, values: object) -> Tensor:
    made = numbers(name, values)
    if 0 in made.shape:
        raise ValueError(f"{name} must not be empty, got shape {tuple(made.shape)}")
    return made


def _short_forms(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Returns other shapes that points of one feature or one channel may come in."""
    if shape == (1,):
        return [()]
    return [shape[1:], (shape[1] * shape[2],)] if len(shape) == 3 and shape[0] == 1 else []


def _finite(
    name: str, values: Tensor, dtype: torch.dtype | None, device: torch.device | str | None
) -> Tensor:
    made = values.to(device=device, dtype=dtype or torch.get_default_dtype())
    if made.isfinite().all():
        return made
    if values.isfinite().all():
        largest = f"{values.abs().max().item():g}"
        raise ValueError(f"{name} must fit {made.dtype}, got numbers as large as {largest}")
    wrong = (~values.isfinite()).flatten(1).any(dim=1).nonzero().squeeze(1)
    raise ValueError(
        f"{name} must be finite, got NaN or infinity at {len(wrong)} of {len(values)} points, "
        f"first at point {int(wrong[0])}"
    )


def _labels(name: str, values: Tensor, classes: int | None) -> Tensor:
    if values.is_floating_point():
        values = values.double()
        wrong = ~((values == values.floor()) & (values.abs() < WHOLE))
        if wrong.any():
            got = f"{values[wrong][0].item():g}"
            raise ValueError(f"{name} must hold whole numbers as labels, got {got}")
    labels = values.to(torch.int64)
    low, high = (int(end) for end in torch.aminmax(labels))
    if low < 0 or (classes is not None and high >= classes):
        wanted = "at least 0" if classes is None else f"from 0 to {classes - 1}"
        raise ValueError(f"{name} must hold labels {wanted}, got {low} to {high}")
    return labels


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _items(name: str, data: Dataset[Any] | DataLoader[Any]) -> Any:
    if isinstance(data, DataLoader | IterableDataset):
        return data
    if not isinstance(data, Sized):
        raise TypeError(f"{name} must have a length, got {type(data).__name__}")
    return (data[i] for i in range(len(data)))


def _item(name: str, item: Any) -> tuple[Any, ...]:
    """Returns what a dataset or a loader gives at a time as (x,) or (x, y)."""
    if isinstance(item, dict | str | bytes) or item is None:
        raise TypeError(f"{name} must give (x, y) or x, got {type(item).__name__}")
    if not isinstance(item, list | tuple):
        return (item,)
    if len(item) not in (1, 2):
        raise TypeError(f"{name} must give (x, y) or x, got {len(item)} things at a time")
    return tuple(item)


def _joined(name: str, values: Any, batched: bool) -> Tensor:
    """Puts points, or batches of points, one after the other."""
    parts = [numbers(name, value) for value in values]
    if batched and not all(part.ndim for part in parts):
        raise ValueError(f"{name} must give batches of points, got single numbers")
    sizes = {tuple(part.shape[1:] if batched else part.shape) for part in parts}
    if len(sizes) > 1:
        got = " and ".join(map(str, sorted(sizes)[:2]))
        raise ValueError(f"{name} must have points of one size, got {got}")
    dtype = parts[0].dtype
    for part in parts:
        dtype = torch.promote_types(dtype, part.dtype)
    alike = [part.to(parts[0].device, dtype) for part in parts]
    return torch.cat(alike) if batched else torch.stack(alike)
