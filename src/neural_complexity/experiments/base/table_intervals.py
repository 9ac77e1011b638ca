"""Models of tables judged by NC together with cross-validation, and intervals of their losses."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor

from neural_complexity.assessment.assess_table import drawn_losses, tilt_losses
from neural_complexity.assessment.draws import DRAWS, beliefs, draw_targets
from neural_complexity.assessment.evidence import believe_out_of_fold, compare, learn_tilt
from neural_complexity.assessment.moved import detect_move
from neural_complexity.baselines.estimates import LEAST
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.table_metrics import DRAWN_METRICS, drawn_metrics
from neural_complexity.experiments.base.table_scores import CV, Names, median_ratio, resample
from neural_complexity.losses import zero_one
from neural_complexity.meta.scores import estimate_mean
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream

__all__ = ["INTERVALS", "judge_with_labels", "score_drawn", "score_intervals"]

INTERVALS = ("NC", "NC and 5-fold CV", CV)  # methods that have one
TAIL = 0.025  # below, and above, a 95 % interval
NORMAL = 1.96  # standard errors


@torch.no_grad()
def judge_with_labels(nc: NeuralComplexity, kept: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns losses by NC and cross-validation together, intervals, and drawn metrics.

    Args:
        nc: For tables.
        kept: Of `fit_models`.

    Returns:
        `combined`, (models, metrics), and `intervals`, (models, methods, metrics, 2): low and high
        ends. Of labels also `drawn`, (models, methods, drawn metrics), and
        `drawn_truth`, (models, drawn metrics).
    """
    X_tr, X_te = (kept[name].to(nc.x_mean) for name in ("X_tr", "X_te"))
    Y = kept["Y_tr"].to(nc.device)
    Y = Y if nc.labels else Y.unsqueeze(-1).to(nc.x_mean)
    K, _, C = kept["H_te"].shape
    classes = C if nc.labels else None
    moved = detect_move(kept["X_tr"].double().numpy(), kept["X_te"].double().numpy())
    auc = None if moved is None else moved.auc
    at_test = list(beliefs(nc, X_tr, Y, X_te, classes=classes))
    out = believe_out_of_fold(nc, X_tr, Y, classes=classes)
    combined = torch.full((K, 2 if nc.labels else 1), torch.nan).double()
    intervals = torch.full((K, len(INTERVALS), combined.shape[1], 2), torch.nan).double()
    drawn = torch.full((K, len(INTERVALS) + 1, len(DRAWN_METRICS)), torch.nan).double()
    for i in range(K):
        if kept["H_te"][i].isnan().any():
            continue
        H, H_out = (
            (h.clamp(min=LEAST).log() if nc.labels else h).to(nc.x_mean)
            for h in (kept["H_te"][i], kept["H_out"][i])
        )
        pair = compare(nc, out, Y, H_out)
        tilt, parts = learn_tilt(nc, [pair]), at_test[-1][0] + 1
        points, wrong = torch.zeros(2, len(H), dtype=torch.float64)
        for _, some, belief in at_test:
            h = H[None, some]
            points[some] += nc.loss.expected(h, belief)[0].double().cpu() / parts
            if nc.labels:
                wrong[some] += zero_one.expected(h, belief)[0].double().cpu() / parts
        losses, now = tilt_losses(nc, points, H, wrong, tilt)
        combined[i] = torch.stack([now.mean(), losses.mean()][0 if nc.labels else 1 :])
        for j, known in enumerate((learn_tilt(nc, []), tilt)):
            tilts = known.new(len(Y), auc).sample(DRAWS, stream(0, "tilts"))
            targets = draw_targets(nc, (X_tr, Y, X_te), H, tilts).targets
            intervals[i, j] = _ends(nc, targets, H)
            if nc.labels:
                drawn[i, j] = drawn_metrics(targets, kept["H_te"][i]).nanmean(dim=0)
        true = nc.loss(H_out[None], Y[None]).double().cpu()  # out of fold, (metrics, M)
        true = torch.cat([pair[1][None], true]) if nc.labels else true
        error = NORMAL * true.std(dim=1, correction=0) * (1 / len(Y) + 1 / len(H)) ** 0.5
        mean = true.mean(dim=1)
        intervals[i, 2] = torch.stack([mean - error, mean + error], dim=1)
        if nc.labels:
            for j, rows in enumerate((("Y_tr", "H_out"), ("Y_te", "H_te")), start=2):
                drawn[i, j] = drawn_metrics(kept[rows[0]][None], kept[rows[1]][i])[0]
    found = {"combined": combined, "intervals": intervals}
    if nc.labels:
        found |= {"drawn": drawn[:, :-1], "drawn_truth": drawn[:, -1]}
    return found


