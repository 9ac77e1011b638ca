"""Rows, tables and figures of experiments on one image dataset."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator
from torch import Tensor

from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.experiments.base import image_learners as images
from neural_complexity.experiments.base.comparison import SCORES
from neural_complexity.experiments.base.experiment import Drawing, Outcome
from neural_complexity.experiments.base.image_learners import NC_METHODS, ImageMethod, Results
from neural_complexity.experiments.base.plots import sketch
from neural_complexity.experiments.base.rows import Row, distinct, find, read_rows, select, show
from neural_complexity.experiments.base.run_folder import HEADS
from neural_complexity.meta import scores

__all__ = ["BY_SIZE", "MODES", "Make", "accuracies", "accuracy_table", "compare", "describe"]
__all__ += ["draw_accuracies", "draw_curves", "draw_gap_fits", "fit_rows", "fit_table"]
__all__ += [
    "learner_rows",
    "over_seeds",
    "reference_rows",
    "reference_table",
    "size_colors",
    "split_rows",
]

Make = Callable[..., Row]  # from a metric, a score, and perhaps the paper's value and further keys
BY_SIZE = ("gap", "predicted gap", "MAE within a size")
SOURCE = {"source": "single"}  # the key of rows that come from that run
MODES = (
    "Transductive: NC judges the learner on the unlabelled test images, as in the paper; "
    "inductive: on held-out training images, whose labels the learner does not see either. "
)
# What is said of a method beside what is distilled from the same CNN.
DISTILLATION = {"better": ("beats", ""), "worse": ("does not beat", ", but is worse")}
DISTILLATION["neither"] = ("does not beat", ": the intervals overlap")


def learner_rows(
    make: Make, found: Results, at: Any = -1, paper: float | None = None, ncs: int = 1
) -> list[Row]:
    """Returns accuracy and losses of learners `at` a snapshot, or each at one of its own.

    With several NCs, whose learners follow each other, intervals are over NCs: what they have in
    common with each other is more than what their learners have.
    """

    def estimate(values: Tensor) -> scores.Estimate:
        by_nc = values.view(ncs, -1)
        return scores.estimate_over_seeds(by_nc.mean(dim=1) if ncs > 1 else values)

    losses = {"test loss": found["loss_te"], "train loss": found["loss_tr"]}
    own = [make(name, estimate(loss[at])) for name, loss in losses.items()]
    return [make("accuracy", estimate(100 * (1 - found["error"][at])), paper), *own]


def over_seeds(runs: Sequence[list[Row]]) -> list[Row]:
    """Returns the mean of the rows of several NCs, with intervals over learners and over NCs."""
    rows = []
    for same in zip(*runs, strict=True):
        mean = scores.estimate_over_seeds(torch.tensor([row.value for row in same]))
        within, spread = [row.ci95 for row in same if row.ci95 is not None], mean.ci95
        if spread is not None and within:  # the two are independent
            spread = math.hypot(spread, sum(within) / len(within))
        rows.append(replace(same[0], value=mean.value, ci95=spread) if len(same) > 1 else same[0])
    return rows


def fit_rows(
    make: Make, head: str, results: Iterable[Results], independent: bool = True, **keys: str
) -> list[Row]:
    """Returns how well an NC predicts the gap; of dependent learners there is no interval."""
    rows, found = [], list(results)
    for snapshots, times in (("endpoints", slice(-1, None)), ("all the way", slice(1, None))):
        predicted, true = (
            torch.cat([result[key][times].flatten() for result in found])
            for key in (f"predicted/{head}", "gap")
        )
        for metric, score in SCORES.items():
            value = scores.estimate(score, predicted, true)
            if snapshots != "endpoints" or not independent:  # a learner's snapshots never are
                value = replace(value, ci95=None)
            rows.append(make(metric, value, method="NC", head=head, **keys, snapshots=snapshots))
    return rows


def fit_table(
    rows: list[Row], title: str, note: str, values: str, metrics: Iterable[str] = SCORES
) -> Table:
    """Returns what was measured on the learners of each NC and kind, and the number of values."""
    lines = []
    for row in select(rows, next(iter(metrics))):
        names = [str(row.keys[n]) for n in ("images", "learners", "snapshots") if n in row.keys]
        names[0] += f" of {row.keys['size']}" if "size" in row.keys else ""
        cells = (show(find(rows, metric, **row.keys), 3) for metric in metrics)
        lines.append((f"NC {row.keys['head']}; {', '.join(names)}", f"{row.n:,}", *cells))
    return Table(title, ("gap predictor; learners", values, *metrics), tuple(lines), note)


def split_rows(make: Make, results: images.BySize, learners: str) -> list[Row]:
    """Returns how well each NC predicts the gap on held-out splits, of all sizes and of each."""
    rows = []
    for head in HEADS:
        keys: dict[str, Any] = {"images": "held-out splits", "learners": learners}
        rows += fit_rows(make, head, results.values(), **keys)
        for size, result in results.items():
            own, true = result[f"predicted/{head}"][-1], result["gap"][-1]
            error = scores.estimate(scores.mean_absolute_error, own, true)
            more = {**keys, "size": size, "snapshots": "endpoints"}
            values = (scores.estimate_mean(true), scores.estimate_mean(own), error)
            for metric, value in zip(BY_SIZE, values, strict=True):
                rows.append(make(metric, value, method="NC", head=head, **more))
    return rows


def describe(row: Row) -> str:
    """Returns the dataset and the learner of a row, and where they are smaller than the paper's."""
    images = row.keys.get("train_images")
    part = "" if images is None else f" ({images:,} training images)"
    return f"{row.keys['dataset']}{part}, {row.keys['learner']}"


