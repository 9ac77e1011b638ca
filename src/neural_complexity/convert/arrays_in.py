"""What users have (arrays, lists, frames, datasets), and what their models predict, as tensors.

What is no real number raises a TypeError, what is missing, infinite, empty or of another shape a
ValueError: one sentence that says what was required of what, and what arrived.
"""

import math
import textwrap
from collections.abc import Callable, Hashable, Sequence, Sized
from numbers import Real
from reprlib import repr as shortened
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.utils import check_array
from torch import Tensor, nn
from torch.nn.functional import log_softmax
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, Dataset, IterableDataset

from neural_complexity.convert.frames_in import is_plain
from neural_complexity.convert.module_copy import evaluation_copy
from neural_complexity.points import check_dense

__all__ = [
    "LEAST",
    "SINGLE",
    "array",
    "encode",
    "inputs",
    "numbers",
    "pair",
    "targets",
]
__all__ += ["columns_of", "in_order", "logarithms", "looks_like_shares", "predict"]

Size = int | None
WHOLE = 2**53  # floats beyond it are whole numbers whatever was meant
# Everything else is made into float64: few operations know unsigned or very short numbers.
KNOWN = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.uint8]
KNOWN += [torch.int8, torch.int16, torch.int32, torch.int64]
BATCH = 1024  # points that a network predicts at a time, and
NUMBERS = 2**22  # how many numbers they may be: both bound memory
# The least probability that a class can have. A forest says 0 and means that it has not seen it,
# but the loss of a 0 is infinite; scikit-learn's log_loss does the same in single precision.
LEAST = 1e-7
SINGLE = ": a single logit z of two classes is the columns 0 and z"  # what to do about one column
# Only what an array is made of: shapes and values are checked here, against what NC needs.
UNCHECKED: dict[str, Any] = {
    **{"dtype": None, "ensure_2d": False, "allow_nd": True, "ensure_all_finite": False},
    **{"ensure_min_samples": 0, "ensure_min_features": 0},
}


def inputs(name: str, X: object, *, shape: Sequence[int] | None = None, **place: Any) -> Tensor:
    """Returns input points as a tensor, (points, D) or (points, channels, height, width).

    Where `shape`, of a point, has one feature, a list of points will do; where it has one channel,
    images may come without it, or as rows of pixels. Where it is empty, points are rows of a table:
    any features, and NaN where a value is missing. `dtype`, which is PyTorch's default if not
    given, and `device` are the `place`.
    """
    values = numbers(name, X)
    got, wanted, table = tuple(values.shape), tuple(shape or ()), shape == ()
    if got and wanted[:1] == (1,) and got[1:] in (wanted[1:], (math.prod(wanted[1:]),)):
        values = values.reshape(len(values), *wanted)
    if values.ndim not in ((2,) if table else (2, 4)) or (wanted and values.shape[1:] != wanted):
        sizes = ", ".join(map(str, wanted)) or "features) or (points, channels, height, width"
        sizes = "features" if table else sizes
        raise ValueError(f"{name} must be (points, {sizes}), got shape {got}")
    if table:  # what is missing is no fault
        missing = values.isnan()
        made = _finite(name, values.masked_fill(missing, 0.0), **place)
        return made.masked_fill(missing.to(made.device), math.nan)
    return _finite(name, values, **place)


def targets(
    name: str, y: object, *, labels: bool, outputs: Size = None, points: Size = None, **place: Any
) -> Tensor:
    """Returns labels from 0, int64 (points,), or real targets, (points, C), as a tensor."""
    values = numbers(name, y)
    got = tuple(values.shape)
    if got and got[1:] in ((), (1,)):
        values = values.reshape(-1) if labels else values.reshape(-1, 1)
    columns = values.shape[1:]
    if not got or len(columns) != (not labels) or (columns and outputs not in (None, columns[0])):
        wanted = "(points,), one label each" if labels else f"(points, {outputs or 'outputs'})"
        raise ValueError(f"{name} must be {wanted}, got shape {got}")
    if points is not None and len(values) != points:
        wanted = f"one for each of the {points} points"
        raise ValueError(f"{name} must be {wanted}, got {len(values)} of them")
    if not labels:
        return _finite(name, values, **place)
    if values.is_floating_point():
        values = values.double()
        wrong = values[~((values == values.floor()) & (values.abs() < WHOLE))]
        if len(wrong):
            raise ValueError(f"{name} must hold whole numbers as labels, got {wrong[0].item():g}")
    values = values.to(torch.int64)
    low, high = (int(end) for end in torch.aminmax(values))
    if low < 0 or (outputs is not None and high >= outputs):
        wanted = "at least 0" if outputs is None else f"from 0 to {outputs - 1}"
        raise ValueError(f"{name} must hold labels {wanted}, got {low} to {high}")
    return values.to(place.get("device"))


