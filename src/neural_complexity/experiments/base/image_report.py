"""What the tables and figures of experiments on one image dataset share."""

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator, NullLocator
from torch import Tensor

from neural_complexity.assessment.drawing import COLORS
from neural_complexity.experiments.base.image_learners import (
    BELIEFS,
    CNN,
    DISTILLED,
    FITS,
    NC_METHODS,
    PLAIN,
    ImageMethod,
)
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.table_views import find, select, show

__all__ = [
    "MODES",
    "accuracies",
    "accuracy_cells",
    "compare",
    "describe",
    "draw_accuracies",
    "draw_curves",
    "fit_cells",
    "verdict",
]

LINES = {"transductive": "-", "inductive": "--", None: "-"}
MODES = (
    "Transductive: NC judges the learner on the unlabelled test images themselves, as in the "
    "paper; inductive: on held-out training images, whose labels the learner then does not see "
    "either. "
)


def describe(row: Row) -> str:
    """Returns the dataset and the learner of a row, and where they are smaller than the paper's."""
    images = row.keys.get("train_images")
    part = "" if images is None else f" ({images:,} training images)"
    return f"{row.keys['dataset']}{part}, {row.keys['learner']}"


def accuracies(rows: list[Row]) -> dict[ImageMethod, Row]:
    """Returns the accuracies that a run measured itself, by method."""
    return {ImageMethod.of(row): row for row in select(rows, "accuracy", source=None)}


def accuracy_cells(rows: list[Row], row: Row) -> tuple[str, ...]:
    """Returns accuracy, test loss, train loss and the paper's accuracy, from the accuracy's row."""
    losses = (find(rows, f"{part} loss", **row.keys) for part in ("test", "train"))
    published = "" if row.paper is None else f"{row.paper:.2f}"
    return (show(row), *(show(loss, 3) for loss in losses), published)


def fit_cells(rows: list[Row], row: Row, metrics: Iterable[str] = FITS) -> tuple[str, ...]:
    """Returns the number of values of a row, and what was measured on them."""
    return (f"{row.n:,}", *(show(find(rows, metric, **row.keys), 3) for metric in metrics))


def compare(ours: Row, theirs: Row) -> str:
    """Returns better, worse, or neither where intervals overlap or there are none."""
    if ours.ci95 is None or theirs.ci95 is None:
        return "neither"
    room = ours.ci95 + theirs.ci95
    if ours.value - theirs.value > room:
        return "better"
    return "worse" if theirs.value - ours.value > room else "neither"


VERDICTS = {
    "better": "beyond the intervals better than",
    "worse": "beyond the intervals worse than",
    "neither": "not to be told apart from",
}


def verdict(
    found: dict[ImageMethod, Row], method: ImageMethod, baselines: Sequence[ImageMethod]
) -> str:
    """Returns the sentence on which baselines a method beats, from accuracies by method."""
    parts = []
    for kind, text in VERDICTS.items():
        names = [b.label for b in baselines if compare(found[method], found[b]) == kind]
        listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
        parts += [f"{text} {listed}"] if names else []
    return f"{method.label}: {'; '.join(parts)}."


def _color(method: ImageMethod) -> str:
    known = {CNN: "oracle", DISTILLED: "oracle", BELIEFS: "posterior"}
    return COLORS[known.get(method, method.head or "none")]


def draw_accuracies(found: dict[ImageMethod, Row]) -> Canvas:
    """Draws accuracies by method, the plain one first, with intervals, and the paper's."""
    canvas = Canvas(figsize=(6.8, 0.26 * len(found) + 0.8), layout="constrained")
    ax = canvas.subplots()
    for y, (method, row) in enumerate(found.items()):
        mark = "o" if "learner" in row.keys else "s"
        ax.errorbar(row.value, y, xerr=row.ci95, color=_color(method), marker=mark, ms=5, lw=1.2)
        if row.paper is not None:
            ax.plot(row.paper, y, "o", ms=6, mfc="none", color=COLORS["target"])
    plain = next(iter(found.values()))
    ax.axvline(plain.value, color=COLORS["none"], lw=0.8, ls=":")
    ax.set_yticks(range(len(found)), [method.label for method in found])
    ax.set_ylim(len(found) - 0.4, -0.6)
    low, high = ax.get_xlim()  # few runs have intervals that say nothing
    ax.set(xlim=(max(low, -2), min(high, 102)))
    ax.set(xlabel="accuracy in %", title=describe(plain))
    return canvas


def draw_curves(
    tensors: dict[str, Tensor], *, converged: float | None = None, more: Sequence[ImageMethod] = ()
) -> Canvas:
    """Draws losses and test errors of learners with and without NC by their number of updates.

    Args:
        tensors: `LABEL/step`, (times,), and `LABEL/loss_tr`, `LABEL/loss_te` and `LABEL/error`,
            (times, runs), of `PLAIN` and `NC_METHODS`.
        converged: The test error of the plain learner after convergence.
        more: Further methods whose test error is drawn.
    """
    canvas = Canvas(figsize=(11, 3.7), layout="constrained")
    axes = canvas.subplots(1, 3)
    axes[1].sharey(axes[0])
    for ax, mode in zip(axes, ("transductive", "inductive"), strict=False):
        for method in (PLAIN, *(m for m in NC_METHODS if m.mode == mode)):
            _curve(ax, tensors, method, "loss_tr", "-")
            _curve(ax, tensors, method, "loss_te", "--")
        ax.set_title(f"NC {mode}")
    axes[0].plot([], color=COLORS["target"], label="train loss")
    axes[0].plot([], "--", color=COLORS["target"], label="test loss")
    axes[0].set_ylabel("cross-entropy")
    axes[0].legend()
    for method in (PLAIN, *NC_METHODS):
        _curve(axes[2], tensors, method, "error", LINES[method.mode], label=method.label)
    for method in more:
        _curve(axes[2], tensors, method, "error", ":", label=method.label)
    if converged is not None:
        look = {"color": COLORS["none"], "lw": 0.9, "ls": (0, (6, 3))}
        axes[2].axhline(100 * converged, **look, label=f"{PLAIN.label}, after convergence")
    axes[2].set(ylabel="test error in %", title="Test error")
    for ax in axes:  # what matters happens where everything is small
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_locator(NullLocator())
        ax.set(xscale="log", xlabel="learner step")
    canvas.legend(*axes[2].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return canvas


def _curve(
    ax: Axes,
    tensors: dict[str, Tensor],
    method: ImageMethod,
    name: str,
    line: str,
    label: str | None = None,
) -> None:
    """Draws the mean over runs, but for the untrained learner, who has no place on the axis."""
    values = tensors[f"{method.label}/{name}"][1:].mean(dim=1)  # (times - 1,)
    scale = 100 if name == "error" else 1
    steps = tensors[f"{method.label}/step"][1:]
    ax.plot(steps, scale * values, line, lw=1.3, color=_color(method), label=label)
