"""Tables and figures of the omniglot experiment."""

import itertools
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from neural_complexity.assessment.drawing import COLORS, STYLE, save
from neural_complexity.assessment.page import Figure
from neural_complexity.assessment.tables import Table, find, show
from neural_complexity.experiments.base.networks import HEADS
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.omniglot import KINDS, PAPER_ACCURACY
from neural_complexity.meta.scores import mean_absolute_error, r_squared

__all__ = ["LEAD", "TITLE", "figures", "tables"]

TITLE = "Few-shot images (Omniglot)"
LEAD = (
    "A task is to tell some handwritten characters apart from few images of each (the paper: ten "
    "characters, one image of each). NC is meta-trained on learners with one hidden layer (MLP), "
    "on Omniglot's background characters and their rotations; here it meets the evaluation "
    "characters, from alphabets that it has never seen, and also convolutional learners (CNN), of "
    "which it has never seen any. A learner regularized by NC descends its training loss plus the "
    "gap that NC predicts. Transductive: NC judges the learner on the unlabelled test images "
    "themselves, as in the paper; inductive: on other unlabelled images of the same characters. "
    "The oracle descends the test loss itself. The direct head, which is the paper's, takes over "
    "image encoder and attention of the posterior head, which was trained first and also on the "
    "labels; it was trained no further in these, and knows ten classes only. All test sets hold "
    "equally many images of each character, which helps whoever looks at them together."
)
OWN = "NC {}, transductive"
MODES = {"transductive": "-", "inductive": "--"}
SOURCES = {"unregularized": "none", "regularized": OWN}


def tables(rows: list[Row]) -> list[Table]:
    """Makes the tables of learners, of methods without one, and of what NC foretells."""
    return [
        *(_learners(rows, kind) for kind in KINDS),
        _no_learner(rows),
        *(_fits(rows, kind) for kind in KINDS),
        _accuracies(rows),
    ]


def _learners(rows: list[Row], kind: str) -> Table:
    setting = f"{kind} learner"
    lines = []
    of_kind = [row for row in rows if row.setting == setting]
    for method in dict.fromkeys(row.method for row in of_kind if row.metric == "accuracy"):
        accuracy = find(rows, method, setting, "accuracy")
        published = accuracy.paper if accuracy is not None else None
        metrics = ("test loss", "train loss", "share of oracle")
        more = [show(find(rows, method, setting, metric), 3) for metric in metrics]
        lines.append((method, _published(published), show(accuracy), *more))
    n = next(row.n for row in of_kind if row.metric == "accuracy")
    diverged = next(row.value for row in of_kind if row.metric == "diverged tasks")
    return Table(
        f"{kind} learners after their last step, {n:,} held-out tasks",
        (
            "regularizer",
            "paper's accuracy",
            "accuracy",
            "test loss",
            "train loss",
            "share of oracle",
        ),
        tuple(lines),
        "Value ± 95 % interval over tasks; accuracies in %. Share of oracle: of its improvement of "
        f"the test loss. Tasks left out because a learner diverged: {diverged:.0f}."
        + (" NC was trained on MLP learners only." if kind != "MLP" else ""),
    )


