"""Asking NC about one model: how badly it will generalize, where, and how sure that is."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

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
from neural_complexity.model.judgement import Judgement, features, judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.model.training_points import learned_from
from neural_complexity.regularizers.trust import trust
from neural_complexity.reliability.bounds import METHODS, Interval, Method, bound
from neural_complexity.reliability.shift import Likeness, unlike
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot

__all__ = ["assess", "assess_predictions"]

# Between families of tasks in the experiment `harm`, NC's gaps were no use (R2 below 0) where its
# mean trust was 0.18 or less, and of use where it was 0.49 or more.
LOW_TRUST = 0.3
UNUSUAL = 0.05  # p-values below it are told
TESTED = 256  # training points that trust is found out on, at most, and
NUMBERS = 50_000  # points times classes: both bound memory
UNCALIBRATED = (
    "NC is not calibrated, so there is no bound and no test whether the model is unlike those that "
    "NC knows: nc.calibrate with held-out learners gives both."
)
SHUFFLERS = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
SHUFFLED = (
    "X_te is a DataLoader that shuffles: its points are numbered in the order in which they came "
    "this once. Give them in a fixed order to find the worst ones again."
)


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

    The model is asked about both sets and left as it was: modes, buffers and random numbers of
    PyTorch are restored. What NC judges are logits, or real outputs; that a model returns
    probabilities where logits are wanted cannot be told for certain, so it is warned of.

    Args:
        nc: The gap predictor.
        model: Any callable that maps a tensor of points to logits, (points, C), or real outputs; a
            `torch.nn.Module`, which is asked in evaluation mode, in parts, with numbers of its
            parameters' type and on their device; or a fitted scikit-learn estimator, a classifier
            with `predict_proba` or a regressor. Points have the layout in which they are given.
        X_tr: The training inputs: an array, a tensor, nested lists or a data frame; or a `Dataset`
            or `DataLoader` of pairs (x, y), and then y_tr is `None`.
        y_tr: Their targets: labels, (points,), or real numbers, (points,) or (points, C).
        X_te: The test inputs, likewise; labels that come with them are not looked at.
        classes: The class of each column of the model's predictions; if `None`, what an estimator
            says, or NC's own classes. A class of NC that has no column counts as next to
            impossible.
        confidence: How often the bound should hold.
        method: Of the bound, see `bounds.bound`.

    Returns:
        NC's opinion.

    Raises:
        TypeError: If something is of a kind that cannot be used.
        ValueError: If something has a wrong size or value, or the model cannot be asked.
    """
    if isinstance(y_tr, Dataset | DataLoader):
        raise TypeError(
            f"y_tr must be the training targets, got a {type(y_tr).__name__}: test inputs are X_te"
        )
    _check_columns(X_tr, X_te)
    X_tr, y_tr = pair("X_tr", X_tr, y_tr)
    if y_tr is None:
        raise TypeError("y_tr must be the training targets, got None")
    if X_te is None:
        raise TypeError("X_te must be test inputs, which need no labels, got None")
    shuffled = isinstance(X_te, DataLoader) and _shuffles(X_te)
    X_te, _ = pair("X_te", X_te)
    like = nc.x_mean
    shape = nc.shape
    for name, X in (("X_tr", X_tr), ("X_te", X_te)):  # before the model stumbles over it
        inputs(name, X, shape=shape, dtype=like.dtype)
    H_tr, H_te = (
        predict(name, model, X, labels=nc.labels, like=like)
        for name, X in (("X_tr", X_tr), ("X_te", X_te))
    )
    found = assess_predictions(
        nc,
        X_tr,
        y_tr,
        H_tr,
        X_te,
        H_te,
        classes=columns_of(model) if classes is None and nc.labels else classes,
        confidence=confidence,
        method=method,
    )
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
    confidence: float = 0.95,
    method: Method = "conformal",
) -> Assessment:
    """Does the same as `assess` for a model that lives elsewhere, from its predictions.

    Args:
        nc: The gap predictor.
        X_tr: As in `assess`.
        y_tr: As in `assess`.
        H_tr: The model's predictions for X_tr, (M, C): logits if targets are labels.
        X_te: As in `assess`.
        H_te: The model's predictions for X_te, (N, C).
        classes: As in `assess`.
        confidence: As in `assess`.
        method: As in `assess`.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method}")
    if classes is not None and not nc.labels:
        raise ValueError("classes must be None where NC judges real targets, got classes")
    (X_tr, y_tr), (X_te, _) = pair("X_tr", X_tr, y_tr), pair("X_te", X_te)
    like = nc.x_mean
    X_tr, X_te = (
        inputs(name, X, shape=nc.shape, dtype=like.dtype, device=like.device)
        for name, X in (("X_tr", X_tr), ("X_te", X_te))
    )
    M = len(X_tr)
    H_tr = check_predictions("H_tr", numbers("H_tr", H_tr).to(like), M)
    H_te = check_predictions("H_te", numbers("H_te", H_te).to(like), len(X_te))
    shares = nc.labels and H_tr.shape[1] > 1 and looks_like_shares(torch.cat([H_tr, H_te]))
    if nc.labels:
        known = _classes(nc, H_te, classes)
        columns = known if classes is None else classes
        H_tr, H_te = (
            in_order(name, H, columns, known) for name, H in (("H_tr", H_tr), ("H_te", H_te))
        )
        y_tr = _labels(nc, y_tr, known, classes, M).to(like.device)
    else:
        for name, H in (("H_tr", H_tr), ("H_te", H_te)):
            if H.shape[1] != nc.outputs:
                raise ValueError(
                    f"{name} must have {nc.outputs} columns like NC's targets, got {H.shape[1]}"
                )
        y_tr = targets(
            "y_tr",
            y_tr,
            labels=False,
            outputs=nc.outputs,
            points=M,
            dtype=like.dtype,
            device=like.device,
        )
    snapshot = Snapshot(*(t.unsqueeze(0) for t in (X_tr, y_tr, H_tr, X_te, H_te)))
    return _opinion(nc, snapshot, confidence, method, shares=shares)


def _check_columns(X_tr: object, X_te: object) -> None:
    """Refuses data frames of one thing whose columns are in different places."""
    frames = [getattr(X, "columns", None) for X in (X_tr, X_te)]
    if any(columns is None for columns in frames):
        return
    known, new = (list(columns) for columns in frames if columns is not None)
    if known != new and len(known) == len(new):
        place = next(i for i, (a, b) in enumerate(zip(known, new, strict=True)) if a != b)
        raise ValueError(
            f"X_te must have the columns of X_tr in their order, got {new[place]} in the place of "
            f"{known[place]}"
        )


def _shuffles(loader: DataLoader[Any]) -> bool:
    samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    return any(isinstance(sampler, SHUFFLERS) for sampler in samplers)


def _classes(nc: NeuralComplexity, H: Tensor, columns: Sequence[Any] | None) -> Sequence[Any]:
    """Gives the classes in NC's order; one that knows no names takes any."""
    names = nc.provenance.get("classes")
    if names is not None:
        return list(names)
    if not nc.symmetric:
        return range(nc.outputs)
    return range(H.shape[1]) if columns is None else list(columns)


