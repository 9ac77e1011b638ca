"""The assessment of one model: how badly it will generalize, where, and how sure that is."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import sampler

from neural_complexity.assessment.assess_table import assess_table
from neural_complexity.assessment.draws import parts_of
from neural_complexity.assessment.evidence import Labelled, gather_labelled
from neural_complexity.assessment.prepare import (
    Options,
    check_columns,
    check_sets,
    choose_nc,
    read_points,
    with_probabilities,
)
from neural_complexity.assessment.result import Assessment
from neural_complexity.assessment.slices import find_slices
from neural_complexity.convert import arrays_in as given
from neural_complexity.convert.frames_in import as_frame
from neural_complexity.losses import zero_one
from neural_complexity.model.judgement import feature_names, features, judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.regularizers.nc import trust
from neural_complexity.reliability.calibration import detect_shift
from neural_complexity.reliability.gap_bounds import bound, check_options
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.workspace import fingerprint

__all__ = ["assess", "assess_predictions"]

TESTED = 256  # training points that trust is measured on, at most, and
NUMBERS = 50_000  # points times classes: both bound memory
SHUFFLERS = (sampler.RandomSampler, sampler.SubsetRandomSampler, sampler.WeightedRandomSampler)
# Between families of tasks in the experiment `harm`, NC's gaps were no use (R2 below 0) where its
# mean trust was 0.18 or less, and of use where it was 0.49 or more.
LOW_TRUST = 0.3
REMEMBERED = 32  # sets of training points whose trust is kept
_trusted: dict[str, float] = {}  # by fingerprint
SIGNIFICANT = 0.05  # p-values below it are warned of
PROBABILITIES = (
    "The predictions look like probabilities, but NC takes them for logits: pass their logarithm."
)
SHUFFLED = (
    "X_te is a DataLoader that shuffles: the indices of its points are those of this one pass. Use "
    "a fixed order to find the worst points again."
)


def assess(
    model: Any,
    X_tr: object,
    y_tr: object = None,
    X_te: object = None,
    *,
    nc: NeuralComplexity | str | Path | None = None,
    **options: Unpack[Options],
) -> Assessment:
    """Predicts how badly a trained model generalizes, from its training set and unlabelled points.

    The model predicts for both sets and is left as it is: of a module a copy predicts, which shares
    its parameters, and random numbers of PyTorch are restored. NC judges logits, or real outputs;
    predictions that look like probabilities are warned of.

    Args:
        model: Any callable that maps a tensor of points to logits, (points, C), or real outputs; a
            `torch.nn.Module`, which is called in evaluation mode, in parts, with numbers of its
            parameters' type and on their device; or a fitted scikit-learn estimator, pipeline or
            search: a classifier with `predict_proba`, or with `decision_function`, which is
            calibrated on the training points, or a regressor. Points have the layout in which they
            are given.
        X_tr: The training inputs: an array, a tensor, nested lists or a data frame, of which an NC
            for tables reads columns of any kind; or a `Dataset` or `DataLoader` of pairs (x, y),
            and then y_tr is `None`.
        y_tr: Their targets: labels, (points,), or real numbers, (points,) or (points, C).
        X_te: The test inputs, likewise; labels that come with them are ignored.
        nc: The gap predictor, or the path of a saved one, or the name of one that ships; the one
            for tables that fits the targets if `None`.
        options: See `Options`.

    Raises:
        TypeError: If something is of a kind that cannot be used.
        ValueError: If something has a wrong size or value, or the model cannot predict.
    """
    check_sets(X_tr, y_tr, X_te)
    samplers = (getattr(X_te, "sampler", None), getattr(X_te, "batch_sampler", None))
    drawn = (*samplers, getattr(samplers[1], "sampler", None))
    (X_tr, y_tr), (X_te, _) = given.pair("X_tr", X_tr, y_tr), given.pair("X_te", X_te)
    if y_tr is None:
        raise TypeError("y_tr must be the training targets, got None")
    nc = choose_nc(nc, model, y_tr)
    points = read_points(nc, X_tr, X_te)
    original = model  # which folds fit again
    model, first = with_probabilities(model, X_tr, y_tr) if nc.labels else (model, ())
    sets, like = {"X_tr": X_tr, "X_te": X_te}.items(), nc.x_mean
    H_tr, H_te = (given.predict(name, model, X, labels=nc.labels, like=like) for name, X in sets)
    own: dict[str, Any] = {**options}
    if own.get("classes") is None and nc.labels:
        own["classes"] = given.columns_of(model)
    own["features"] = [str(name) for name in getattr(X_tr, "columns", ())] or None
    asked = {name: own.pop(name, None) for name in ("folds", "held_out", "out_of_fold")}
    if any(value is not None for value in asked.values()):
        asked["classes"] = own["classes"] if nc.labels else None
        own["labelled"] = gather_labelled(nc, original, X_tr, y_tr, **asked)
    found = _assess_points(nc, points[0], y_tr, H_tr, points[1], H_te, **own)
    last = [SHUFFLED] if any(isinstance(one, SHUFFLERS) for one in drawn) else []
    return replace(_with_rows(found, X_te), warnings=(*first, *found.warnings, *last))


def _with_rows(found: Assessment, X_te: Any) -> Assessment:
    """Adds where the model is expected to fail: slices, and the values of the worst rows."""
    frame = None if found.errors is None else as_frame(X_te)
    if frame is None or found.errors is None:
        return found
    return replace(found, slices=find_slices(frame, found.errors), inputs=frame.iloc[found.worst()])


def assess_predictions(
    nc: NeuralComplexity,
    X_tr: object,
    y_tr: object,
    H_tr: object,
    X_te: object,
    H_te: object,
    **options: Any,
) -> Assessment:
    """Does the same as `assess` for a model that lives elsewhere, from its predictions.

    These are H_tr, (M, C), for X_tr, and H_te, (N, C), for X_te: logits if targets are labels.
    Options are `classes`, `confidence`, `method` and `metrics` of `assess`.
    """
    (X_tr, y_tr), (X_te, _) = given.pair("X_tr", X_tr, y_tr), given.pair("X_te", X_te)
    points = read_points(nc, X_tr, X_te)
    return _assess_points(nc, points[0], y_tr, H_tr, points[1], H_te, **options)


def _assess_points(
    nc: NeuralComplexity,
    X_tr: Tensor,
    y_tr: object,
    H_tr: object,
    X_te: Tensor,
    H_te: object,
    *,
    classes: Sequence[Any] | None = None,
    **own: Any,
) -> Assessment:
    """Does the same for inputs that are checked."""
    options = {name: own[name] for name in ("confidence", "method") if name in own}
    check_options(**options)
    if classes is not None and not nc.labels:
        raise ValueError("classes must be None where NC judges real targets, got classes")
    if not nc.architecture.for_tables and (own.get("metrics") or own.get("labelled")):
        wanted = "left out unless nc is for tables"
        raise ValueError(f"metrics, folds, held_out and out_of_fold must be {wanted}, got one")
    X_tr, X_te = X_tr.to(nc.device), X_te.to(nc.device)
    place: Any = {"dtype": nc.x_mean.dtype, "device": nc.device, "labels": False}
    place["outputs"] = None if nc.labels else nc.outputs
    H_tr = given.targets("H_tr", H_tr, points=len(X_tr), **place)
    H_te = given.targets("H_te", H_te, points=len(X_te), **place)
    check_columns(H_tr, H_te)
    first = []
    if nc.labels:
        if H_tr.shape[1] > 1 and all(map(given.looks_like_shares, (H_tr, H_te))):
            first = [PROBABILITIES]
        Y_tr, H_tr, H_te = _arrange(nc, y_tr, H_tr, H_te, classes)
    else:
        Y_tr = given.targets("y_tr", y_tr, points=len(X_tr), **place)
    snapshot = Snapshot(*(t[None] for t in (X_tr, Y_tr, H_tr, X_te, H_te)))
    if not nc.loss(snapshot.H_tr, snapshot.Y_tr).mean().isfinite():
        raise ValueError("the model's loss on X_tr must be a finite number, got one too large")
    if not nc.architecture.for_tables:
        found = _judge(nc, snapshot, **options)
    else:
        labelled, confidence = own.get("labelled") or Labelled(), options.get("confidence", 0.95)
        found = assess_table(
            nc,
            snapshot,
            trust=_trust(nc, snapshot),
            pairs=labelled.compare(nc, snapshot, classes),
            metrics=own.get("metrics") or (),
            names=classes,
            features=own.get("features"),
            confidence=confidence,
        )
        found = replace(found, cross_validated=labelled.score(nc, snapshot, confidence))
    return replace(found, warnings=(*first, *_doubts(nc, snapshot, found)))


def _arrange(
    nc: NeuralComplexity, y_tr: object, H_tr: Tensor, H_te: Tensor, columns: Sequence[Any] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns indices of NC's classes, (M,), and logits with their columns in that order."""
    names = nc.card.classes
    if names is None and nc.symmetric:  # one that knows no names takes any
        names = None if columns is None else tuple(columns)
    count = H_te.shape[1] if nc.symmetric else nc.outputs
    known: Sequence[Any] = range(count) if names is None else names
    own = known if columns is None else columns
    H_tr, H_te = (given.in_order(n, H, own, known) for n, H in (("H_tr", H_tr), ("H_te", H_te)))
    y_tr = y_tr if names is None else given.encode(y_tr, known, name="y_tr")
    Y_tr = given.targets("y_tr", y_tr, labels=True, points=len(H_tr), device=H_tr.device)
    if len(known) == 1 and Y_tr.any():
        wanted, got = "one column for each class", f"one column for several labels{given.SINGLE}"
        raise ValueError(f"predictions must have {wanted}, got {got}")
    return given.targets("y_tr", Y_tr, labels=True, outputs=len(known)), H_tr, H_te


