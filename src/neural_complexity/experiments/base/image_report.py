"""Rows, tables and figures of experiments on one image dataset."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator, NullLocator
from torch import Tensor

from neural_complexity.assessment.drawing import COLORS
from neural_complexity.assessment.tables import Table
from neural_complexity.experiments.base.experiment import Drawing
from neural_complexity.experiments.base.image_learners import (
    BELIEFS,
    CNN,
    DISTILLED,
    LONG,
    NC_METHODS,
    PLAIN,
    ImageMethod,
    Results,
)
from neural_complexity.experiments.base.rows import Key, Row, read_rows
from neural_complexity.experiments.base.table_views import find, select, show
from neural_complexity.experiments.base.training import Head
from neural_complexity.meta import scores
from neural_complexity.meta.scores import Estimate, estimate, estimate_over_seeds

__all__ = ["FITS", "MODES", "accuracies", "accuracy_table", "compare", "describe", "fit_cells"]
__all__ += ["draw_accuracies", "draw_curves", "fit_rows", "learner_rows", "reference_rows"]
__all__ += ["reference_table"]

FITS = {
    "R2": scores.r_squared,
    "correlation": scores.correlation,
    "MAE": scores.mean_absolute_error,
}
SOURCE = {"source": "single"}  # the key of rows that come from that run
MODES = (
    "Transductive: NC judges the learner on the unlabelled test images themselves, as in the "
    "paper; inductive: on held-out training images, whose labels the learner then does not see "
    "either. "
)
# What is said of a method beside baselines, and beside what is distilled from the same CNN.
VERDICTS = {
    "better": ("beyond the intervals better than", ""),
    "worse": ("beyond the intervals worse than", ", but is worse"),
    "neither": ("not to be told apart from", ": the intervals overlap"),
}


def learner_rows(
    make: Callable[..., Row],
    results: Results,
    at: tuple[Tensor | int, ...] = (-1,),
    paper: float | None = None,
) -> list[Row]:
    """Returns accuracy and losses of learners `at` a snapshot, or each at one of its own."""
    error, test, train = (results[name][at] for name in ("error", "loss_te", "loss_tr"))
    return [
        make("accuracy", estimate_over_seeds(100 * (1 - error)), paper),
        make("test loss", estimate_over_seeds(test)),
        make("train loss", estimate_over_seeds(train)),
    ]


def fit_rows(
    make: Callable[..., Row],
    head: Head,
    results: Iterable[Results],
    *,
    independent: bool = True,
    **keys: Key,
) -> list[Row]:
    """Returns how well an NC predicts the gap, at the end of training and all the way.

    Only where learners are independent, there is an interval.
    """
    rows, found = [], list(results)
    for snapshots, times in (("endpoints", slice(-1, None)), ("all the way", slice(1, None))):
        predicted, true = (
            torch.cat([result[key][times].flatten() for result in found])
            for key in (f"predicted/{head}", "gap")
        )
        for metric, score in FITS.items():
            value = estimate(score, predicted, true)
            if snapshots != "endpoints" or not independent:  # a learner's snapshots never are
                value = Estimate(value.value, None, value.n)
            rows.append(make(metric, value, method="NC", head=head, **keys, snapshots=snapshots))
    return rows


def fit_cells(rows: list[Row], row: Row, metrics: Iterable[str] = FITS) -> tuple[str, ...]:
    """Returns the number of values of a row, and what was measured on them."""
    return (f"{row.n:,}", *(show(find(rows, metric, **row.keys), 3) for metric in metrics))


def describe(row: Row) -> str:
    """Returns the dataset and the learner of a row, and where they are smaller than the paper's."""
    images = row.keys.get("train_images")
    part = "" if images is None else f" ({images:,} training images)"
    return f"{row.keys['dataset']}{part}, {row.keys['learner']}"


def accuracies(rows: list[Row]) -> dict[ImageMethod, Row]:
    """Returns the accuracies that a run measured itself, by method."""
    return {ImageMethod.of(row): row for row in select(rows, "accuracy", source=None)}


def accuracy_table(rows: list[Row], note: str) -> Table:
    """Returns the table of methods, and which baselines each NC beats."""
    found, lines = accuracies(rows), []
    sizes = {ImageMethod.of(r): (f"{r.value:,.0f}",) for r in select(rows, "parameters")}
    for method, row in found.items():
        losses = (find(rows, f"{part} loss", **row.keys) for part in ("test", "train"))
        published = "" if row.paper is None else f"{row.paper:.2f}"
        cells = (show(row), *(show(loss, 3) for loss in losses), published)
        lines.append((method.label, *sizes.get(method, ()), *cells))
    baselines = [m for m, row in found.items() if m.mode is None and "learner" in row.keys]
    notes = [note, *(_verdict(found, method, baselines) for method in NC_METHODS)]
    for method in NC_METHODS:
        if method.mode == DISTILLED.mode and DISTILLED in found:
            result = compare(found[method], found[DISTILLED])
            verb = "beats" if result == "better" else "does not beat"
            numbers = f"({show(found[method])} against {show(found[DISTILLED])})"
            said = f"{verb} the learner distilled from the CNN{VERDICTS[result][1]}"
            notes.append(f"{method.label}, {said} {numbers}.")
    first = found[baselines[0]]
    names = ("learner", "its parameters") if sizes else ("method",)
    return Table(
        f"Accuracy in % on the test images: {describe(first)}, {first.n} runs",
        (*names, "accuracy", "test loss", "train loss", "paper's accuracy"),
        tuple(lines),
        " ".join(notes),
    )


