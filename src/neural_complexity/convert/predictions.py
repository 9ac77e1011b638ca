"""What a user's model predicts, whatever kind of model it is, leaving the model as it was."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax
from torch.nn.parameter import is_lazy

from neural_complexity.convert.arrays_in import encode, numbers, targets

__all__ = [
    "columns_of",
    "in_order",
    "logarithms",
    "looks_like_shares",
    "predict",
]

BATCH = 1024  # points that a network predicts at a time, and
NUMBERS = 2**22  # how many numbers they may be: both bound memory
# The least probability that a class can have. A forest says 0 and means that it has not seen it,
# but the loss of a 0 is infinite; scikit-learn's log_loss does the same in single precision.
LEAST = 1e-7


def predict(name: str, model: Any, X: object, *, labels: bool, like: Tensor) -> Tensor:
    """Returns a model's predictions, (points, C), of the type and device of `like`.

    They are logits, or logarithms of `predict_proba`. A module predicts in evaluation mode, from
    numbers of its parameters' type and on their device; a scikit-learn estimator gets points as
    they were given; any other callable gets a tensor of the type and device of `like`.
    """
    what = f"the model's predictions for {name}"
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
        if not hasattr(X, "columns"):  # whose names are what the estimator was fitted with
            array = numbers(name, X).cpu()
            array = array.float() if array.dtype == torch.bfloat16 else array
            X = array.numpy().reshape(len(array), -1)
        H = numbers(what, _call(name, model.predict_proba if labels else model.predict, X))
        H = logarithms(what, H) if labels else H
        return targets(what, H.to(like), labels=False, dtype=like.dtype)
    points = numbers(name, X)
    points = points.unsqueeze(1) if points.ndim == 1 else points
    size = min(BATCH, max(1, NUMBERS // max(1, points[:1].numel())))
    parts = []
    with torch.no_grad(), _left_as_it_was(model) as own:
        for part in points.tensor_split(-(-len(points) // size)):
            # A copy: a model may write over its input, which is the user's.
            H = numbers(what, _call(name, model, part.to(like if own is None else own, copy=True)))
            if len(part) == 1 and H.ndim < 2:  # a model may squeeze the axis of a point
                H = H.reshape(1, -1)
            parts.append(
                targets(what, H.to(like), labels=False, points=len(part), dtype=like.dtype)
            )
    return torch.cat(parts)


def logarithms(name: str, probabilities: Tensor) -> Tensor:
    """Returns logits of probabilities, (points, C), none of them less than one in ten million."""
    if probabilities.ndim != 2 or not looks_like_shares(probabilities):
        raise ValueError(f"{name} must be probabilities, rows that sum to one, got other numbers")
    return probabilities.double().clamp(min=LEAST).log()


def looks_like_shares(*predicted: Tensor) -> bool:
    """Whether every row has no negative number and sums to one."""
    off = [(H.double().sum(dim=-1) - 1).abs() for H in predicted]
    return all((H >= 0).all() and (o < 1e-3).all() for H, o in zip(predicted, off, strict=True))


def columns_of(model: Any) -> list[Any] | None:
    """Returns the class of each column of an estimator's `predict_proba`, if it is known."""
    classes = None if callable(model) else getattr(model, "classes_", None)
    return None if classes is None else np.asarray(classes).tolist()


def in_order(name: str, H: Tensor, columns: Sequence[Any], classes: Sequence[Any]) -> Tensor:
    """Returns logits with their columns in the order of NC's classes, (points, classes).

    `columns` are the classes of those of H; a class that has none gets the least probability.
    """
    if len(set(columns)) < len(columns):
        raise ValueError("classes must be different from each other, got one twice")
    if len(columns) != H.shape[1]:
        hint = ": a single logit z of two classes is the columns 0 and z"
        got = f"{H.shape[1]}{hint if (len(columns), H.shape[1]) == (2, 1) else ''}"
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
    if isinstance(H, dict | list | tuple) or not hasattr(H, "shape"):
        got = f"{type(H).__name__}: wrap it in a function that does"
        raise TypeError(f"the model must return one tensor or array of predictions, got {got}")
    return H


@contextmanager
def _left_as_it_was(model: Any) -> Iterator[Tensor | None]:
    """Puts a module into evaluation mode, and all back; yields a tensor of its type, if any."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    state = [*model.parameters(), *model.buffers()] if modules else []
    if any(is_lazy(tensor) for tensor in state):
        raise ValueError("model must have been trained, got a module with lazy parameters")
    modes = [(module, module.training) for module in modules]
    owned = [(m, name, b, b.clone()) for m in modules for name, b in m.named_buffers(recurse=False)]
    devices = sorted({tensor.get_device() for tensor in state if tensor.is_cuda})
    try:
        with torch.random.fork_rng(devices=devices):
            if modules:
                model.eval()
            yield next((tensor for tensor in state if tensor.is_floating_point()), None)
    finally:
        for module, training in modes:
            module.training = training
        for module, name, buffer, before in owned:
            if not torch.equal(buffer, before):  # untouched ones may be part of somebody's graph
                buffer.copy_(before)
            module.register_buffer(name, buffer, name not in module._non_persistent_buffers_set)
