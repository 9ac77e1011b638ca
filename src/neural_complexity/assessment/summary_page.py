"""The figure, the tables and the page of an assessment."""

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from neural_complexity.assessment.drawing import COLORS, STYLE, to_png
from neural_complexity.assessment.page import Figure, render
from neural_complexity.assessment.tables import Table

if TYPE_CHECKING:
    from neural_complexity.assessment.result import Assessment

__all__ = ["draw", "page", "tables"]

NAMED = 5  # of the worst points that the figure names
WIDE = 100.0  # ratio of largest and smallest loss from which on the scale is logarithmic
TRAIN, TEST, WORST = COLORS["oracle"], COLORS["posterior"], COLORS["direct"]
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # lines do not cross numbers


def page(found: "Assessment") -> str:
    """Renders the page of an assessment."""
    return render(
        f"Predicted gap: {found.gap:+.3g}",
        f"Neural Complexity read {found.training_points} labelled training points and "
        f"{len(found.points)} unlabelled test points, and what the model says about both.",
        tables(found),
        [
            Figure(
                to_png(draw(found)),
                "How the loss is expected to spread",
                "Left: every test point by its predicted loss. Right: the predicted test loss next "
                "to the training loss.",
            )
        ],
        {name: value for name, value in found.to_dict().items() if name != "points"},
        warnings=found.warnings,
        details_title="All numbers but those of single points",
    )


def tables(found: "Assessment") -> list[Table]:
    """Returns the tables of the page: the losses, and the worst test points."""
    rows = [("loss", f"{found.loss_tr:.4g}", f"{found.loss_te:.4g}")]
    if found.accuracy_tr is not None:
        test = "" if found.accuracy_te is None else f"{100 * found.accuracy_te:.1f} %"
        rows.append(("accuracy", f"{100 * found.accuracy_tr:.1f} %", test))
    interval = _interval(found)
    if interval is not None:
        rows.append(("bound of the loss", "", f"{interval[0]:.4g} to {interval[1]:.4g}"))
    title = f"Loss ({_unit(found)})"
    worst = tuple((str(i), f"{found.points[i]:.4g}") for i in found.worst())
    return [
        Table(title, ("", "training", "test, predicted"), tuple(rows), _bound_label(found)),
        Table(
            "Test points that NC expects to go worst",
            ("test point, counted from 0", "predicted loss"),
            worst,
        ),
    ]


def draw(found: "Assessment") -> Canvas:
    """Draws the predicted loss of each test point, and of all of them next to the training loss."""
    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=(9.2, 3.4), layout="constrained")
        left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
        _draw_points(left, found)
        _draw_losses(right, found)
    return canvas


def _unit(found: "Assessment") -> str:
    return found.loss.replace("_", " ")


def _interval(found: "Assessment") -> tuple[float, float] | None:
    """Returns the bound of the test loss, whose ends may be infinite, as no loss is negative."""
    if found.bound is None:
        return None
    low, high = (max(found.loss_tr + end, 0.0) for end in (found.bound.low, found.bound.high))
    return low, high


def _bound_label(found: "Assessment") -> str:
    if found.bound is None:
        return "no bound: NC is not calibrated"
    return f"{100 * found.bound.confidence:g} % bound ({found.bound.method})"


def _draw_points(axes: Axes, found: "Assessment") -> None:
    order = np.argsort(found.points, kind="stable")
    ranked = found.points[order]
    rank = np.empty(len(ranked), dtype=int)
    rank[order] = np.arange(1, len(ranked) + 1)
    few = len(ranked) <= 100
    line = "o" if few else "-"
    axes.plot(rank[order], ranked, line, ms=3, lw=1.6, color=TEST, label="test points")
    worst = found.worst()[: max(1, len(ranked) // 5)]  # among few, not all are the worst
    axes.plot(rank[worst], found.points[worst], "o", ms=5, color=WORST, label="expected worst")
    if ranked[0] > 0 and ranked[-1] > WIDE * ranked[0]:
        axes.set_yscale("log")
    # Names stand in a column left of the worst points, evenly spaced: their losses may be alike.
    for row, i in enumerate(worst[:NAMED]):
        axes.annotate(
            f"point {i}",
            xy=(rank[i], found.points[i]),
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
        ylabel=_unit(found),
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.03, y=0.12)
    axes.legend(loc="upper left")


def _draw_losses(axes: Axes, found: "Assessment") -> None:
    interval = _interval(found)
    if interval is not None:
        # A bar of no end leaves the figure, with an arrow.
        far = 1.4 * max(found.loss_tr, found.loss_te)
        ends = [interval[0], far if np.isinf(interval[1]) else interval[1]]
        bar: dict[str, Any] = {"color": TEST, "lw": 5, "alpha": 0.3, "solid_capstyle": "butt"}
        axes.plot(ends, [0, 0], label=_bound_label(found), **bar)
        if np.isinf(interval[1]):
            axes.plot([far], [0], ">", ms=9, color=TEST, alpha=0.5, label="no upper end")
    for value, row, color in ((found.loss_tr, 1, TRAIN), (found.loss_te, 0, TEST)):
        axes.plot([value], [row], "o", ms=8, color=color)
        place: dict[str, Any] = {"xytext": (0, 11), "textcoords": "offset points", "ha": "center"}
        axes.annotate(f"{value:.3g}", (value, row), bbox=PAPER, **place)
    axes.axvline(found.loss_tr, color=TRAIN, lw=0.9, ls="--")
    axes.set(title="Loss", yticks=[1, 0], ylim=(-0.7, 1.5), xlabel=_unit(found))
    axes.set_yticklabels(["training", "test,\npredicted"])
    axes.margins(x=0.15)
    if axes.dataLim.x0 >= 0:
        axes.set_xlim(left=0)  # so that a small gap looks small
    if interval is not None:
        axes.legend(loc="lower right", frameon=True, framealpha=1, edgecolor="none")
