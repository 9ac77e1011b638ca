"""Parts of figures that several experiments draw."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from neural_complexity.assessment.report import COLORS
from neural_complexity.experiments.base.training import Head
from neural_complexity.meta.scores import r_squared
from neural_complexity.meta.trainer import Status

__all__ = ["learner_axis", "plot_meta_training", "plot_points", "plot_targets", "scatter_gaps"]
__all__ += ["sketch"]


def sketch(width: float, height: float, *grid: int, **options: Any) -> tuple[Canvas, Any]:
    """Returns a canvas, in inches, and its one pair of axes, or a grid of rows and columns."""
    canvas = Canvas(figsize=(width, height), layout="constrained")
    return canvas, canvas.subplots(*grid, **options)


def scatter_gaps(
    ax: Axes, true: Tensor, predicted: Tensor, color: str, *, cut: float = 0.001
) -> str:
    """Plots predicted against true gaps, (B,), and returns R2 as text for a title."""
    both = np.stack([true.numpy(), predicted.numpy()])
    # The share `cut` at either end is left out: few tasks would squeeze all others into a corner.
    ends = np.quantile(both[:, np.isfinite(both).all(axis=0)], [cut, 1 - cut])
    ax.plot(true, predicted, ".", ms=2, alpha=0.25, color=color, rasterized=True)
    ax.plot(ends, ends, color=COLORS["target"], lw=0.8)
    ax.set(xlim=ends, ylim=ends, aspect="equal", xlabel="true gap", ylabel="predicted gap")
    return f"R2 = {r_squared(predicted, true).item():.4f}"


def plot_targets(ax: Axes, task: dict[str, Tensor]) -> None:
    """Plots one task, its sets (n, 1) by name, and what its learner predicts."""
    names = ("X_tr", "Y_tr", "X_te", "Y_te", "H_te")
    x_tr, y_tr, x_te, y_te, h_te = (task[name].squeeze(-1) for name in names)
    ax.plot(x_tr, y_tr, "o", ms=4, color=COLORS["target"], label="training points")
    ax.plot(x_te, y_te, "o", ms=4, mfc="none", color=COLORS["target"], label="test targets")
    ax.plot(x_te, h_te, "+", ms=6, color=COLORS["none"], label="learner on test inputs")


def plot_points(ax: Axes, task: dict[str, Tensor], told: dict[Head, Tensor]) -> Tensor:
    """Plots squared losses minus the training loss, (N,), and NC's by head; returns the true."""
    error_te, error_tr = task["H_te"] - task["Y_te"], task["H_tr"] - task["Y_tr"]
    true = error_te.square().squeeze(-1) - error_tr.square().mean()
    x_te = task["X_te"].squeeze(-1)
    ax.vlines(x_te, 0, true, color=COLORS["none"], lw=1)
    ax.plot(x_te, true, "o", ms=4, mfc="none", color=COLORS["target"], label="true")
    for (head, estimate), mark in zip(told.items(), "x+", strict=True):
        ax.plot(x_te, estimate, mark, ms=6, color=COLORS[head], label=f"NC {head}")
    return true


def learner_axis(ax: Axes, steps: tuple[int, ...]) -> None:
    """Makes the horizontal axis that of a learner's steps, in powers of two."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(steps, [str(step) for step in steps])
    ax.set_xlabel("learner step")


def plot_meta_training(history: Mapping[str, Sequence[Status]], paper: float) -> Canvas:
    """Draws 1 - R2 by seconds of meta-training, one line per head, and the paper's final value."""
    canvas, ax = sketch(5.2, 3.2)
    for head, scores in history.items():
        seconds, left = zip(*((s.seconds, 1 - s.r2) for s in scores), strict=True)
        ax.plot(seconds, left, ".-", color=COLORS[head], label=f"{head} head")
    ax.axhline(1 - paper, color=COLORS["none"], lw=0.8, ls=":", label="paper")
    ax.set(xlabel="seconds of meta-training", ylabel="1 - R2", yscale="log")
    ax.legend()
    return canvas
