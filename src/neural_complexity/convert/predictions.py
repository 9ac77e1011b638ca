"""What a user's model predicts, whatever kind of model it is, leaving the model as it was."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax
from torch.nn.parameter import is_lazy

from neural_complexity.convert.arrays_in import encode, numbers

__all__ = [
    "check_predictions",
    "columns_of",
    "in_order",
    "logarithms",
    "looks_like_shares",
    "predict",
]

BATCH = 1024  # points that a network is asked about at a time, and
NUMBERS = 2**22  # how many numbers they may be: both bound memory
# The least probability that a class can have. A forest says 0 and means that it has not seen it,
# but the loss of a 0 is infinite; scikit-learn's log_loss does the same in single precision.
LEAST = 1e-7


def predict(name: str, model: Any, X: object, *, labels: bool, like: Tensor) -> Tensor:
    """Asks a model about points.

    Args:
        name: What errors call the points.
        model: A module, which is asked in evaluation mode, with numbers of its parameters' type and
            on their device; a scikit-learn estimator, which is asked with what was given; or any
            other callable, which maps a tensor of points to predictions.
        X: The points, as they were given.
        labels: Whether predictions must be logits of classes.
        like: A tensor of NC, whose type and device predictions get, and points for a callable.

    Returns:
        Predictions, (points, C): logits, or the logarithm of what `predict_proba` says.

    Raises:
        TypeError: If the model is of no such kind, or returns something else than an array.
        ValueError: If it cannot be asked, or its predictions are not finite or not one row for each
            point.
    """
    asked = f"the model's predictions for {name}"
    if callable(model):
        points = numbers(name, X)
        points = points.unsqueeze(1) if points.ndim == 1 else points
        with torch.no_grad(), _left_as_it_was(model) as own:
            parts = [
                numbers(asked, _call(name, model, _part(part, own, like))).to(like)
                for part in points.tensor_split(_batches(points))
            ]
        rows = [_rows(asked, part, size) for part, size in zip(parts, _sizes(points), strict=True)]
        return check_predictions(asked, torch.cat(rows), len(points))
    ask = _asks(model, labels)
    told = numbers(asked, _call(name, ask, _for_estimator(name, X)))
    if labels:
        told = logarithms(asked, told)
    return check_predictions(asked, told.to(like), len(told))


def check_predictions(name: str, H: Tensor, points: int) -> Tensor:
    """Checks that predictions are finite and one row for each point.

    Args:
        name: What errors call them.
        H: Predictions, (points, C), or (points,) if there is one output.
        points: How many there must be.

    Returns:
        The predictions, (points, C).
    """
    H = H.unsqueeze(1) if H.ndim == 1 else H
    if H.ndim != 2 or len(H) != points or not H.shape[1]:
        raise ValueError(
            f"{name} must be ({points}, outputs), one row for each point, got shape "
            f"{tuple(H.shape)}"
        )
    wrong = int((~H.isfinite()).any(dim=1).sum())
    if wrong:
        raise ValueError(
            f"{name} must be finite, got NaN or infinity at {wrong} of {points} points"
        )
    return H


def logarithms(name: str, shares: Tensor) -> Tensor:
    """Makes logits of probabilities, of which none is taken to be less than one in ten million.

    Args:
        name: What errors call them.
        shares: Probabilities, (points, C).

    Raises:
        ValueError: If these are no probabilities.
    """
    if shares.ndim != 2 or not looks_like_shares(shares):
        raise ValueError(
            f"{name} must be probabilities, rows that sum to one, got numbers that are not"
        )
    return shares.double().clamp(min=LEAST).log()


def looks_like_shares(H: Tensor) -> bool:
    """Tells whether every row has no negative number and sums to one."""
    sums = H.double().sum(dim=-1)
    return bool((H >= 0).all()) and bool(((sums - 1).abs() < 1e-3).all())


def columns_of(model: Any) -> list[Any] | None:
    """Gives the class of each column of an estimator's `predict_proba`, if it tells."""
    classes = None if callable(model) else getattr(model, "classes_", None)
    return None if classes is None else np.asarray(classes).tolist()