def accuracies(rows: list[Row]) -> dict[ImageMethod, Row]:
    """Returns the accuracies that a run measured itself, by method."""
    return {ImageMethod.of(row): row for row in select(rows, "accuracy", source=None)}


def accuracy_table(rows: list[Row]) -> Table:
    """Returns the table of methods, and which baselines each NC beats."""
    found, lines = accuracies(rows), []
    sizes = {ImageMethod.of(r): (f"{r.value:,.0f}",) for r in select(rows, "parameters")}
    for method, row in found.items():
        losses = (find(rows, f"{part} loss", **row.keys) for part in ("test", "train"))
        published = "" if row.paper is None else f"{row.paper:.2f}"
        cells = (show(row), *(show(loss, 3) for loss in losses), published)
        lines.append((method.label, *sizes.get(method, ()), *cells))
    baselines = [m for m, row in found.items() if m.mode is None and "learner" in row.keys]
    notes = [
        "Value ± 95 % interval over runs; what needs no learner is one network and has none. "
        "Test images are the same in all runs."
    ]
    if (ncs := found[NC_METHODS[0]].n) != found[baselines[0]].n:
        notes.append(
            f"Intervals of NC are over {ncs} meta-trainings, each with as many runs; those of gaps "
            "on held-out splits, over learners and meta-trainings."
        )
    for method in NC_METHODS:
        said = []
        for kind in ("better", "worse", "neither"):
            names = [b.label for b in baselines if compare(found[method], found[b]) == kind]
            listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
            text = f"beyond the intervals {kind} than"
            text = "not to be told apart from" if kind == "neither" else text
            said += [f"{text} {listed}"] if names else []
        notes.append(f"{method.label}: {'; '.join(said)}.")
    for method in NC_METHODS:
        if method.mode == images.DISTILLED.mode and images.DISTILLED in found:
            ours, theirs = found[method], found[images.DISTILLED]
            verb, more = DISTILLATION[compare(ours, theirs)]
            said = [method.label, f"{verb} the learner distilled from the CNN{more}"]
            notes.append(f"{', '.join(said)} ({show(ours)} against {show(theirs)}).")
    first = found[baselines[0]]
    title = f"Accuracy in % on the test images: {describe(first)}, {first.n} runs"
    columns = ("learner", "its parameters") if sizes else ("method",)
    header = (*columns, "accuracy", "test loss", "train loss", "paper's accuracy")
    return Table(title, header, tuple(lines), " ".join(notes))


def compare(ours: Row, theirs: Row) -> str:
    """Returns better, worse, or neither where intervals overlap or there are none."""
    more = ours.value - theirs.value
    if ours.ci95 is None or theirs.ci95 is None or abs(more) <= ours.ci95 + theirs.ci95:
        return "neither"
    return "better" if more > 0 else "worse"


def reference_rows(folder: str, experiment: str) -> list[Row]:
    """Returns what shows where NC's help comes from, as a run of `single` measured it."""
    return [
        replace(row, experiment=experiment, keys=ImageMethod.of(row).keys | SOURCE)
        for row in read_rows(Path(folder) / "rows.jsonl")
        if ImageMethod.of(row) in (images.BELIEFS, images.CNN, images.DISTILLED)
        and row.metric in ("accuracy", "test loss")
    ]


def reference_table(rows: list[Row]) -> Table:
    """Returns the table of `reference_rows`."""
    title = "Beside NC, from the run of single that NC comes from"
    lines = tuple(
        (ImageMethod.of(row).label, show(row), show(find(rows, "test loss", **row.keys), 3))
        for row in select(rows, "accuracy", **SOURCE)
    )
    note = "What classifies without a learner is one network and has no interval."
    return Table(title, ("method", "accuracy", "test loss"), lines, note)


def _color(method: ImageMethod) -> str:
    known = {images.CNN: "oracle", images.DISTILLED: "oracle", images.BELIEFS: "posterior"}
    return COLORS[known.get(method, method.head or "none")]