def encode(y: object, classes: Sequence[object], *, name: str = "y") -> Tensor:
    """Returns the place of each label, of any kind, among the classes, int64 (points,)."""
    if isinstance(y, Tensor) or _holds_tensors(y):
        y = numbers(name, y).tolist()
    labels = np.asarray(y, dtype=object)  # of text and numbers NumPy would make text
    labels = labels[:, 0] if labels.shape[1:] == (1,) else labels
    if labels.ndim != 1 or not len(labels):
        raise ValueError(f"{name} must be (points,), one label each, got shape {labels.shape}")
    places = {label: i for i, label in enumerate(classes)}
    for label in labels.tolist():
        if not isinstance(label, Hashable) or label not in places:
            known, got = ", ".join(map(str, classes[:10])), shortened(label)
            more = ", ..." if len(classes) > 10 else ""
            raise ValueError(f"{name} must hold labels of the classes {known}{more}, got {got}")
    return torch.tensor([places[label] for label in labels.tolist()], dtype=torch.int64)


def pair(name: str, data: object, y: object = None) -> tuple[Any, Any]:
    """Returns inputs and targets of a PyTorch dataset or loader, gone through once, in order.

    Anything else stays as it is, and so do the random numbers of PyTorch that a loader draws from.
    """
    if not isinstance(data, Dataset | DataLoader):
        return data, y
    every: Any = data
    if not isinstance(data, DataLoader | IterableDataset):
        if not isinstance(data, Sized):
            raise TypeError(f"{name} must have a length, got {type(data).__name__}")
        every = (data[i] for i in range(len(data)))
    items: list[tuple[Any, ...]] = []  # (x,) or (x, y) each
    with torch.random.fork_rng(devices=[]):
        for item in every:
            items.append(tuple(item) if isinstance(item, list | tuple) else (item,))
            if len(items[-1]) not in (1, 2) or isinstance(item, dict | str | bytes | None):
                got = f"{type(item).__name__} of {len(items[-1])}"
                raise TypeError(f"{name} must give (x, y) or x, got {got}")
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
    """Returns an array, a tensor, a number, lists or a data frame as a tensor, in its own type."""
    if _holds_tensors(values):
        return _joined(name, values, batched=False)
    if not isinstance(values, Tensor):
        found = _array(name, values)
        shared = found.flags.writeable and min(found.strides, default=0) >= 0
        values = torch.from_numpy(found if shared else found.copy())
    check_dense(name, values)
    if values.is_complex():
        raise TypeError(f"{name} must hold real numbers, got {values.dtype}")
    if 0 in values.shape:
        raise ValueError(f"{name} must not be empty, got shape {tuple(values.shape)}")
    return values.detach().to(values.dtype if values.dtype in KNOWN else torch.float64)


def array(values: Any) -> NDArray[Any]:
    """Returns an array, where text stays objects: NumPy's own has the longest word's size."""
    if not isinstance(values, list | tuple):
        return np.asarray(values)
    objects = np.asarray(values, dtype=object)
    if any(isinstance(v, str) for v in objects.flat):
        return objects
    try:
        return np.asarray(values)
    except ValueError:  # NumPy's has three sentences
        raise ValueError("lists must be of one length, got inhomogeneous ones") from None


