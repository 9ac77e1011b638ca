"""Tables and figures of the simple learners."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from neural_complexity.assessment.drawing import COLORS, STYLE, save
from neural_complexity.assessment.page import Figure
from neural_complexity.assessment.tables import Table, find, show
from neural_complexity.experiments.base.networks import HEADS
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.simple import LEARNERS, PREDICTORS, SCORES
from neural_complexity.meta.scores import r_squared

__all__ = ["LEAD", "TITLE", "figures", "tables"]

TITLE = "Simple learners"
LEAD = (
    "NC was trained on networks alone. Here it judges learners of another kind, on held-out "
    "sinusoids with 10 training and 15 test points: the mean of the targets, the nearest "
    "neighbour, ridge regression on ten Fourier features, a Gaussian process, and for comparison "
    "the network after 16 steps. As yardsticks, two Gaussian processes predict the gap from their "
    "own exact posteriors: one with an RBF kernel, as a practitioner would use, its numbers chosen "
    "by marginal likelihood on other tasks of the family; and one with the family's own kernel, "
    "proportional to cos(x - x'), which is told that all targets are sinusoids of period 2 pi. "
    "The paper gives pictures of these learners, no numbers."
)
NOTE = (
    "Value ± 95 % interval over tasks, here and below; each column is a gap predictor. R2 is the "
    "coefficient of determination. The sinusoid kernel knows the family. It is the best linear "
    "prediction, not the exact Bayes posterior, since b from 0 to pi favours some sinusoids; but "
    "ten points without noise settle a sinusoid either way."
)
SETS = ("X_tr", "Y_tr", "H_tr", "X_te", "Y_te", "H_te")


def tables(rows: list[Row]) -> list[Table]:
    """Makes the tables of the learners' losses and of each score of the predicted gaps."""
    return [_losses(rows), *(_fits(rows, metric) for metric in SCORES)]


def _losses(rows: list[Row]) -> Table:
    lines = []
    for learner in LEARNERS:
        found = [find(rows, learner, "learner", metric) for metric in ("train loss", "test loss")]
        lines.append((learner, *(show(row, digits=4) for row in found)))
    for predictor in PREDICTORS:
        believed = find(rows, predictor, "beliefs", "test loss")
        if believed is not None:
            lines.append((f"{predictor}, its beliefs", "", show(believed, digits=4)))
    n = next(row.n for row in rows if row.metric == "test loss")
    return Table(
        f"Losses, {n:,} held-out tasks",
        ("learner", "train loss", "test loss"),
        tuple(lines),
        "Mean squared error ± 95 % interval over tasks. Beliefs are a gap predictor's own mean for "
        "y, used as a predictor. The learner called Gaussian process is the one with the RBF "
        "kernel.",
    )


def _fits(rows: list[Row], metric: str) -> Table:
    lines = [
        (learner, *(show(find(rows, predictor, learner, metric), 4) for predictor in PREDICTORS))
        for learner in LEARNERS
    ]
    n = next(row.n for row in rows if row.metric == metric)
    return Table(
        f"{metric} of predicted against true gap, {n:,} held-out tasks",
        ("learner", *PREDICTORS),
        tuple(lines),
        NOTE if metric == "R2" else "",
    )


def figures(outcome: Outcome, folder: Path) -> list[Figure]:
    """Draws the figures from what a run left."""
    with mpl.rc_context(STYLE):
        return [
            Figure(
                save(_extremes(outcome.tensors), folder, "extremes"),
                "The smallest and the largest predicted gap",
                "For each learner, the two held-out tasks at the extremes of the posterior head's "
                "predictions. Circles are targets, filled at training points and empty at test "
                "points (never shown to NC); plus signs are predictions. As in the paper, nearest "
                "neighbour fits the training points perfectly, yet NC penalizes it where the "
                "result is no sinusoid.",
            ),
            Figure(
                save(_scatter(outcome.tensors), folder, "gap-fit"),
                "Predicted against true gap",
                "One dot per held-out task; the outermost 0.2 % of values are cut off. NC was "
                "trained on networks alone.",
            ),
        ]


def _extremes(tensors: dict[str, Tensor]) -> Canvas:
    canvas = Canvas(figsize=(12, 6.2), layout="constrained")
    axes = canvas.subplots(2, len(LEARNERS), sharex=True)
    for column, learner in zip(axes.T, LEARNERS, strict=True):
        for i, ax in enumerate(column):
            task = tensors[f"shown/{learner}/task"][i]
            true, posterior, direct = (
                f"{tensors[f'gaps/{learner}/{name}'][task]:.3g}" for name in ("true", *HEADS)
            )
            _one_task(ax, {name: tensors[f"shown/{learner}/{name}"][i, :, 0] for name in SETS})
            ax.set_title(f"true gap {true}\nNC posterior {posterior}\nNC direct {direct}")
        column[0].set_title(f"{learner}\n{column[0].get_title()}")
        column[-1].set_xlabel("x")
    axes[0, 0].set_ylabel("smallest predicted gap\n\ny")
    axes[1, 0].set_ylabel("largest predicted gap\n\ny")
    canvas.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return canvas


def _one_task(ax: Axes, points: dict[str, Tensor]) -> None:
    x_tr, y_tr, h_tr, x_te, y_te, h_te = (points[name] for name in SETS)
    ax.plot(x_tr, y_tr, "o", ms=4.5, color=COLORS["none"], label="training targets")
    ax.plot(x_te, y_te, "o", ms=4.5, mfc="none", color=COLORS["target"], label="test targets")
    ax.plot(x_tr, h_tr, "+", ms=6, color=COLORS["oracle"], label="predictions at training inputs")
    ax.plot(x_te, h_te, "+", ms=7, color=COLORS["posterior"], label="predictions at test inputs")


def _scatter(tensors: dict[str, Tensor]) -> Canvas:
    canvas = Canvas(figsize=(12, 5.2), layout="constrained")
    axes = canvas.subplots(len(HEADS), len(LEARNERS))
    for column, learner in zip(axes.T, LEARNERS, strict=True):
        true = tensors[f"gaps/{learner}/true"]
        predicted = {head: tensors[f"gaps/{learner}/{head}"] for head in HEADS}
        # A handful of extreme tasks would squeeze all others into a corner.
        low, high = np.quantile(np.concatenate([true, *predicted.values()]), [0.001, 0.999])
        for ax, (head, gaps) in zip(column, predicted.items(), strict=True):
            ax.plot([low, high], [low, high], color=COLORS["target"], lw=0.8)
            ax.plot(true, gaps, ".", ms=2.5, alpha=0.3, color=COLORS[head], rasterized=True)
            ax.set(xlim=(low, high), ylim=(low, high), aspect="equal")
            ax.set_title(f"R2 = {r_squared(gaps, true).item():.4f}")
        column[0].set_title(f"{learner}\n{column[0].get_title()}")
        column[-1].set_xlabel("true gap")
    for ax, head in zip(axes[:, 0], HEADS, strict=True):
        ax.set_ylabel(f"{head} head\n\npredicted gap")
    return canvas