def _judge(nc: NeuralComplexity, snapshot: Snapshot, **options: Any) -> Assessment:
    """Judges one learner, and how far the judgement can be relied on."""
    judgement = judge(nc, snapshot)
    each = {name: getattr(judgement, name).item() for name in ("gap", "loss_tr", "spread")}
    if not math.isfinite(each["gap"]):
        top = {name: t.abs().max().item() for name, t in vars(snapshot).items()}
        x, h = max(top["X_tr"], top["X_te"]), max(top["H_tr"], top["H_te"])
        raise ValueError(
            "inputs and predictions must be of a size that losses can be computed from, got inputs "
            f"up to {x:.3g} and predictions up to {h:.3g}"
        )
    points = (judgement.points + judgement.loss_tr).squeeze(0).double().cpu().numpy()
    accuracy, interval, shift = judgement.accuracy.item(), None, None
    if (known := nc.calibration) is not None:
        interval = bound(known, each["gap"], each["spread"], least=-each["loss_tr"], **options)
        seen = features(nc, snapshot, judgement).squeeze(0)
        shift = detect_shift(known.select(feature_names(nc)), seen)
    return Assessment(
        **each,
        loss_te=float(points.mean()),
        accuracy_tr=1 - zero_one(snapshot.H_tr, snapshot.Y_tr).mean().item() if nc.labels else None,
        accuracy_te=accuracy if math.isfinite(accuracy) else None,
        points=points,
        bound=interval,
        trust=_trust(nc, snapshot),
        unlike=shift,
        loss=nc.loss.name,
        training_points=snapshot.X_tr.shape[1],
    )


