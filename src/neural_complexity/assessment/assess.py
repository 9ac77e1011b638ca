"""The assessment of one model: how badly it will generalize, where, and how sure that is."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from neural_complexity.assessment.caveats import PROBABILITIES, SHUFFLED, caveats
from neural_complexity.assessment.result import Assessment
from neural_complexity.convert.arrays_in import encode, inputs, numbers, pair, targets
from neural_complexity.convert.predictions import (
    check_predictions,
    columns_of,
    in_order,
    looks_like_shares,
    predict,
)
from neural_complexity.losses import zero_one
from neural_complexity.model.judgement import features, judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.regularizers.nc import trust
from neural_complexity.reliability.gap_bounds import METHODS, Method, bound
from neural_complexity.reliability.shift import detect_shift
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot

__all__ = ["BoundOptions", "assess", "assess_predictions"]

TESTED = 256  # training points that trust is measured on, at most, and
NUMBERS = 50_000  # points times classes: both bound memory
SHUFFLERS = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


class BoundOptions(TypedDict, total=False):
    """How the gap is bounded: `confidence` and `method` of `reliability.gap_bounds.bound`."""

    confidence: float
    method: Method


def assess(
    nc: NeuralComplexity,
    model: Any,
    X_tr: object,
    y_tr: object = None,
    X_te: object = None,
    *,
    classes: Sequence[Any] | None = None,
    confidence: float = 0.95,
    method: Method = "conformal",
) -> Assessment:
    """Predicts how badly a trained model generalizes, from its training set and unlabelled points.

    The model predicts for both sets and is left as it was: modes, buffers and random numbers of
    PyTorch are restored. NC judges logits, or real outputs; predictions that look like
    probabilities are warned of.

    Args:
        nc: The gap predictor.
        model: Any callable that maps a tensor of points to logits, (points, C), or real outputs; a
            `torch.nn.Module`, which is called in evaluation mode, in parts, with numbers of its
            parameters' type and on their device; or a fitted scikit-learn estimator, a classifier
            with `predict_proba` or a regressor. Points have the layout in which they are given.
        X_tr: The training inputs: an array, a tensor, nested lists or a data frame; or a `Dataset`
            or `DataLoader` of pairs (x, y), and then y_tr is `None`.
        y_tr: Their targets: labels, (points,), or real numbers, (points,) or (points, C).
        X_te: The test inputs, likewise; labels that come with them are ignored.
        classes: The class of each column of the model's predictions; if `None`, the `classes_` of
            an estimator, or NC's own classes. A class of NC that has no column counts as next to
            impossible.
        confidence: How often the bound should hold.
        method: Of the bound, see `reliability.gap_bounds.bound`.

    Raises:
        TypeError: If something is of a kind that cannot be used.
        ValueError: If something has a wrong size or value, or the model cannot predict.
    """
    if isinstance(y_tr, Dataset | DataLoader):
        raise TypeError(
            f"y_tr must be the training targets, got a {type(y_tr).__name__}: test inputs are X_te"
        )
    _check_columns(X_tr, X_te)
    shuffled = _shuffles(X_te)
    X_tr, y_tr = pair("X_tr", X_tr, y_tr)
    if y_tr is None:
        raise TypeError("y_tr must be the training targets, got None")
    if X_te is None:
        raise TypeError("X_te must be test inputs, which need no labels, got None")
    X_te, _ = pair("X_te", X_te)
    points = _points(nc, X_tr, X_te)  # checked before the model stumbles over them
    predictions = [
        predict(name, model, X, labels=nc.labels, like=nc.x_mean)
        for name, X in (("X_tr", X_tr), ("X_te", X_te))
    ]
    if classes is None and nc.labels:
        classes = columns_of(model)
    options: BoundOptions = {"confidence": confidence, "method": method}
    found = _assess(nc, points, y_tr, predictions, classes, options)
    return replace(found, warnings=(*found.warnings, SHUFFLED)) if shuffled else found


def assess_predictions(
    nc: NeuralComplexity,
    X_tr: object,
    y_tr: object,
    H_tr: object,
    X_te: object,
    H_te: object,
    *,
    classes: Sequence[Any] | None = None,
    **bound: Unpack[BoundOptions],
) -> Assessment:
    """Does the same as `assess` for a model that lives elsewhere, from its predictions.

    These are H_tr, (M, C), for X_tr, and H_te, (N, C), for X_te: logits if targets are labels. The
    other arguments, `confidence` and `method` among them, are those of `assess`.
    """
    (X_tr, y_tr), (X_te, _) = pair("X_tr", X_tr, y_tr), pair("X_te", X_te)
    points = _points(nc, X_tr, X_te)
    predictions = [numbers(name, H).to(nc.x_mean) for name, H in (("H_tr", H_tr), ("H_te", H_te))]
    return _assess(nc, points, y_tr, predictions, classes, bound)


def _check_columns(X_tr: object, X_te: object) -> None:
    """Refuses data frames of one thing whose columns are in different places."""
    known, new = (list(getattr(X, "columns", ())) for X in (X_tr, X_te))
    wrong = [pair for pair in zip(known, new, strict=False) if pair[0] != pair[1]]
    if wrong and len(known) == len(new):
        raise ValueError(
            f"X_te must have the columns of X_tr in their order, got {wrong[0][1]} in the place of "
            f"{wrong[0][0]}"
        )


def _shuffles(X: object) -> bool:
    if not isinstance(X, DataLoader):
        return False
    samplers = (X.sampler, getattr(X.batch_sampler, "sampler", None))
    return any(isinstance(sampler, SHUFFLERS) for sampler in samplers)


def _points(nc: NeuralComplexity, X_tr: object, X_te: object) -> list[Tensor]:
    like = nc.x_mean
    return [
        inputs(name, X, shape=nc.shape, dtype=like.dtype, device=like.device)
        for name, X in (("X_tr", X_tr), ("X_te", X_te))
    ]


def _assess(
    nc: NeuralComplexity,
    points: Sequence[Tensor],
    y_tr: object,
    predictions: Sequence[Tensor],
    classes: Sequence[Any] | None,
    options: BoundOptions,
) -> Assessment:
    """Assesses a model from training and test points and its predictions for both."""
    confidence, method = options.get("confidence", 0.95), options.get("method", METHODS[0])
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method}")
    if classes is not None and not nc.labels:
        raise ValueError("classes must be None where NC judges real targets, got classes")
    H_tr, H_te = (
        check_predictions(name, H, len(X))
        for name, H, X in zip(("H_tr", "H_te"), predictions, points, strict=True)
    )
    shares = nc.labels and H_tr.shape[1] > 1 and looks_like_shares(torch.cat([H_tr, H_te]))
    arrange = _arrange_labels if nc.labels else _arrange_real
    Y_tr, H_tr, H_te = arrange(nc, y_tr, H_tr, H_te, classes)
    X_tr, X_te = points
    found = _judge(nc, Snapshot(*(t[None] for t in (X_tr, Y_tr, H_tr, X_te, H_te))), options)
    return replace(found, warnings=(PROBABILITIES, *found.warnings)) if shares else found


def _arrange_real(
    nc: NeuralComplexity, y_tr: object, H_tr: Tensor, H_te: Tensor, _: object
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns real targets, (M, C), and predictions that fit them."""
    for name, H in (("H_tr", H_tr), ("H_te", H_te)):
        if H.shape[1] != nc.outputs:
            raise ValueError(
                f"{name} must have {nc.outputs} columns like NC's targets, got {H.shape[1]}"
            )
    sizes = {"outputs": nc.outputs, "points": len(H_tr)}
    Y_tr = targets("y_tr", y_tr, labels=False, dtype=H_tr.dtype, device=H_tr.device, **sizes)
    return Y_tr, H_tr, H_te


