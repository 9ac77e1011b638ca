"""What more can be said of a model of a table: with labels, of any metric, and if data moved."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from neural_complexity.assessment.draws import Drawn, draw_targets, how_many
from neural_complexity.assessment.evidence import Pair, learn_tilt
from neural_complexity.assessment.metrics import Metric, estimate_metrics
from neural_complexity.assessment.moved import detect_move
from neural_complexity.assessment.result import Assessment
from neural_complexity.assessment.tilt import GRID, Tilt
from neural_complexity.losses import tilt_odds
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.reliability.gap_bounds import Interval
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot

__all__ = ["refine", "tilt_losses"]

USUAL = {True: ("accuracy", "log_loss"), False: ("r2", "mean_absolute_error")}  # metrics of labels
METHOD = "draws"


@torch.no_grad()
def refine(
    nc: NeuralComplexity,
    snapshot: Snapshot,
    found: Assessment,
    *,
    pairs: Sequence[Pair] = (),
    metrics: Sequence[Metric] = (),
    names: Sequence[object] | None = None,
    features: Sequence[str] | None = None,
    confidence: float = 0.95,
) -> Assessment:
    """Adds metrics with intervals, a bound and a test for moved data to an assessment.

    Args:
        nc: An NC for tables.
        snapshot: One model.
        found: What NC says of it by itself.
        pairs: What NC believed of labelled points that the model did not learn from, and what was
            true there; see `evidence`. Estimates are moved by what they say.
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
    found = _tilted(nc, found, H_te, drawn, tilt) if pairs else found
    losses = _losses(nc, H_te, drawn.targets).mean(dim=1)  # (draws,)
    tail = (1 - confidence) / 2
    ends = torch.quantile(losses, torch.tensor([tail, 1 - tail], dtype=losses.dtype))
    low, high = (float(end) - found.loss_tr for end in ends)
    note = "of targets drawn from NC's belief, as far off as it was on tables for development"
    classes = None
    if nc.labels:
        classes = np.asarray(list(names) if names is not None else range(H_te.shape[1]))
    told = H_te.double().softmax(dim=1) if nc.labels else H_te.double().squeeze(1)
    asked = list(dict.fromkeys([*USUAL[nc.labels], *metrics]))
    estimates = estimate_metrics(
        asked, drawn.targets.numpy(), told.cpu().numpy(), classes=classes, confidence=confidence
    )
    interval = Interval(low, high, confidence, METHOD, note)
    return replace(found, metrics=estimates, moved=moved, bound=interval)


def _losses(nc: NeuralComplexity, H: Tensor, targets: Tensor) -> Tensor:
    """Computes NC's loss of predictions (N, C) at drawn targets, (draws, N)."""
    if not nc.labels:
        return (targets.double() - H.double().cpu().squeeze(1)).square()
    return _by_class(nc, H).gather(1, targets.T).T


def _by_class(nc: NeuralComplexity, H: Tensor) -> Tensor:
    """Computes the loss of predictions (N, C) at each class, (N, C)."""
    N, C = H.shape
    Y = torch.arange(C, device=H.device).expand(N, C)
    return torch.stack([nc.loss(H[None], Y[None, :, c])[0] for c in range(C)], 1).double().cpu()


def tilt_losses(
    nc: NeuralComplexity, points: Tensor, H: Tensor, wrong: Tensor, tilt: Tilt
) -> tuple[Tensor, Tensor]:
    """Moves predicted losses, (N,), by a tilt; returns also how likely the model is wrong, (N,).

    Args:
        nc: Whose loss it is.
        points: Expected losses, (N,).
        H: The model's predictions, (N, C).
        wrong: How likely it is to be wrong, (N,), if targets are labels.
        tilt: Of the model.
    """
    if not nc.labels:
        return points * tilt.mean(GRID).exp(), wrong
    own = _by_class(nc, H).gather(1, H.argmax(dim=1, keepdim=True).cpu()).squeeze(1)
    # The loss where the model's answer is wrong, which the tilt does not change.
    other = (points - (1 - wrong) * own) / wrong.clamp(min=torch.finfo(wrong.dtype).tiny)
    now = tilt.mean(tilt_odds(wrong, GRID))
    return (1 - now) * own + now * other.clamp(min=0), now


def _tilted(
    nc: NeuralComplexity, found: Assessment, H: Tensor, drawn: Drawn, tilt: Tilt
) -> Assessment:
    """Moves the predicted losses, and the accuracy, by a tilt."""
    points, wrong = tilt_losses(nc, torch.from_numpy(found.points), H, drawn.wrong, tilt)
    loss_te = float(points.mean())
    found = replace(found, points=points.numpy(), loss_te=loss_te, gap=loss_te - found.loss_tr)
    return replace(found, accuracy_te=float(1 - wrong.mean())) if nc.labels else found
