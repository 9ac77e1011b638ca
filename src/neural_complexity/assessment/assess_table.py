"""The assessment of a model of a table: with labels, of any metric, and whether data moved."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neural_complexity.assessment.draws import Drawn, draw_targets, how_many
from neural_complexity.assessment.evidence import Checked, Pair, learn_tilt, prediction_powered
from neural_complexity.assessment.metrics import Estimate, Metric, estimate_metrics
from neural_complexity.assessment.moved import detect_move
from neural_complexity.assessment.result import Assessment, Joint
from neural_complexity.assessment.tilt import GRID, Tilt
from neural_complexity.beliefs import tilt_odds
from neural_complexity.losses import zero_one
from neural_complexity.model.judgement import TEST_PART
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.reliability.gap_bounds import Interval
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot

__all__ = ["assess_table", "drawn_losses", "tilt_losses"]

USUAL = {True: ("accuracy", "log_loss"), False: ("r2", "mean_absolute_error")}  # metrics of labels
METHOD = "draws"


@torch.no_grad()
def assess_table(
    nc: NeuralComplexity,
    snapshot: Snapshot,
    *,
    trust: float | None = None,
    pairs: Sequence[Pair] = (),
    metrics: Metric | Sequence[Metric] = (),
    names: Sequence[object] | None = None,
    features: Sequence[str] | None = None,
    confidence: float = 0.95,
) -> Assessment:
    """Predicts losses and metrics, with intervals, and tests whether data moved.

    Args:
        nc: An NC for tables.
        snapshot: One model.
        trust: How far NC understands its training set.
        pairs: What NC believed of labelled points, and what was true; see `evidence`.
        metrics: More of them; see `estimate_metrics`.
        names: Of the classes.
        features: Names of the columns.
        confidence: Of all intervals.
    """
    X_tr, Y_tr, X_te, H_te = (
        t[0] for t in (snapshot.X_tr, snapshot.Y_tr, snapshot.X_te, snapshot.H_te)
    )
    moved = detect_move(X_tr.double().cpu().numpy(), X_te.double().cpu().numpy(), names=features)
    tilt = learn_tilt(nc, list(pairs))
    wider = tilt.new(len(X_tr), None if moved is None else moved.auc)
    tilts = wider.sample(how_many(len(X_te)), stream(0, "tilts"))
    drawn = draw_targets(nc, (X_tr, Y_tr, X_te), H_te, tilts)
    points, told = drawn.losses, drawn.wrong if nc.labels else drawn.losses
    errors, sure = told, dict[str, Any](labels=nc.labels, confidence=confidence)
    if pairs:
        points, errors = tilt_losses(nc, points, H_te, drawn.wrong, tilt)
    _check_finite(points, snapshot)
    loss_tr = nc.loss(snapshot.H_tr, snapshot.Y_tr).mean().item()
    right = 1 - zero_one(snapshot.H_tr, snapshot.Y_tr).mean().item() if nc.labels else None
    return Assessment(
        gap=float(points.mean()) - loss_tr,
        loss_tr=loss_tr,
        loss_te=float(points.mean()),
        accuracy_tr=right,
        accuracy_te=float(1 - errors.mean()) if nc.labels else None,
        points=points.numpy(),
        errors=errors.numpy(),
        spread=max(drawn.variance, torch.finfo(torch.float64).tiny) ** 0.5,
        bound=_bound(nc, H_te, drawn.targets, loss_tr, confidence),
        trust=trust,
        unlike=None,
        metrics=_metrics(nc, H_te, drawn.targets, metrics, names, confidence),
        moved=moved,
        checked=_check(nc, pairs, tilt),
        powered=prediction_powered(pairs, told, **sure),
        joint=_joint(nc, H_te, drawn, wider),
        loss=nc.loss.name,
        training_points=len(X_tr),
    )


def _check_finite(points: Tensor, snapshot: Snapshot) -> None:
    if not points.isfinite().all():
        largest = ", ".join(
            f"{name} up to {t.abs().max():.3g}" for name, t in vars(snapshot).items()
        )
        raise ValueError(f"losses of predictions must be finite numbers, got {largest}")


def _bound(
    nc: NeuralComplexity, H: Tensor, targets: Tensor, loss_tr: float, confidence: float
) -> Interval:
    """Returns where the gap is in most draws."""
    tail, each = (1 - confidence) / 2, drawn_losses(nc, H, targets).mean(dim=1)  # (draws,)
    ends = torch.quantile(each, torch.tensor([tail, 1 - tail], dtype=each.dtype))
    low, high = (float(end) - loss_tr for end in ends)
    note = "of targets drawn from NC's belief, as far off as it was on tables for development"
    return Interval(low, high, confidence, METHOD, note)


def _metrics(
    nc: NeuralComplexity,
    H: Tensor,
    targets: Tensor,
    metrics: Metric | Sequence[Metric],
    names: Sequence[object] | None,
    confidence: float,
) -> dict[str, Estimate]:
    """Estimates the usual metrics, and others that are asked for."""
    classes = None
    if nc.labels:
        classes = np.asarray(list(names) if names is not None else range(H.shape[1]))
    told = (H.double().softmax(dim=1) if nc.labels else H.double().squeeze(1)).cpu().numpy()
    how: Any = {"classes": classes, "confidence": confidence, "usual": USUAL[nc.labels]}
    return estimate_metrics(metrics, targets.numpy(), told, **how)


def drawn_losses(nc: NeuralComplexity, H: Tensor, targets: Tensor) -> Tensor:
    """Computes NC's loss of predictions (N, C) at drawn targets, (draws, N)."""
    if not nc.labels:
        return (targets.double() - H.double().cpu().squeeze(1)).square()
    return _by_class(nc, H).gather(1, targets.T).T