def _arrange_labels(
    nc: NeuralComplexity, y_tr: object, H_tr: Tensor, H_te: Tensor, columns: Sequence[Any] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns labels as indices of NC's classes, (M,), and logits with a column for each."""
    names = nc.card.classes
    known: Sequence[Any] = range(nc.outputs)  # NC's classes, in its order
    if names is not None:
        known = list(names)
    elif nc.symmetric:  # one that knows no names takes any
        known = range(H_te.shape[1]) if columns is None else list(columns)
    given = known if columns is None else columns
    H_tr, H_te = (in_order(name, H, given, known) for name, H in (("H_tr", H_tr), ("H_te", H_te)))
    if names is not None or (columns is not None and nc.symmetric):
        Y_tr = targets("y_tr", encode(y_tr, known, name="y_tr"), labels=True, points=len(H_tr))
        return Y_tr.to(H_tr.device), H_tr, H_te
    Y_tr = targets("y_tr", y_tr, labels=True, points=len(H_tr))
    if len(known) == 1 and Y_tr.any():
        raise ValueError(
            "predictions must have one column for each class, got one column for several "
            "labels: a single logit z of two classes is the columns 0 and z"
        )
    return targets("y_tr", Y_tr, labels=True, outputs=len(known)).to(H_tr.device), H_tr, H_te


def _judge(nc: NeuralComplexity, snapshot: Snapshot, options: BoundOptions) -> Assessment:
    """Judges one learner, and how far the judgement can be relied on."""
    judgement = judge(nc, snapshot)
    gap, loss_tr, spread = (
        value.item() for value in (judgement.gap, judgement.loss_tr, judgement.spread)
    )
    if not math.isfinite(gap):
        raise ValueError(
            "inputs and predictions must be of a size that losses can be computed from, got "
            f"inputs up to {_largest(snapshot.X_tr, snapshot.X_te)} and predictions up to "
            f"{_largest(snapshot.H_tr, snapshot.H_te)}"
        )
    accuracy = judgement.accuracy.item()
    points = (judgement.points + judgement.loss_tr).squeeze(0).double().cpu().numpy()
    interval = shift = None
    if nc.calibration is not None:
        interval = bound(nc.calibration, gap, spread, least=-loss_tr, **options)
        shift = detect_shift(nc.calibration, features(nc, snapshot, judgement).squeeze(0))
    found = Assessment(
        gap=gap,
        loss_tr=loss_tr,
        loss_te=float(points.mean()),
        accuracy_tr=1 - zero_one(snapshot.H_tr, snapshot.Y_tr).mean().item() if nc.labels else None,
        accuracy_te=accuracy if math.isfinite(accuracy) else None,
        points=points,
        spread=spread,
        bound=interval,
        trust=_trust(nc, snapshot),
        unlike=shift,
        warnings=(),
        loss=nc.loss.name,
        training_points=snapshot.X_tr.shape[1],
    )
    return replace(found, warnings=tuple(caveats(nc, snapshot, found)))


def _largest(*tensors: Tensor) -> str:
    return f"{max(tensor.abs().max().item() for tensor in tensors):.3g}"


def _trust(nc: NeuralComplexity, snapshot: Snapshot) -> float | None:
    """Measures trust on some training points, if there are enough to test NC on."""
    Y = snapshot.Y_tr[0]
    classes = snapshot.H_tr.shape[-1] if nc.labels else None
    few = min(TESTED, max(2, NUMBERS // (classes or 1)))
    order = torch.randperm(len(Y), generator=stream(0, "points to test NC on"))
    chosen = (_by_pairs(order, Y.cpu()[order].numpy()) if nc.labels else order)[:few].to(Y.device)
    if len(chosen) < 2 or (nc.labels and len(Y[chosen].unique()) == len(chosen)):
        return None
    return trust(nc, snapshot.X_tr[:, chosen], snapshot.Y_tr[:, chosen], classes=classes).item()


def _by_pairs(order: Tensor, y: NDArray[np.int64]) -> Tensor:
    """Puts two points of each class first, then the next two, as one is tested from the other."""
    groups = pd.Series(y).groupby(y)
    # Those that have no other one of their class come last.
    turn = np.where(groups.transform("size") == 1, len(y), groups.cumcount() // 2)
    return order[np.lexsort((y, turn))]