def _labels(
    nc: NeuralComplexity, y: object, known: Sequence[Any], columns: object, points: int
) -> Tensor:
    """Gives labels as numbers of NC's classes, (M,)."""
    if nc.provenance.get("classes") is None and (columns is None or not nc.symmetric):
        numbered = targets("y_tr", y, labels=True, points=points)
        if len(known) == 1 and numbered.any():
            raise ValueError(
                "predictions must have one column for each class, got one column for several "
                "labels: a single logit z of two classes is the columns 0 and z"
            )
        return targets("y_tr", numbered, labels=True, outputs=len(known))
    numbered = encode(y, known, name="y_tr")
    return targets("y_tr", numbered, labels=True, points=points)


def _opinion(
    nc: NeuralComplexity, snapshot: Snapshot, confidence: float, method: Method, *, shares: bool
) -> Assessment:
    """Asks NC about one learner, and how far its answer can be relied on."""
    judgement = judge(nc, snapshot)
    gap, loss_tr = judgement.gap.item(), judgement.loss_tr.item()
    if not math.isfinite(gap):
        raise ValueError(
            "inputs and predictions must be of a size that losses can be computed from, got "
            f"inputs up to {_size(snapshot.X_tr, snapshot.X_te)} and predictions up to "
            f"{_size(snapshot.H_tr, snapshot.H_te)}"
        )
    M, right = snapshot.X_tr.shape[1], judgement.accuracy.item()
    measured = 1 - zero_one(snapshot.H_tr, snapshot.Y_tr).mean().item() if nc.labels else None
    trusted = _trust(nc, snapshot)
    interval, like, reasons = _reliability(nc, snapshot, judgement, confidence, method)
    warnings = [*_tested(nc, loss_tr, gap), *_doubts(trusted, M), *reasons]
    if shares:
        warnings.insert(
            0,
            "The predictions look like probabilities, but NC takes them for logits: give their "
            "logarithm.",
        )
    N, known = snapshot.X_te.shape[1], int(learned_from(nc, snapshot.X_te[0]).sum())
    if known:
        warnings.append(
            f"NC learned from points with the inputs of {known} of the {N} test points and may "
            "know their labels by heart: what it says about these says nothing about new ones."
        )
    if nc.labels and measured is not None and measured < 1 / snapshot.H_tr.shape[-1]:
        warnings.append(
            f"The model gets {100 * measured:.1f} % of its training points right, fewer than by "
            "chance: are its columns in the order of NC's classes? See `classes`."
        )
    points = (judgement.points + judgement.loss_tr).squeeze(0).double().cpu().numpy()
    return Assessment(
        gap=gap,
        loss_tr=loss_tr,
        loss_te=float(points.mean()),
        accuracy_tr=measured,
        accuracy_te=right if math.isfinite(right) else None,
        points=points,
        spread=judgement.spread.item(),
        bound=interval,
        trust=trusted,
        unlike=like,
        warnings=tuple(warnings),
        loss=nc.loss.name,
        training_points=M,
    )