def _published(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _no_learner(rows: list[Row]) -> Table:
    found = [row for row in rows if row.setting == "no learner"]
    return Table(
        f"Accuracy in % without a learner, {found[0].n:,} held-out tasks",
        ("method", "accuracy"),
        tuple((row.method, show(row)) for row in found),
        "Value ± 95 % interval over tasks. Transductive: all unlabelled test images of a task are "
        "looked at together; inductive: each by itself. Beliefs: the label that NC with the "
        "posterior head thinks likeliest. The prototypical network has an image encoder of the "
        "same kind, trained on the same tasks as many times; soft k-means moves its means to the "
        "test images that choose them, three times, as NC does, but only here and not in training.",
    )


def _fits(rows: list[Row], kind: str) -> Table:
    lines = []
    metrics = ("R2", "correlation", "MAE")
    kept = [row for row in rows if row.metric == "R2" and row.setting.startswith(f"{kind}, ")]
    for row in kept:
        found = [show(find(rows, row.method, row.setting, metric), 3) for metric in metrics]
        learners = row.setting.removeprefix(f"{kind}, ").removesuffix(" endpoints")
        lines.append((f"{row.method}; {learners}", *found))
    return Table(
        f"Predicted against true gap of {kind} learners, {kept[0].n:,} held-out tasks",
        ("gap predictor; learners", *metrics),
        tuple(lines),
        "Value ± 95 % interval over tasks. Learners without NC (unregularized) and with this very "
        "NC (regularized, transductive) after their last step; and both before the first step and "
        "after 1, 2, 4, ... steps, too, which is easier (untrained learners have no gap); "
        "there the steps of a task depend on each other, and there is no "
        "interval. R2 is the coefficient of determination.",
    )


def _accuracies(rows: list[Row]) -> Table:
    lines = []
    for row in rows:
        if row.metric == "predicted accuracy":
            metrics = ("predicted accuracy", "accuracy", "accuracy MAE")
            found = [show(find(rows, row.method, row.setting, metric)) for metric in metrics]
            lines.append((row.setting.removesuffix(" endpoints"), *found))
    n = next(row.n for row in rows if row.metric == "predicted accuracy")
    return Table(
        f"Accuracy in % that NC's beliefs foretell, {n:,} held-out tasks",
        ("learners", "predicted", "true", "MAE"),
        tuple(lines),
        "Value ± 95 % interval over tasks. The posterior head believes something about each test "
        "label, and so about how many of a learner's answers are right; MAE over tasks.",
    )


def figures(outcome: Outcome, folder: Path) -> list[Figure]:
    """Draws the figures from what a run left."""
    tensors = outcome.tensors
    with mpl.rc_context(STYLE):
        return [
            Figure(
                save(_curves(tensors), folder, "accuracy"),
                "Accuracy by learner step",
                "Mean over held-out tasks; the bands are 95 % intervals of the mean. Dashed: NC "
                "judges on other unlabelled images than the test images (inductive).",
            ),
            Figure(
                save(_gap_fit(tensors), folder, "gap-fit"),
                "Predicted against true gap",
                "One dot per held-out task, after the learner's last step; the outermost 1 % of "
                "values are cut off. Regularized: by the NC that predicts.",
            ),
            Figure(
                save(_accuracy_fit(tensors), folder, "accuracy-fit"),
                "Predicted against true accuracy",
                "One dot per held-out task, after the learner's last step: the accuracy that the "
                "posterior head's beliefs about the test labels foretell. True accuracies take few "
                "values: dots are moved sideways a little, at random.",
            ),
        ]


def _curves(tensors: dict[str, Tensor]) -> Canvas:
    canvas = Canvas(figsize=(8.6, 3.5), layout="constrained")
    axes = canvas.subplots(1, len(KINDS), sharey=True)
    plans = [("none", "none", "-")]
    for head in HEADS:
        plans += [(f"NC {head}, {mode}", head, line) for mode, line in MODES.items()]
    plans.append(("oracle", "oracle", "-"))
    for ax, kind in zip(axes, KINDS, strict=True):
        for method, color, line in plans:
            values = 100 * tensors[f"{kind}/{method}/accuracy"]  # (steps + 1, B)
            mean, steps = values.mean(dim=1).numpy(), range(len(values))
            ax.plot(steps, mean, line, color=COLORS[color], label=method)
            half = 1.96 * values.std(dim=1).numpy() / values.shape[1] ** 0.5
            ax.fill_between(steps, mean - half, mean + half, color=COLORS[color], alpha=0.12, lw=0)
        ax.set(title=f"{kind} learners", xlabel="learner steps", ylim=(0, 100))
    published: dict[str, Any] = {
        "color": COLORS["target"],
        "lw": 0.8,
        "ls": ":",
        "label": "the paper's NC",
    }
    axes[0].axhline(PAPER_ACCURACY, **published)  # of MLP learners
    axes[0].set_ylabel("accuracy in %")
    canvas.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    return canvas


def _gap_fit(tensors: dict[str, Tensor]) -> Canvas:
    canvas = Canvas(figsize=(10.4, 5.6), layout="constrained")
    axes = canvas.subplots(len(HEADS), len(KINDS) * len(SOURCES))
    columns = list(itertools.product(KINDS, SOURCES))
    for line, head in zip(axes, HEADS, strict=True):
        for ax, (kind, source) in zip(line, columns, strict=True):
            learners = f"{kind}/{SOURCES[source].format(head)}"
            predicted, true = (tensors[f"{learners}/{k}"][-1] for k in (f"predicted/{head}", "gap"))
            _scatter(ax, true, predicted, COLORS[head])
            ax.set_title(f"R2 = {r_squared(predicted, true).item():.3f}")
        line[0].set_ylabel(f"{head} head\n\npredicted gap")
    for ax, (kind, source) in zip(axes[0], columns, strict=True):
        ax.set_title(f"{kind}, {source}\n{ax.get_title()}")
    for ax in axes[-1]:
        ax.set_xlabel("true gap")
    return canvas


def _scatter(ax: Axes, true: Tensor, predicted: Tensor, color: str) -> None:
    # A handful of extreme tasks would squeeze all others into a corner.
    both = np.stack([true.numpy(), predicted.numpy()])
    low, high = np.quantile(both[:, np.isfinite(both).all(axis=0)], [0.005, 0.995])
    room = 0.05 * (high - low)
    low, high = low - room, high + room
    ax.plot([low, high], [low, high], color=COLORS["target"], lw=0.8)
    ax.plot(true, predicted, ".", ms=5, alpha=0.4, mew=0, color=color, rasterized=True)
    ax.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(4))


def _accuracy_fit(tensors: dict[str, Tensor]) -> Canvas:
    canvas = Canvas(figsize=(10.4, 3.2), layout="constrained")
    axes = canvas.subplots(1, len(KINDS) * len(SOURCES), sharex=True, sharey=True)
    random = np.random.default_rng(0)
    lowest = 100.0
    for ax, (kind, source) in zip(axes, itertools.product(KINDS, SOURCES), strict=True):
        learners = f"{kind}/{SOURCES[source].format('posterior')}"
        predicted, true = (
            100 * tensors[f"{learners}/{name}"][-1] for name in ("predicted accuracy", "accuracy")
        )
        lowest = min(lowest, predicted.min().item(), true.min().item())
        moved = true.numpy() + random.uniform(-0.6, 0.6, len(true))
        ax.plot([0, 100], [0, 100], color=COLORS["target"], lw=0.8)
        look: dict[str, Any] = {"color": COLORS["posterior"], "alpha": 0.4, "mew": 0}
        ax.plot(moved, predicted, ".", ms=5, rasterized=True, **look)
        error = mean_absolute_error(predicted, true).item()
        ax.set_title(f"{kind}, {source}\nMAE = {error:.1f}")
        ax.set(aspect="equal", xlabel="true accuracy in %")
    axes[0].set(xlim=(lowest - 2, 102), ylim=(lowest - 2, 102))
    axes[0].set_ylabel("predicted accuracy in %")
    return canvas
