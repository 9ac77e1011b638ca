"""What users have (arrays, tensors, lists, data frames, PyTorch datasets), as checked tensors."""

from collections.abc import Iterable, Sequence, Sized
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

__all__ = ["encode", "inputs", "numbers", "pair", "targets"]

WHOLE = 2**53  # floats beyond it are whole numbers whatever was meant
# Everything else is made into float64: few operations know unsigned or very short numbers.
KNOWN = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
)
ACCEPTED = "an array, a tensor, a nested list, a data frame, a Dataset or a DataLoader"


def inputs(
    name: str,
    X: object,
    *,
    shape: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Makes a tensor of input points.

    Args:
        name: What errors call them.
        X: Numbers of any type: a NumPy array, a tensor, nested lists or a data frame.
        shape: What a point must be: `(D,)` or `(channels, height, width)`; any of the two if
            `None`. Where there is one feature, a list of points will do; where there is one
            channel, images may come without it, or as rows of pixels.
        dtype: Of the tensor; PyTorch's default if `None`.
        device: Of the tensor; where X is if `None`.

    Returns:
        The points, (points, D) or (points, channels, height, width), finite and at least one.

    Raises:
        TypeError: If these are no numbers.
        ValueError: If there are none, some are missing or infinite, or points are of another shape.

    Example:
        >>> inputs("X_tr", [[1, 2], [3, 4]], shape=(2,), dtype=torch.float32)
        tensor([[1., 2.],
                [3., 4.]])
    """
    values = numbers(name, X)
    got = tuple(values.shape)
    if 0 in got:
        raise ValueError(f"{name} must not be empty, got shape {got}")
    if shape is not None and len(got) > 0 and got[1:] != tuple(shape):
        values = _shaped(values, tuple(shape))
    if (values.ndim not in (2, 4)) if shape is None else (values.shape[1:] != tuple(shape)):
        wanted = "features) or (points, channels, height, width" if shape is None else None
        wanted = wanted or ", ".join(map(str, shape or ()))
        raise ValueError(f"{name} must be (points, {wanted}), got shape {got}")
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
    """Makes a tensor of targets.

    Args:
        name: What errors call them.
        y: Numbers of any type, as for `inputs`. Labels that are names go through `encode` first.
        labels: Whether they are labels, 0 ... outputs - 1, rather than real numbers.
        outputs: Classes, or outputs of a real target; any number if `None`.
        points: How many there must be; any number if `None`.
        dtype: Of real targets; PyTorch's default if `None`. Labels are int64.
        device: Of the tensor; where y is if `None`.

    Returns:
        Labels, (points,), or real targets, (points, C); those of one output may come as a list.

    Raises:
        TypeError: If these are no numbers.
        ValueError: If there are none or not as many as points, some are missing, infinite or no
            labels, or they are of another shape.
    """
    values = numbers(name, y)
    got = tuple(values.shape)
    if 0 in got:
        raise ValueError(f"{name} must not be empty, got shape {got}")
    if labels and values.ndim == 2 and got[1] == 1:
        values = values.squeeze(1)
    elif not labels and values.ndim == 1:
        values = values.unsqueeze(1)
    if values.ndim != (1 if labels else 2) or (
        not labels and values.shape[1] != (outputs or values.shape[1])
    ):
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
    """Numbers labels of any kind by a list of classes.

    Args:
        y: Labels: an array, a tensor, a list or a column of a data frame.
        classes: The class of each number 0 ... C - 1.
        name: What errors call the labels.

    Returns:
        Their numbers, int64, (points,).

    Raises:
        TypeError: If these are no labels.
        ValueError: If there are none, or one is no class.

    Example:
        >>> encode(["dog", "cat", "dog"], ["cat", "dog"])
        tensor([1, 0, 1])
    """
    number = {_plain(label): i for i, label in enumerate(classes)}
    found = []
    for label in _listed(name, y):
        try:
            found.append(number[label])
        except (KeyError, TypeError):  # a list, say, is no label
            shown = ", ".join(str(known) for known in list(number)[:10])
            more = ", ..." if len(number) > 10 else ""
            raise ValueError(
                f"{name} must hold labels of the classes {shown}{more}, got {_short(label)}"
            ) from None
    return torch.tensor(found, dtype=torch.int64)


def pair(name: str, data: object, y: object = None) -> tuple[Any, Any]:
    """Takes a PyTorch dataset apart, going through it once; anything else stays as it is.

    PyTorch's own random numbers, which a `DataLoader` draws from, stay as they are.

    Args:
        name: What errors call it.
        data: A `Dataset` or a `DataLoader` of inputs or of pairs (x, y); or inputs.
        y: Targets of inputs that come alone.

    Returns:
        Inputs and targets, in the order in which they came; targets are `None` where there are
        none.

    Raises:
        TypeError: If it gives something else than inputs or pairs, or targets came twice.
        ValueError: If it is empty, or its points are of several sizes.
    """
    if not isinstance(data, Dataset | DataLoader):
        return data, y
    with torch.random.fork_rng(devices=[]):
        items = [_item(name, item) for item in _items(name, data)]
    if not items:
        raise ValueError(f"{name} must not be empty, got {type(data).__name__} of no points")
    pairs = [item for item in items if len(item) == 2]
    if pairs and len(pairs) < len(items):
        raise TypeError(f"{name} must give pairs (x, y) or inputs alone, got both")
    if pairs and y is not None:
        raise TypeError(f"{name} must give inputs alone where targets are given, got pairs (x, y)")
    batched = isinstance(data, DataLoader) and data.batch_sampler is not None
    X = _joined(name, [numbers(name, item[0]) for item in items], batched)
    if not pairs:
        return X, y
    return X, _joined_targets(f"targets of {name}", [item[1] for item in pairs], batched)


def numbers(name: str, values: object) -> Tensor:
    """Makes a tensor of real numbers, of their own type and shape, missing ones refused.

    Args:
        name: What errors call them.
        values: A NumPy array, a tensor, a number, nested lists or a data frame.

    Raises:
        TypeError: If these are no real numbers.
        ValueError: If rows have several lengths, or something is missing.
    """
    if isinstance(values, Tensor):
        return _dense(name, values)
    if isinstance(values, list | tuple) and any(isinstance(value, Tensor) for value in values):
        return _joined(name, [numbers(name, value) for value in values], batched=False)
    if hasattr(values, "toarray"):
        raise TypeError(
            f"{name} must be dense, got {type(values).__name__}: give its toarray() instead"
        )
    if np.ma.isMaskedArray(values) and np.ma.is_masked(values):
        raise ValueError(f"{name} must have no missing values, got a masked array")
    array = _array(name, values)
    columns = getattr(values, "columns", None)
    if array.dtype.kind == "O" and columns is not None and array.ndim == 2:
        parts = [_real(f"column {c} of {name}", array[:, i]) for i, c in enumerate(columns)]
        array = np.stack(parts, axis=1) if parts else np.empty(array.shape)
    array = _real(name, array)
    # A copy where PyTorch could not share the memory.
    shared = array.flags.writeable and min(array.strides, default=0) >= 0
    return torch.from_numpy(array if shared else array.copy())


def _dense(name: str, values: Tensor) -> Tensor:
    if values.is_nested or values.layout != torch.strided or values.is_quantized or values.is_meta:
        raise TypeError(f"{name} must be a dense tensor that holds values, got another kind")
    if values.is_complex():
        raise TypeError(f"{name} must hold real numbers, got {values.dtype}")
    values = values.detach()
    return values if values.dtype in KNOWN else values.to(torch.float64)


def _array(name: str, values: Any) -> NDArray[Any]:
    if isinstance(values, Dataset | DataLoader):
        raise TypeError(f"{name} must hold numbers, got {type(values).__name__}")
    try:
        array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        if "inhomogeneous" in str(error):
            raise ValueError(f"{name} must have rows of one length, got several lengths") from None
        kind = type(values).__name__
        raise TypeError(f"{name} must be {ACCEPTED}, got {kind} that NumPy cannot read") from None
    if array.ndim == 0 and array.dtype.kind not in "biufc":
        raise TypeError(f"{name} must be {ACCEPTED}, got {type(values).__name__}")
    return array


def _real(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Gives an array of a type that PyTorch knows."""
    kind = array.dtype.kind
    if kind == "O":
        return _real_objects(name, array)
    if kind == "c":
        raise TypeError(f"{name} must hold real numbers, got {array.dtype}")
    if kind in "UST" and array.size:
        raise TypeError(f"{name} must hold numbers, got text: {_short(str(array.flat[0]))}")
    if kind not in "biuf":
        raise TypeError(f"{name} must hold numbers, got {array.dtype}")
    if (kind == "u" and array.itemsize > 1) or (kind == "f" and array.itemsize > 8):
        with np.errstate(over="ignore"):  # told as infinity
            return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _real_objects(name: str, array: NDArray[Any]) -> NDArray[np.float64]:
    for value in array.flat:
        if value is None or type(value).__name__ in ("NAType", "NaTType"):
            raise ValueError(f"{name} must have no missing values, got {value}")
        if isinstance(value, list | tuple | np.ndarray):
            raise ValueError(f"{name} must have rows of one length, got {type(value).__name__}s")
        if not isinstance(value, Real | Decimal | np.bool_):
            what = "text: " + _short(value) if isinstance(value, str) else type(value).__name__
            raise TypeError(f"{name} must hold numbers, got {what}")
    try:
        return array.astype(np.float64)
    except (OverflowError, ValueError, TypeError):
        raise ValueError(f"{name} must hold numbers of ordinary size, got others") from None


def _shaped(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Adds the axes that points of one feature or one channel may come without."""
    own = tuple(values.shape[1:])
    one_feature = shape == (1,) and own == ()
    pixels = (shape[1:], (shape[1] * shape[2],)) if len(shape) == 3 and shape[0] == 1 else ()
    return values.reshape(len(values), *shape) if one_feature or own in pixels else values


def _finite(
    name: str, values: Tensor, dtype: torch.dtype | None, device: torch.device | str | None
) -> Tensor:
    made = values.to(device=device, dtype=dtype or torch.get_default_dtype())
    if made.isfinite().all():
        return made
    if values.isfinite().all():
        raise ValueError(
            f"{name} must fit {made.dtype}, got numbers as large as {_largest(values)}"
        )
    wrong = (~values.isfinite()).flatten(1).any(dim=1).nonzero().squeeze(1)
    raise ValueError(
        f"{name} must be finite, got NaN or infinity at {len(wrong)} of {len(values)} points, "
        f"first at point {int(wrong[0])}"
    )


def _largest(values: Tensor) -> str:
    return f"{values.abs().max().item():g}"


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


def _listed(name: str, y: Any) -> list[Any]:
    """Gives labels one by one, as plain Python values."""
    if isinstance(y, Tensor):
        y = _dense(name, y)
        array = (y.float() if y.dtype == torch.bfloat16 else y).cpu().numpy()
    elif isinstance(y, list | tuple) and any(isinstance(label, Tensor) for label in y):
        array = numbers(name, y).cpu().numpy()
    elif isinstance(y, list | tuple):  # NumPy would make text of a list of text and numbers
        array = np.empty(len(y), dtype=object)
        array[:] = [_plain(label) for label in y]
    else:
        array = _array(name, y)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"{name} must be (points,), one label each, got shape {array.shape}")
    if not len(array):
        raise ValueError(f"{name} must not be empty, got no labels")
    labels: list[Any] = array.tolist()
    return labels


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _items(name: str, data: Dataset[Any] | DataLoader[Any]) -> Iterable[Any]:
    if isinstance(data, DataLoader | IterableDataset):
        return data
    if not isinstance(data, Sized):
        raise TypeError(f"{name} must have a length, got {type(data).__name__}")
    return (data[i] for i in range(len(data)))


def _item(name: str, item: Any) -> tuple[Any, ...]:
    """Gives what a dataset or a loader gives at a time as (x,) or (x, y)."""
    if not isinstance(item, list | tuple):
        if isinstance(item, dict | str | bytes) or item is None:
            raise TypeError(f"{name} must give (x, y) or x, got {type(item).__name__}")
        return (item,)
    if len(item) not in (1, 2):
        raise TypeError(f"{name} must give (x, y) or x, got {len(item)} things at a time")
    return tuple(item)


def _joined(name: str, parts: list[Tensor], batched: bool) -> Tensor:
    """Puts points, or batches of points, one after the other."""
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


def _joined_targets(name: str, parts: list[Any], batched: bool) -> Tensor | list[Any]:
    """Does the same with targets, of which labels may be text."""
    if not batched:
        text = any(isinstance(part, str) for part in parts)
    else:
        text = any(not isinstance(part, Tensor | np.ndarray) for part in parts)
    if not text:
        return _joined(name, [numbers(name, part) for part in parts], batched)
    return [label for part in parts for label in _listed(name, part)] if batched else parts