def _ends(nc: NeuralComplexity, targets: Tensor, H: Tensor) -> Tensor:
    """Returns the ends of mean losses over draws, (metrics, 2)."""
    each = drawn_losses(nc, H, targets).mean(dim=1, keepdim=True)  # (draws, metrics)
    if nc.labels:
        wrong = (targets != H.argmax(dim=1).cpu()).double()
        each = torch.cat([wrong.mean(dim=1, keepdim=True), each], dim=1)
    return torch.quantile(each, torch.tensor([TAIL, 1 - TAIL], dtype=torch.float64), dim=0).T


def score_intervals(
    found: Sequence[dict[str, Tensor]], of: Callable[..., Row], names: Names
) -> Iterator[Row]:
    """Yields how often intervals hold, and how wide they are; by kind of model, too.

    Args:
        found: Of each table: `truth`, (splits, models, metrics), and `intervals`, (splits, models,
            methods, metrics, 2).
        of: Makes a row of a score, an estimate and keys.
        names: Of the kinds and metrics.
    """
    for (m, metric), (j, method) in product(enumerate(names.metrics), enumerate(INTERVALS)):
        row = partial(of, metric=metric, method=method)
        inside = [_inside(one["intervals"][:, :, j, m], one["truth"][..., m]) for one in found]
        wide = [one["intervals"][:, :, j, m].diff(dim=-1).nanmean() for one in found]
        each = torch.stack(inside)  # (tables, models)
        yield row("coverage", estimate_mean(each.nanmean(dim=1)))
        yield row("width", estimate_mean(torch.stack(wide)))
        for i, kind in enumerate(names.kinds):
            if not each[:, i].isnan().any():
                yield row("coverage by kind", estimate_mean(each[:, i]), kind=kind)


def _inside(ends: Tensor, truth: Tensor) -> Tensor:
    """Returns how often intervals, (splits, models, 2), contain the truth, of each model."""
    low, high = ends.unbind(dim=-1)
    # Rounding of a share of few rows is no error.
    inside = ((low - 1e-6 <= truth) & (truth <= high + 1e-6)).double()
    return torch.where(low.isnan(), torch.nan, inside).nanmean(dim=0)


def score_drawn(found: Sequence[dict[str, Tensor]], of: Callable[..., Row]) -> Iterator[Row]:
    """Yields errors of drawn metrics over those of cross-validation, of labels.

    Tables with a split on which a metric has no value are left out.

    Args:
        found: Of each table: `drawn`, (splits, models, methods, metrics), and `drawn_truth`,
            (splits, models, metrics).
        of: Makes a row of a score, an estimate and keys.
    """
    for k, metric in enumerate(DRAWN_METRICS if "drawn" in found[0] else ()):
        each = [
            (one["drawn"][..., k] - one["drawn_truth"][..., k].unsqueeze(-1)).abs().mean(dim=0)
            for one in found
        ]  # (models, methods)
        known = [one[~one.isnan().all(dim=1)] for one in each]  # of models that exist
        there = [len(one) > 0 and not one.isnan().any() for one in known]
        if not any(there):
            continue
        errors = np.stack([one for one, whole in zip(each, there, strict=True) if whole])
        for j, method in enumerate(INTERVALS):
            ratio = partial(median_ratio, errors[:, :, j], errors[:, :, INTERVALS.index(CV)])
            row = partial(of, metric=metric, method=method)
            yield row("error over that of CV", resample(ratio, len(errors)))
            mean = torch.from_numpy(np.nanmean(errors[:, :, j], axis=1))
            yield row("mean absolute error", estimate_mean(mean))