def _by_class(nc: NeuralComplexity, H: Tensor) -> Tensor:
    """Computes the loss of predictions (N, C) at each class, (N, C)."""
    N, C = H.shape
    Y = torch.arange(C, device=H.device).expand(N, C)
    return torch.stack([nc.loss(H[None], Y[None, :, c])[0] for c in range(C)], 1).double().cpu()


def _joint(nc: NeuralComplexity, H: Tensor, drawn: Drawn, tilt: Tilt) -> Joint:
    """Returns what a comparison with other models needs."""
    losses = drawn_losses(nc, H, drawn.common).mean(dim=1)
    return Joint(losses.numpy(), _by_tilt(nc, H, drawn).numpy(), tilt.weights.numpy())


def _by_tilt(nc: NeuralComplexity, H: Tensor, drawn: Drawn) -> Tensor:
    """Computes the expected mean loss at each tilt of `GRID`, (G,)."""
    mean = drawn.losses.mean()
    if not nc.labels:
        return mean * GRID.exp()
    own, other = _right_and_wrong(nc, drawn.losses, H, drawn.wrong)
    # In parts: points times tilts may be many.
    parts = zip(*(t.split(TEST_PART) for t in (own, other, drawn.wrong)), strict=True)
    found = torch.zeros_like(GRID)
    for right, wrong, chance in parts:
        now = tilt_odds(chance, GRID)
        found += ((1 - now) * right.unsqueeze(1) + now * wrong.unsqueeze(1)).sum(dim=0)
    return found / len(H)


def _right_and_wrong(
    nc: NeuralComplexity, points: Tensor, H: Tensor, wrong: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the expected loss where the model's answer is right, and where not, (N,) each."""
    own = _by_class(nc, H).gather(1, H.argmax(dim=1, keepdim=True).cpu()).squeeze(1)
    other = (points - (1 - wrong) * own) / wrong.clamp(min=torch.finfo(wrong.dtype).tiny)
    return own, other.clamp(min=0)


def tilt_losses(
    nc: NeuralComplexity, points: Tensor, H: Tensor, wrong: Tensor, tilt: Tilt
) -> tuple[Tensor, Tensor]:
    """Moves predicted losses, (N,), by a tilt; returns also the errors that are expected, (N,).

    These are how likely the model is to be wrong, or squared errors.

    Args:
        nc: Whose loss it is.
        points: Expected losses, (N,).
        H: The model's predictions, (N, C).
        wrong: How likely it is to be wrong, (N,), if targets are labels.
        tilt: Of the model.
    """
    if not nc.labels:
        now = _tilt_errors(nc, points, tilt)
        return now, now
    own, other = _right_and_wrong(nc, points, H, wrong)  # which the tilt does not change
    now = _tilt_errors(nc, wrong, tilt)
    return (1 - now) * own + now * other, now


def _tilt_errors(nc: NeuralComplexity, errors: Tensor, tilt: Tilt) -> Tensor:
    """Moves how likely a model is to be wrong, or its squared errors, (N,), by a tilt."""
    return tilt.mean(tilt_odds(errors, GRID)) if nc.labels else errors * tilt.mean(GRID).exp()


def _check(nc: NeuralComplexity, pairs: Sequence[Pair], tilt: Tilt) -> Checked | None:
    """Returns how NC did at labelled points, if there are any."""
    if not pairs:
        return None
    told, true = (torch.cat(side) for side in zip(*pairs, strict=True))
    errors = _tilt_errors(nc, told, tilt).numpy()
    return Checked(len(told), float(told.mean()), float(true.mean()), errors, nc.labels)
