"""Parts of figures that several experiments draw."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from neural_complexity.assessment.report import COLORS
from neural_complexity.meta.scores import r_squared

__all__ = ["plot_targets", "scatter_gaps", "sketch"]


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