def _trust(nc: NeuralComplexity, snapshot: Snapshot) -> float | None:
    """Measures trust on some training points, if there are enough to test NC on."""
    Y = snapshot.Y_tr[0]
    classes = snapshot.H_tr.shape[-1] if nc.labels else None
    order = torch.randperm(len(Y), generator=stream(0, "points to test NC on"))
    if nc.labels:
        # Two points of each class come first, then the next two, as one is tested from the other;
        # those that have no other one of their class come last.
        y = Y.cpu()[order].numpy()
        groups = pd.Series(y).groupby(y)
        turn = np.where(groups.transform("size") == 1, len(y), groups.cumcount() // 2)
        order = order[np.lexsort((y, turn))]
    chosen = order[: min(TESTED, max(2, NUMBERS // (classes or 1)))].to(Y.device)
    if len(chosen) < 2 or (nc.labels and len(Y[chosen].unique()) == len(chosen)):
        return None
    # Of the same training points there may be many models, or chunks of new points.
    known = snapshot.X_tr[:, chosen], snapshot.Y_tr[:, chosen]
    key = fingerprint(nc.architecture, nc.state_dict(), known, classes)
    if key not in _trusted:
        _trusted[key] = trust(nc, *known, classes=classes).item()
    while len(_trusted) > REMEMBERED:
        _trusted.pop(next(iter(_trusted)), None)
    return _trusted.get(key)


def _doubts(nc: NeuralComplexity, snapshot: Snapshot, found: Assessment) -> Iterator[str]:
    """Yields what to keep in mind about an assessment of one learner."""
    report, (M, C), N = nc.card.report, snapshot.H_tr.shape[1:], snapshot.H_te.shape[1]
    if report.verdict and not report.beats_the_mean_gap:
        yield f"When it was made: {report.verdict}"
    for kind in report.kinds if report.beats_the_mean_gap else ():
        within = kind["what"] == "training loss" and kind["from"] <= found.loss_tr <= kind["to"]
        if within and abs(kind["bias"]) > max(abs(found.gap), kind["mean_error"]) / 2:
            yield (
                f"For learners of a training loss from {kind['from']:.3g} to {kind['to']:.3g} NC's "
                f"gaps were too {'low' if kind['bias'] < 0 else 'large'} by "
                f"{abs(kind['bias']):.3g} on average when it was made."
            )
            break
    if found.trust is None:
        yield (
            f"Trust cannot be measured on {M} training point{'s' * (M != 1)}: at least two points "
            "of one class are needed."
        )
    elif found.trust < LOW_TRUST and nc.architecture.for_tables:
        yield (
            f"These targets are hard to predict from the training rows (trust {found.trust:.2f}), "
            "which are few, or noisy. NC takes that into account as far as it can."
        )
    elif found.trust < LOW_TRUST:
        yield (
            f"NC does not understand this training set (trust {found.trust:.2f}): its predictions "
            "may be far off. NC was made for other data, or for data on another scale, or was "
            "trained too briefly, or the inputs say nothing about these targets."
        )
    if nc.architecture.for_tables and nc.card.context_size < M:
        parts, size = len(parts_of(nc, M, N)), nc.card.context_size
        told = f"{parts} parts of them" if parts > 1 else "a part of them"
        yield f"NC sees {size} training rows at a time: it was asked with {told}, not with all {M}."
    # The bound and the test of an NC for tables need no learners to be calibrated on.
    yield from () if nc.architecture.for_tables else _doubts_of_bound(nc, found, M, N)
    known = int(nc.card.knows(snapshot.X_te[0]).sum())
    if known:
        yield (
            f"NC was trained on the inputs of {known} of the {N} test points and may know their "
            "labels: its predictions for these say nothing about new points."
        )
    if found.accuracy_tr is not None and found.accuracy_tr < 1 / C:
        yield (
            f"The model gets {100 * found.accuracy_tr:.1f} % of its training points right, fewer "
            "than by chance: check that its columns are in the order of NC's classes (see "
            "`classes`)."
        )


def _doubts_of_bound(nc: NeuralComplexity, found: Assessment, M: int, N: int) -> Iterator[str]:
    """Yields what to keep in mind about the bound, if there is one."""
    if nc.calibration is None or found.bound is None or found.unlike is None:
        yield (
            "NC is not calibrated: there is no bound and no test for distribution shift. "
            "nc.calibrate with held-out learners adds both."
        )
    else:
        n, notes = len(nc.calibration), [found.bound.note if math.isinf(found.bound.high) else ""]
        if found.unlike.p_value < SIGNIFICANT:
            notes.append(
                "distribution shift: NC is less sure of the model, or its data differs from what "
                f"NC was calibrated on, so the bound may not hold: {found.unlike.note}"
            )
        if 1 / (n + 1) >= SIGNIFICANT:  # the least p-value there is
            learners = f"{n} learner{'s' * (n != 1)}"
            notes.append(f"NC was calibrated on {learners}, too few to test for distribution shift")
        notes.append(nc.calibration.beyond(M, N))
        yield from (f"{note[0].upper()}{note[1:]}." for note in notes if note)