def _array(name: str, values: Any) -> NDArray[Any]:
    """Returns an array of a type that PyTorch can share."""
    if isinstance(values, pd.DataFrame) and values.shape[1]:
        kinds = set(values.dtypes)
        if all(isinstance(kind, np.dtype) and kind.kind in "biuf" for kind in kinds):
            return _array(name, values.to_numpy(dtype=np.result_type(*kinds), copy=True))
        return np.column_stack([_array(f"column {c} of {name}", v) for c, v in values.items()])
    if values is None or isinstance(values, Dataset | DataLoader):
        raise TypeError(f"{name} must be an array of numbers, got {type(values).__name__}")
    if np.ma.is_masked(values):
        raise ValueError(f"{name} must have no missing values, got a masked array")
    try:
        plain = isinstance(values, np.ndarray | Real)  # as points of datasets are: no time to lose
        values = array(values) if isinstance(values, list | tuple) else values
        found: NDArray[Any] = np.asarray(values) if plain else check_array(values, **UNCHECKED)
        text = [v for v in found.flat if isinstance(v, str)] if found.dtype.kind in "OU" else []
        if found.dtype.kind == "O" and not text:
            found = found.astype(np.float64)
    except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:
        if "inhomogeneous" in str(error):
            raise ValueError(f"{name} must have rows of one length, got several") from None
        reason = textwrap.shorten(str(error).rstrip("."), 120, placeholder=" ... ").strip(" .")
        got = f"{type(values).__name__}: {reason}"
        raise TypeError(f"{name} must be an array of numbers, got {got}") from None
    if text or found.dtype.kind not in "biuf":
        # Among numbers that one word made text, the word.
        words = (word for word in text if pd.isna(pd.to_numeric(word, errors="coerce")))
        got = f"text: {shortened(str(next(words, text[0])))}" if text else str(found.dtype)
        raise TypeError(f"{name} must hold numbers, got {got}")
    if found.dtype.isnative and found.itemsize <= 8:
        return found
    with np.errstate(over="ignore"):  # reported as infinity
        return found.astype(np.float64)


def _holds_tensors(values: object) -> bool:
    return isinstance(values, list | tuple) and any(isinstance(value, Tensor) for value in values)


def _finite(name: str, values: Tensor, dtype: Any = None, device: Any = None) -> Tensor:
    made = values.to(device, dtype or torch.get_default_dtype())
    if made.isfinite().all():
        return made
    if values.isfinite().all():
        largest = f"{values.abs().max().item():g}"
        raise ValueError(f"{name} must fit {made.dtype}, got numbers as large as {largest}")
    wrong = (~values.isfinite()).flatten(1).any(dim=1).nonzero().squeeze(1)
    got = f"NaN or infinity at {len(wrong)} of {len(values)} points, first at point {int(wrong[0])}"
    raise ValueError(f"{name} must be finite, got {got}")


def _joined(name: str, values: Any, batched: bool) -> Tensor:
    """Puts points, or batches of points, one after the other."""
    parts = [numbers(name, value) for value in values]
    if batched and not all(part.ndim for part in parts):
        raise ValueError(f"{name} must give batches of points, got single numbers")
    sizes = {tuple(part.shape[1:] if batched else part.shape) for part in parts}
    if len(sizes) > 1:
        got = " and ".join(map(str, sorted(sizes)[:2]))
        raise ValueError(f"{name} must have points of one size, got {got}")
    return (torch.cat if batched else torch.stack)([part.to(parts[0].device) for part in parts])