def _size(*tensors: Tensor) -> str:
    return f"{max(tensor.abs().max().item() for tensor in tensors):.3g}"


def _trust(nc: NeuralComplexity, snapshot: Snapshot) -> float | None:
    """Finds out on some training points how far NC understands them, if that can be."""
    Y = snapshot.Y_tr[0]
    classes = snapshot.H_tr.shape[-1] if nc.labels else None
    few = min(TESTED, max(2, NUMBERS // (classes or 1)))
    chosen = _some(Y, few, labels=nc.labels).to(Y.device)
    if len(chosen) < 2 or (nc.labels and len(Y[chosen].unique()) == len(chosen)):
        return None
    return trust(nc, snapshot.X_tr[:, chosen], snapshot.Y_tr[:, chosen], classes=classes).item()


def _some(Y: Tensor, few: int, *, labels: bool) -> Tensor:
    """Chooses points at random, by twos of a class, as one is tested from the other."""
    order = torch.randperm(len(Y), generator=stream(0, "points to test NC on"))
    if not labels:
        return order[:few]
    y = Y.cpu()[order]
    counts = y.bincount()
    by_class = y.argsort(stable=True)
    start = counts.cumsum(0) - counts
    rank = torch.empty_like(y)
    rank[by_class] = torch.arange(len(y)) - start[y[by_class]]  # of a point in its class
    # Those that have no other one of their class come last.
    turn = torch.where(counts[y] == 1, len(y), rank // 2)
    turns = torch.stack([turn, y], dim=1)
    return order[np.lexsort((turns[:, 1].numpy(), turns[:, 0].numpy()))][:few]


def _tested(nc: NeuralComplexity, loss_tr: float, gap: float) -> list[str]:
    """Says what went wrong when `meta_learn` tested NC, where it concerns this model."""
    report = nc.provenance.get("report", {})
    if not report.get("beats_the_mean_gap", True):
        return [f"When it was made: {report['verdict']}"]
    for kind in report.get("kinds", ()):
        within = kind["what"] == "training loss" and kind["from"] <= loss_tr <= kind["to"]
        if within and abs(kind["bias"]) > max(abs(gap), kind["mean_error"]) / 2:
            how = "low" if kind["bias"] < 0 else "large"
            return [
                f"For learners of a training loss from {kind['from']:.3g} to {kind['to']:.3g} NC's "
                f"gaps were too {how} by {abs(kind['bias']):.3g} on average when it was made."
            ]
    return []


def _doubts(trusted: float | None, M: int) -> list[str]:
    if trusted is None:
        return [
            "How far NC understands this training set cannot be found out from its "
            f"{_counted(M, 'point')}: two of one class are the least."
        ]
    if trusted < LOW_TRUST:
        return [
            f"NC does not understand this training set (trust {trusted:.2f}): its numbers may be "
            "far off. It was made for other data, or data on another scale, or too briefly, or "
            "nobody could tell these targets from the inputs."
        ]
    return []


def _reliability(
    nc: NeuralComplexity,
    snapshot: Snapshot,
    judgement: Judgement,
    confidence: float,
    method: Method,
) -> tuple[Interval | None, Likeness | None, list[str]]:
    """Gives the bound of the gap, whether the model is like those calibrated on, and doubts."""
    calibration = nc.calibration
    if calibration is None:
        return None, None, [UNCALIBRATED]
    interval = bound(
        calibration,
        judgement.gap.item(),
        judgement.spread.item(),
        confidence=confidence,
        method=method,
        least=-judgement.loss_tr.item(),
    )
    like = unlike(calibration, features(nc, snapshot, judgement).squeeze(0))
    doubts = []
    if math.isinf(interval.high):
        doubts.append(_sentence(interval.note))
    if like.p_value < UNUSUAL:
        doubts.append(
            "The model or its data is unlike what NC was calibrated on, so that the bound need not "
            f"hold: {like.note}."
        )
    if 1 / (len(calibration) + 1) >= UNUSUAL:  # the least p-value there is
        doubts.append(
            f"NC was calibrated on {_counted(len(calibration), 'learner')}, too few to tell "
            "whether this model is unlike them."
        )
    beyond = calibration.beyond(snapshot.X_tr.shape[1], snapshot.X_te.shape[1])
    if beyond:
        doubts.append(_sentence(beyond))
    return interval, like, doubts


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _sentence(note: str) -> str:
    return f"{note[:1].upper()}{note[1:]}."