def draw_accuracies(outcome: Outcome) -> list[Drawing]:
    """Draws accuracies by method, the plain one first, with intervals, and the paper's."""
    found = accuracies(outcome.rows)
    canvas, ax = sketch(6.8, 0.26 * len(found) + 0.8)
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
    caption = (
        "Ours with 95 % interval over runs (dots; squares: one network, no learner) and the "
        "paper's (circles). The dotted line is the plain learner of the usual size."
    )
    return [Drawing("accuracy", canvas, "Accuracy on the test images", caption)]


def draw_curves(outcome: Outcome) -> list[Drawing]:
    """Draws losses and test errors of learners with and without NC, and the end of `LONG` ones."""
    tensors, (canvas, axes) = outcome.tensors, sketch(11, 3.7, 1, 3)
    axes[1].sharey(axes[0])

    def curve(ax: Axes, method: ImageMethod, name: str, line: str, **look: Any) -> None:
        """Draws the mean over runs, but for the untrained learner, who has no place on the axis."""
        steps, values = (tensors[f"{method.label}/{n}"][1:] for n in ("step", name))
        mean = (100 if name == "error" else 1) * values.mean(dim=1)  # (times - 1,)
        ax.plot(steps, mean, line, lw=1.3, color=_color(method), **look)

    for ax, mode in zip(axes, ("transductive", "inductive"), strict=False):
        for method in (images.PLAIN, *(m for m in NC_METHODS if m.mode == mode)):
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
    lines = {m: "--" if m.mode == "inductive" else "-" for m in (images.PLAIN, *NC_METHODS)}
    for method, line in (lines | {images.DISTILLED: ":"}).items():
        if f"{method.label}/error" in tensors:
            curve(axes[2], method, "error", line, label=method.label)
    if f"{images.LONG.label}/error" in tensors:
        error, step = (tensors[f"{images.LONG.label}/{name}"][-1] for name in ("error", "step"))
        look = {"color": COLORS["none"], "lw": 0.9, "ls": (0, (6, 3)), "label": images.LONG.label}
        axes[2].axhline(100 * error.mean().item(), **look)
        caption += f" The dashed horizontal line is the plain learner after {int(step):,} steps."
    axes[2].set(ylabel="test error in %", title="Test error")
    for ax in axes:  # what matters happens where everything is small
        ax.set(xscale="log", yscale="log", xlabel="learner step")
        ax.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), minor_locator=NullLocator())
        ax.yaxis.set_major_formatter("{x:g}")
    canvas.legend(*axes[2].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return [Drawing("curves", canvas, "Learning curves with and without NC", caption)]


def size_colors(rows: list[Row]) -> dict[int, Any]:
    """Returns the sizes of training sets whose gap was measured, ascending, and their colours."""
    sizes = sorted(int(keys["size"]) for keys in distinct(select(rows, "gap"), "size"))
    shades = mpl.colormaps["viridis"](np.linspace(0.0, 0.85, len(sizes)))
    return dict(zip(sizes, shades, strict=True))


def draw_gap_fits(outcome: Outcome) -> list[Drawing]:
    """Draws predicted against true gaps, by head and by learners, the last ones large."""
    tensors, kinds = outcome.tensors, ("plain", "with NC posterior")
    colors = size_colors(outcome.rows)
    canvas, axes = sketch(7.6, 6.6, len(HEADS), len(kinds))
    for line, head in zip(axes, HEADS, strict=True):
        for ax, kind in zip(line, kinds, strict=True):
            ends = []
            for size, color in colors.items():
                names = ("gap", f"predicted/{head}")
                pair = torch.stack([tensors[f"splits/{size}/{kind}/{name}"] for name in names])
                look = {"color": color, "mew": 0}
                ax.plot(*pair[:, 1:-1].flatten(1), "o", ms=2.5, alpha=0.35, **look)
                label = f"{size:,} training images"
                ax.plot(*pair[:, -1], "o", ms=5.0, alpha=0.9, **look, label=label)
                ends.append(pair[:, -1])  # (2, B)
            true, own = torch.cat(ends, dim=1)
            title = "plain learners" if kind == "plain" else kind
            ax.axline((0, 0), slope=1, color=COLORS["target"], lw=0.8)
            ax.set_title(f"{head} head, {title}: R2 = {scores.r_squared(own, true).item():.3f}")
            ax.set(xlabel="true gap", ylabel="predicted gap")
    handles = axes[0, 0].get_legend_handles_labels()
    canvas.legend(*handles, loc="outside lower center", ncols=len(colors))
    caption = (
        "Large dots: learners after their last step, to which R2 belongs; small: on their way."
    )
    return [Drawing("gap-fit", canvas, "Predicted against true gap on held-out splits", caption)]