def predict(name: str, model: Any, X: object, *, labels: bool, like: Tensor) -> Tensor:
    """Returns a model's predictions, (points, C), of the type and device of `like`.

    They are logits, or logarithms of `predict_proba`. Of a module a copy predicts, in evaluation
    mode, from numbers of its parameters' type and on their device; a scikit-learn estimator gets
    points as they were given; any other callable gets a tensor of the type and device of `like`.
    """
    what = f"the model's predictions for {name}"
    place: Any = {"labels": False, "dtype": like.dtype, "device": like.device}
    if not callable(model):
        wanted = ""
        if not hasattr(model, "predict"):
            wanted = "be a callable, a torch.nn.Module or a scikit-learn estimator"
        elif labels and not hasattr(model, "predict_proba"):
            wanted = "have predict_proba where targets are labels (see CalibratedClassifierCV)"
        elif not labels and hasattr(model, "classes_"):
            wanted = "be a regressor where NC judges real targets"
        if wanted:
            raise TypeError(f"model must {wanted}, got {type(model).__name__}")
        if not hasattr(X, "columns") and is_plain(X):  # or names or text are what it was fitted to
            rows = numbers(name, X).cpu()
            rows = rows.float() if rows.dtype == torch.bfloat16 else rows
            X = rows.numpy().reshape(len(rows), -1)
        H = numbers(what, _call(name, model.predict_proba if labels else model.predict, X))
        return targets(what, logarithms(what, H) if labels else H, **place)
    if not is_plain(X) and not isinstance(model, nn.Module):  # a function that reads frames
        return targets(what, numbers(what, _call(name, model, X)), **place)
    points = numbers(name, X)
    points = points.unsqueeze(1) if points.ndim == 1 else points
    size = min(BATCH, max(1, NUMBERS // max(1, points[:1].numel())))
    state = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
    if any(is_lazy(tensor) for tensor in state):
        raise ValueError("model must have been trained, got a module with lazy parameters")
    own = next((tensor for tensor in state if tensor.is_floating_point()), None)
    devices = sorted({tensor.get_device() for tensor in state if tensor.is_cuda})
    parts = []
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        model = evaluation_copy(model) if isinstance(model, nn.Module) else model
        for part in points.tensor_split(-(-len(points) // size)):
            # A copy: a model may write over its input, which is the user's.
            H = numbers(what, _call(name, model, part.to(like if own is None else own, copy=True)))
            if len(part) == 1 and H.ndim < 2:  # a model may squeeze the axis of a point
                H = H.reshape(1, -1)
            parts.append(targets(what, H, points=len(part), **place))
    return torch.cat(parts)


def logarithms(name: str, probabilities: Tensor) -> Tensor:
    """Returns logits of probabilities, (points, C), none of them less than one in ten million."""
    if probabilities.ndim != 2 or not looks_like_shares(probabilities):
        raise ValueError(f"{name} must be probabilities, rows that sum to one, got other numbers")
    return probabilities.double().clamp(min=LEAST).log()


def looks_like_shares(H: Tensor) -> bool:
    """Whether every row has no negative number and sums to one."""
    return bool((H >= 0).all() and ((H.double().sum(dim=-1) - 1).abs() < 1e-3).all())


def columns_of(model: Any) -> list[Any] | None:
    """Returns the class of each column of an estimator's `predict_proba`, if it is known."""
    classes = None if callable(model) else getattr(model, "classes_", None)
    return None if classes is None else array(classes).tolist()


def in_order(name: str, H: Tensor, columns: Sequence[Any], classes: Sequence[Any]) -> Tensor:
    """Returns logits with their columns in the order of NC's classes, (points, classes).

    `columns` are the classes of those of H; a class that has none gets the least probability.
    """
    if len(set(columns)) < len(columns):
        raise ValueError("classes must be different from each other, got one twice")
    if len(columns) != H.shape[1]:
        got = f"{H.shape[1]}{SINGLE if (len(columns), H.shape[1]) == (2, 1) else ''}"
        wanted = f"one column for each of {len(columns)} classes"
        raise ValueError(f"{name} must have {wanted}, got {got}")
    place = encode(list(columns), classes, name="the model's classes").to(H.device)
    ordered = H.new_full((len(H), len(classes)), float(np.log(LEAST)))
    ordered[:, place] = H if len(columns) == len(classes) else log_softmax(H, dim=1)
    return ordered


def _call(name: str, method: Callable[[Any], Any], X: Any) -> Any:
    try:
        H = method(X)
    except Exception as error:
        wanted = f"be able to predict for {name} of shape {tuple(X.shape)}"
        got = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}"
        raise ValueError(f"the model must {wanted}, got {got}") from error
    if not isinstance(H, Tensor) and (isinstance(H, dict | list) or not hasattr(H, "shape")):
        got = f"{type(H).__name__}: wrap it in a function that does"
        raise TypeError(f"the model must return one tensor or array of predictions, got {got}")
    return H