def compare(ours: Row, theirs: Row) -> str:
    """Returns better, worse, or neither where intervals overlap or there are none."""
    if ours.ci95 is None or theirs.ci95 is None:
        return "neither"
    room = ours.ci95 + theirs.ci95
    if ours.value - theirs.value > room:
        return "better"
    return "worse" if theirs.value - ours.value > room else "neither"


def _verdict(
    found: Mapping[ImageMethod, Row], method: ImageMethod, baselines: Sequence[ImageMethod]
) -> str:
    parts = []
    for kind, (text, _) in VERDICTS.items():
        names = [b.label for b in baselines if compare(found[method], found[b]) == kind]
        listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
        parts += [f"{text} {listed}"] if names else []
    return f"{method.label}: {'; '.join(parts)}."


def reference_rows(folder: str, experiment: str) -> list[Row]:
    """Returns what shows where NC's help comes from, as a run of `single` measured it."""
    return [
        replace(row, experiment=experiment, keys=ImageMethod.of(row).keys | SOURCE)
        for row in read_rows(Path(folder) / "rows.jsonl")
        if ImageMethod.of(row) in (BELIEFS, CNN, DISTILLED)
        and row.metric in ("accuracy", "test loss")
    ]


def reference_table(rows: list[Row]) -> Table:
    """Returns the table of `reference_rows`."""
    return Table(
        "Beside NC, from the run of single that NC comes from",
        ("method", "accuracy", "test loss"),
        tuple(
            (ImageMethod.of(row).label, show(row), show(find(rows, "test loss", **row.keys), 3))
            for row in select(rows, "accuracy", **SOURCE)
        ),
        "What classifies without a learner is one network and has no interval.",
    )


def _color(method: ImageMethod) -> str:
    known = {CNN: "oracle", DISTILLED: "oracle", BELIEFS: "posterior"}
    return COLORS[known.get(method, method.head or "none")]


def draw_accuracies(rows: list[Row], caption: str) -> Drawing:
    """Draws accuracies by method, the plain one first, with intervals, and the paper's."""
    found = accuracies(rows)
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
    ax.set(xlim=(max(low, -2), min(high, 102)), xlabel="accuracy in %", title=describe(plain))
    return Drawing("accuracy", canvas, "Accuracy on the test images", caption)


def draw_curves(tensors: dict[str, Tensor]) -> Drawing:
    """Draws losses and test errors of learners with and without NC, and the end of `LONG` ones."""
    canvas = Canvas(figsize=(11, 3.7), layout="constrained")
    axes = canvas.subplots(1, 3)
    axes[1].sharey(axes[0])

    def curve(
        ax: Axes, method: ImageMethod, name: str, line: str, label: str | None = None
    ) -> None:
        """Draws the mean over runs, but for the untrained learner, who has no place on the axis."""
        values = tensors[f"{method.label}/{name}"][1:].mean(dim=1)  # (times - 1,)
        scale = 100 if name == "error" else 1
        steps = tensors[f"{method.label}/step"][1:]
        ax.plot(steps, scale * values, line, lw=1.3, color=_color(method), label=label)

    for ax, mode in zip(axes, ("transductive", "inductive"), strict=False):
        for method in (PLAIN, *(m for m in NC_METHODS if m.mode == mode)):
            curve(ax, method, "loss_tr", "-")
            curve(ax, method, "loss_te", "--")
        ax.set_title(f"NC {mode}")
    axes[0].plot([], color=COLORS["target"], label="train loss")
    axes[0].plot([], "--", color=COLORS["target"], label="test loss")
    axes[0].set_ylabel("cross-entropy")
    axes[0].legend()
    caption = (
        "Mean over runs. Left and middle: train loss solid, test loss dashed. Right: test error; "
        "dashed curves where NC judges on held-out training images instead (inductive)."
    )
    for method in (PLAIN, *NC_METHODS):
        line = "--" if method.mode == "inductive" else "-"
        curve(axes[2], method, "error", line, label=method.label)
    if f"{DISTILLED.label}/error" in tensors:
        curve(axes[2], DISTILLED, "error", ":", label=DISTILLED.label)
    if f"{LONG.label}/error" in tensors:
        error, step = (tensors[f"{LONG.label}/{name}"][-1] for name in ("error", "step"))
        look = {"color": COLORS["none"], "lw": 0.9, "ls": (0, (6, 3)), "label": LONG.label}
        axes[2].axhline(100 * error.mean().item(), **look)
        caption += f" The dashed horizontal line is the plain learner after {int(step):,} steps."
    axes[2].set(ylabel="test error in %", title="Test error")
    for ax in axes:  # what matters happens where everything is small
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_locator(NullLocator())
        ax.set(xscale="log", xlabel="learner step")
    canvas.legend(*axes[2].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return Drawing("curves", canvas, "Learning curves with and without NC", caption)
