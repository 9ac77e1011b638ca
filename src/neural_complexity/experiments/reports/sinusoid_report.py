"""Tables and figures of the sinusoid experiment."""

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
from neural_complexity.experiments.sinusoid import PAPER_R2
from neural_complexity.meta.scores import r_squared
from neural_complexity.meta.training_loop import Moment

__all__ = ["LEAD", "TITLE", "figures", "tables"]

TITLE = "Sinusoid regression"
LEAD = (
    "NC meta-trained on sinusoids A sin(x + b), 10 training and 15 test points, judged on held-out "
    "tasks. A learner regularized by NC descends its training loss plus the gap that NC predicts. "
    "Transductive: NC judges the learner on the unlabelled test inputs themselves, as in the "
    "paper; inductive: on other unlabelled inputs. The oracle descends the test loss itself: no "
    "gap predictor can do better."
)
TASKS_SHOWN = 6


def tables(rows: list[Row]) -> list[Table]:
    """Makes the tables of test losses and of the fit to the gap."""
    return [_losses(rows), _fits(rows)]


def _losses(rows: list[Row]) -> Table:
    settings = sorted(
        {r.setting for r in rows if r.setting.endswith(" steps")}, key=lambda s: int(s.split()[0])
    )
    lines = []
    for method in dict.fromkeys(r.method for r in rows if r.metric == "test loss"):
        belief = find(rows, method, "no learner", "test loss")
        found = [belief or find(rows, method, s, "test loss") for s in settings]
        share = find(rows, method, settings[-1], "share of oracle")
        digits = 2 if belief is None else 4
        lines.append((method, *(show(row, digits) for row in found), show(share, digits=4)))
    for name, method in (("none", "none"), ("NC", "NC direct, transductive")):
        found = [find(rows, method, s, "test loss") for s in settings]
        published = ["" if r is None or r.paper is None else f"{r.paper:.2f}" for r in found]
        lines.append((f"the paper's {name}", *published, ""))
    n = next(row.n for row in rows if row.metric == "test loss")
    diverged = sum(row.value for row in rows if row.metric == "diverged tasks")
    return Table(
        f"Test loss after learner steps, {n:,} held-out tasks",
        ("regularizer", *settings, "share of oracle"),
        tuple(lines),
        f"Value ± 95 % interval over tasks. Share of oracle at {settings[-1]}. Tasks left out "
        f"because a learner diverged: {diverged:.0f}. "
        "NC's beliefs are its own mean for y, used as a predictor without any learner.",
    )


def _fits(rows: list[Row]) -> Table:
    lines = []
    for method, setting in dict.fromkeys((r.method, r.setting) for r in rows if r.metric == "R2"):
        found = [find(rows, method, setting, m) for m in ("R2", "correlation", "MAE")]
        learners = setting.removesuffix(" endpoints")
        lines.append((f"{method}, {learners} learners", *(show(row, 4) for row in found)))
    lines.append(("the paper's NC", f"{PAPER_R2:.4f}", "", ""))
    n = next(row.n for row in rows if row.metric == "R2")
    return Table(
        f"Predicted against true gap, {n:,} held-out tasks",
        ("gap predictor", "R2", "correlation", "MAE"),
        tuple(lines),
        "Value ± 95 % interval over tasks, for learners after their last step. R2 is the "
        "coefficient of determination.",
    )


def figures(outcome: Outcome, folder: Path) -> list[Figure]:
    """Draws the figures from what a run left."""
    tensors, history = outcome.tensors, outcome.history
    with mpl.rc_context(STYLE):
        return [
            Figure(
                save(_gap_fit(tensors), folder, "gap-fit"),
                "Predicted against true gap",
                "One dot per held-out task, after the learner's last step; the outermost 0.2 % of "
                f"tasks are cut off. The paper's R2 is {PAPER_R2}. Left: plain learners. Right: "
                "learners regularized by the same NC.",
            ),
            Figure(
                save(_curves(tensors), folder, "learning-curves"),
                "Train and test loss while learning",
                "Mean over held-out tasks; test solid, train dashed. In the paper the test loss "
                "with NC is below the train loss throughout.",
            ),
            Figure(
                save(_tasks(tensors), folder, "tasks"),
                "What NC sees, point by point",
                "Plain learners, from the smallest to the largest gap predicted by the posterior "
                "head. Above: training points, test targets (never shown to NC) and the learner's "
                "predictions. Below: each test point's loss minus the training loss, and NC's "
                "estimate.",
            ),
            Figure(
                save(_progress(history), folder, "meta-training"),
                "What meta-training time buys",
                "1 - R2 on 512 validation learners, by seconds of meta-training; the line is the "
                "paper's final value.",
            ),
        ]