def in_order(name: str, H: Tensor, columns: Sequence[Any], classes: Sequence[Any]) -> Tensor:
    """Puts the columns of logits into the order of NC's classes.

    Args:
        name: What errors call the predictions.
        H: Logits, (points, columns).
        columns: The class of each column.
        classes: NC's classes, in order. One that has no column gets the least probability.

    Returns:
        Logits, (points, classes).

    Raises:
        ValueError: If there is not one class a column, or one that NC does not know.
    """
    if len(set(columns)) < len(columns):
        raise ValueError("classes must be different from each other, got one twice")
    if len(columns) != H.shape[1]:
        hint = ": a single logit z of two classes is the columns 0 and z"
        raise ValueError(
            f"{name} must have one column for each of {len(columns)} classes, got "
            f"{H.shape[1]}{hint if (len(columns), H.shape[1]) == (2, 1) else ''}"
        )
    place = encode(list(columns), classes, name="the model's classes").to(H.device)
    ordered = H.new_full((len(H), len(classes)), float(np.log(LEAST)))
    ordered[:, place] = H if len(columns) == len(classes) else log_softmax(H, dim=1)
    return ordered


def _asks(model: Any, labels: bool) -> Callable[[Any], Any]:
    """Gives the method of an estimator that predicts what NC judges."""
    kind = type(model).__name__
    if not hasattr(model, "predict"):
        raise TypeError(
            f"model must be a callable, a torch.nn.Module or a scikit-learn estimator, got {kind}"
        )
    ask: Callable[[Any], Any]
    if labels and not hasattr(model, "predict_proba"):
        raise TypeError(
            "model must have predict_proba where targets are labels, got "
            f"{kind} without it: scikit-learn's CalibratedClassifierCV gives it one"
        )
    if not labels and hasattr(model, "classes_"):
        raise TypeError(
            f"model must be a regressor where NC judges real targets, got {kind}, a classifier"
        )
    ask = model.predict_proba if labels else model.predict
    return ask


def _for_estimator(name: str, X: object) -> Any:
    """Gives points as an estimator knows them: as they came, or rows of numbers."""
    if hasattr(X, "columns"):
        return X  # its names of columns are what the estimator was fitted with
    array = numbers(name, X).cpu()
    array = array.float() if array.dtype == torch.bfloat16 else array
    return array.numpy().reshape(len(array), -1)


def _call(name: str, ask: Callable[[Any], Any], X: Any) -> Any:
    try:
        told = ask(X)
    except Exception as error:
        shape = tuple(X.shape)
        said = (str(error).splitlines() or [""])[0].rstrip(".")
        raise ValueError(
            f"the model must be able to predict for {name} of shape {shape}, got "
            f"{type(error).__name__}: {said}"
        ) from error
    if isinstance(told, dict | list | tuple) or not hasattr(told, "shape"):
        raise TypeError(
            "the model must return one tensor or array of predictions, got "
            f"{type(told).__name__}: wrap it in a function that does"
        )
    return told


def _part(points: Tensor, own: Tensor | None, like: Tensor) -> Tensor:
    # A copy: a model may write over its input, which is the user's.
    to = like if own is None else own
    return points.to(device=to.device, dtype=to.dtype, copy=True)


def _batches(points: Tensor) -> int:
    most = min(BATCH, max(1, NUMBERS // max(1, points[:1].numel())))
    return -(-len(points) // most)


def _sizes(points: Tensor) -> list[int]:
    return [len(part) for part in points.tensor_split(_batches(points))]


def _rows(name: str, told: Tensor, points: int) -> Tensor:
    """Gives the predictions for a batch as (points, C)."""
    if points == 1 and told.ndim < 2:  # a model may squeeze the axis of a single point
        told = told.reshape(1, -1)
    return check_predictions(name, told, points)


@contextmanager
def _left_as_it_was(model: Any) -> Iterator[Tensor | None]:
    """Puts a module into evaluation mode, and afterwards everything back.

    Gives one of its parameters or buffers, which shows the type and device that it works with, if
    there is one.
    """
    if not isinstance(model, nn.Module):
        with torch.random.fork_rng(devices=[]):
            yield None
        return
    state = [*model.parameters(), *model.buffers()]
    if any(is_lazy(tensor) for tensor in state):
        raise ValueError("model must have been trained, got a module with lazy parameters")
    modes = [(module, module.training) for module in model.modules()]
    before = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    devices = sorted({tensor.get_device() for tensor in state if tensor.is_cuda})
    try:
        with torch.random.fork_rng(devices=devices):
            model.eval()
            yield next((tensor for tensor in state if tensor.is_floating_point()), None)
    finally:
        for module, training in modes:
            module.training = training
        for module, name, buffer, value in before:
            if not torch.equal(buffer, value):  # untouched ones may be part of somebody's graph
                buffer.copy_(value)
            module.register_buffer(name, buffer, name not in module._non_persistent_buffers_set)
