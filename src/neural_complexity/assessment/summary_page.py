"""The picture and the tables of an assessment of one model."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from neural_complexity.assessment.drawing import COLORS, STYLE
from neural_complexity.assessment.tables import Table

__all__ = ["Findings", "draw", "tables"]

NAMED = 5  # of the worst points that the picture names
WIDE = 100.0  # ratio of largest and smallest loss from which on the scale is logarithmic
TRAIN, TEST = COLORS["oracle"], COLORS["posterior"]
WORST = COLORS["direct"]
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # lines do not cross numbers


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The numbers that are shown."""

    loss: str
    loss_tr: float
    loss_te: float
    accuracy_tr: float | None
    accuracy_te: float | None
    interval: tuple[float, float] | None  # of the test loss; ends may be infinite
    told: str  # what the interval is, or why there is none
    points: NDArray[np.float64]  # (N,)
    worst: Sequence[int]


def draw(found: Findings) -> Canvas:
    """Draws the predicted loss of each test point, and of all of them next to the training loss."""
    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=(9.2, 3.4), layout="constrained")
        left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
        _draw_points(left, found)
        _draw_losses(right, found)
    return canvas


def _draw_points(axes: Axes, found: Findings) -> None:
    order = np.argsort(found.points, kind="stable")
    ranked = found.points[order]
    rank = np.arange(1, len(ranked) + 1)
    few = len(ranked) <= 100
    axes.plot(rank, ranked, "o" if few else "-", ms=3, lw=1.6, color=TEST, label="test points")
    place = {int(point): i + 1 for i, point in enumerate(order)}
    worst = list(found.worst)[: max(1, len(ranked) // 5)]  # among few, not all are the worst
    places = [place[i] for i in worst]
    axes.plot(places, found.points[worst], "o", ms=5, color=WORST, label="expected to go worst")
    positive = ranked[0] > 0 and ranked[-1] > WIDE * ranked[0]
    if positive:
        axes.set_yscale("log")
    # Names stand in a column left of the worst points, evenly spaced: their losses may be alike.
    for row, i in enumerate(worst[:NAMED]):
        axes.annotate(
            f"point {i}",
            xy=(place[i], found.points[i]),
            xytext=(0.6, 0.97 - 0.09 * row),
            textcoords="axes fraction",
            fontsize=8,
            va="top",
            bbox=PAPER,
            arrowprops={"arrowstyle": "-", "color": WORST, "lw": 0.5, "alpha": 0.7},
        )
    axes.axhline(found.loss_te, color=TEST, lw=0.9, ls="--", label="their mean")
    axes.set(
        title="Predicted loss of each test point",
        xlabel="test points, best to worst",
        ylabel=found.loss.replace("_", " "),
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.03, y=0.12)
    axes.legend(loc="upper left")


def _draw_losses(axes: Axes, found: Findings) -> None:
    if found.interval is not None:
        low, high = found.interval
        # A bar of no end leaves the picture, with an arrow.
        far = 1.4 * max(found.loss_tr, found.loss_te)
        ends = [low if np.isfinite(low) else 0.0, high if np.isfinite(high) else far]
        axes.plot(
            ends, [0, 0], color=TEST, lw=5, alpha=0.3, solid_capstyle="butt", label=found.told
        )
        if not np.isfinite(high):
            axes.plot([far], [0], ">", ms=9, color=TEST, alpha=0.5, label="no upper end")
    axes.plot([found.loss_tr], [1], "o", ms=8, color=TRAIN)
    axes.plot([found.loss_te], [0], "o", ms=8, color=TEST)
    axes.axvline(found.loss_tr, color=TRAIN, lw=0.9, ls="--")
    for value, row in ((found.loss_tr, 1), (found.loss_te, 0)):
        axes.annotate(
            f"{value:.3g}",
            (value, row),
            (0, 11),
            textcoords="offset points",
            ha="center",
            bbox=PAPER,
        )
    axes.set(
        title="Loss",
        yticks=[1, 0],
        ylim=(-0.7, 1.5),
        xlabel=found.loss.replace("_", " "),
    )
    axes.set_yticklabels(["training", "test,\npredicted"])
    axes.margins(x=0.15)
    if axes.dataLim.x0 >= 0:
        axes.set_xlim(left=0)  # so that a small gap looks small
    if found.interval is not None:
        axes.legend(loc="lower right", frameon=True, framealpha=1, edgecolor="none")


def tables(found: Findings) -> list[Table]:
    """Makes the tables of the page."""
    rows = [("loss", f"{found.loss_tr:.4g}", f"{found.loss_te:.4g}")]
    if found.accuracy_tr is not None:
        test = "" if found.accuracy_te is None else f"{100 * found.accuracy_te:.1f} %"
        rows.append(("accuracy", f"{100 * found.accuracy_tr:.1f} %", test))
    if found.interval is not None:
        rows.append(
            ("bound of the loss", "", f"{found.interval[0]:.4g} to {found.interval[1]:.4g}")
        )
    worst = tuple((str(i), f"{found.points[i]:.4g}") for i in found.worst)
    return [
        Table(
            f"Loss ({found.loss.replace('_', ' ')})",
            ("", "training", "test, predicted"),
            tuple(rows),
            found.told,
        ),
        Table(
            "Test points that NC expects to go worst",
            ("test point, counted from 0", "predicted loss"),
            worst,
        ),
    ]