def _gap_fit(tensors: dict[str, Tensor]) -> Canvas:
    canvas = Canvas(figsize=(6.4, 3.1 * len(HEADS)), layout="constrained")
    axes = canvas.subplots(len(HEADS), 2)
    for i, head in enumerate(HEADS):
        for j, kind in enumerate(("unregularized", "regularized")):
            ax: Axes = axes[i, j]
            true, predicted = tensors[f"gap/{kind}/{head}"], tensors[f"predicted/{kind}/{head}"]
            ax.plot(true, predicted, ".", ms=2, alpha=0.25, color=COLORS[head], rasterized=True)
            # A handful of extreme tasks would squeeze all others into a corner.
            low, high = np.quantile(np.concatenate([true, predicted]), [0.001, 0.999])
            ax.plot([low, high], [low, high], color=COLORS["target"], lw=0.8)
            ax.set(xlim=(low, high), ylim=(low, high), aspect="equal")
            ax.set_title(f"{head} head, {kind}: R2 = {r_squared(predicted, true).item():.4f}")
            ax.set(xlabel="true gap", ylabel="predicted gap")
    return canvas


def _curves(tensors: dict[str, Tensor]) -> Canvas:
    canvas = Canvas(figsize=(5.2, 3.4), layout="constrained")
    ax = canvas.subplots()
    shown = {
        "none": "none",
        "NC direct, transductive": "direct",
        "NC posterior, transductive": "posterior",
        "oracle": "oracle",
    }
    for method, color in shown.items():
        label = method.removesuffix(", transductive")
        if method == "oracle":  # as dots: the posterior head's curve is the same line
            ax.plot(tensors[f"loss_te/{method}"], "o", ms=3.5, color=COLORS[color], label=label)
            continue
        ax.plot(tensors[f"loss_te/{method}"], color=COLORS[color], label=label)
        ax.plot(tensors[f"loss_tr/{method}"], color=COLORS[color], ls="--", lw=1)
    ax.plot([], color=COLORS["target"], label="test")
    ax.plot([], color=COLORS["target"], ls="--", lw=1, label="train")
    ax.set(xlabel="learner step", ylabel="mean squared error")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return canvas


def _tasks(tensors: dict[str, Tensor]) -> Canvas:
    points = tensors["points/posterior"]
    order = points.mean(dim=1).argsort()
    picks = order[np.linspace(0, len(order) - 1, TASKS_SHOWN).round().astype(int)]
    canvas = Canvas(figsize=(11, 4.4), layout="constrained")
    axes = canvas.subplots(2, TASKS_SHOWN, sharex=True, height_ratios=(3, 2))
    for column, task in zip(axes.T, picks.tolist(), strict=True):
        _one_task(column, tensors, task)
    axes[0, 0].set_ylabel("y")
    axes[1, 0].set_ylabel("loss - train loss")
    canvas.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower left", ncols=3)
    canvas.legend(*axes[1, 0].get_legend_handles_labels(), loc="outside lower right", ncols=3)
    return canvas


def _one_task(column: np.ndarray, tensors: dict[str, Tensor], task: int) -> None:
    x_tr, y_tr, h_tr, x_te, h_te, y_te = (
        tensors[f"tasks/{name}"][task, :, 0]
        for name in ("X_tr", "Y_tr", "H_tr", "X_te", "H_te", "Y_te")
    )
    top, bottom = column
    top.plot(x_tr, y_tr, "o", ms=4, color=COLORS["target"], label="training points")
    top.plot(x_te, y_te, "o", ms=4, mfc="none", color=COLORS["target"], label="test targets")
    top.plot(x_te, h_te, "+", ms=6, color=COLORS["none"], label="learner on test inputs")
    true = (h_te - y_te).square() - (h_tr - y_tr).square().mean()
    bottom.vlines(x_te, 0, true, color=COLORS["none"], lw=1)
    bottom.plot(x_te, true, "o", ms=4, mfc="none", color=COLORS["target"], label="true")
    for head, mark in (("direct", "x"), ("posterior", "+")):
        estimate = tensors[f"points/{head}"][task]
        bottom.plot(x_te, estimate, mark, ms=6, color=COLORS[head], label=f"NC {head}")
    predicted = tensors["points/posterior"][task].mean()
    top.set_title(f"gap {true.mean():.2f}, NC {predicted:.2f}")
    bottom.set_xlabel("x")


def _progress(history: dict[str, list[Moment]]) -> Canvas:
    canvas = Canvas(figsize=(5.2, 3.2), layout="constrained")
    ax = canvas.subplots()
    for head, moments in history.items():
        seconds = [moment.seconds for moment in moments]
        ax.plot(
            seconds, [1 - m.r2 for m in moments], ".-", color=COLORS[head], label=f"{head} head"
        )
    ax.axhline(1 - PAPER_R2, color=COLORS["none"], lw=0.8, ls=":", label="paper")
    ax.set(xlabel="seconds of meta-training", ylabel="1 - R2", yscale="log")
    ax.legend()
    return canvas
