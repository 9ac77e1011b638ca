"""Section 4.1: NC on sinusoid regression, its fit to the gap and its use as a regularizer."""

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.experiments.base import comparison, plots, training
from neural_complexity.experiments.base.comparison import NONE, SCORES, Method, Result, label
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.rows import Keys, Row, distinct, find, pivot, select, show
from neural_complexity.experiments.base.run_folder import HEADS
from neural_complexity.learners.fit import Trajectory
from neural_complexity.meta import scores
from neural_complexity.meta.optimize import Status
from neural_complexity.model.judgement import judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "sinusoid"
STEPS = (1, 2, 4, 8, 16)
PAPER_LOSS: dict[str, dict[int, float]] = {
    "none": {1: 4.17, 2: 4.04, 4: 4.05, 8: 4.04, 16: 4.05},
    "NC": {1: 3.87, 2: 3.60, 4: 3.36, 8: 3.13, 16: 2.93},
}
PAPER_R2 = 0.9589
SETS = ("X_tr", "Y_tr", "H_tr", "X_te", "H_te", "Y_te")
TASKS_DRAWN, CANDIDATES = 6, 512  # tasks drawn one by one, chosen among the first ones
# The method of the paper, by head, and the kinds of learners on which each NC is scored.
PAPERS: dict[str, Keys] = {h: {"method": "NC", "head": h, "mode": "transductive"} for h in HEADS}
ENDS = {h: {"unregularized": "none", "regularized": label(PAPERS[h])} for h in HEADS}
KINDS = [(head, *kind) for head, kinds in ENDS.items() for kind in kinds.items()]


@dataclass(frozen=True, kw_only=True)
class Config(comparison.LearnerConfig):
    """Sinusoid regression; the defaults are the paper's."""

    posterior: training.Training = training.PAPERS  # NC with our head.
    direct: training.Training = training.PAPERS  # NC with the paper's head.


TINY = training.ours(width=32, batch=64, tasks=64, updates=10, iterations=20, capacity=10_000)
CPU: dict[str, Any] = {"posterior": training.minutes(iterations=200)}
CPU["direct"] = training.minutes(iterations=300, tasks=256)
SMOKE = {"eval_tasks": 256, "posterior": TINY, "direct": TINY}
PRESETS = comparison.presets(Config, SMOKE, CPU)
# The paper's wiring at a width that some two hours of one core can train to the paper's numbers.
LONG: dict[str, Any] = {"width": 128, "batch": 128, "updates": 32, "tasks": 256, "lr": 0.002}
LONG |= {"warmup": 0.1, "decay": True, "spread_weights": True, "capacity": 150_000}
WIRED = CPU | {"direct": training.Training(iterations=3600, **LONG)}
PRESETS["paper-wiring"] = partial(Config, **WIRED)


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Meta-trains NC with both heads and scores them on held-out tasks."""
    recipe, task = config.recipe(), comparison.evaluation_tasks(config)
    setup = training.Setup(Sinusoids(), recipe, config.seed, config.device)
    networks, history = dict[str, NeuralComplexity](), dict[str, list[Status]]()
    for head in HEADS:
        own = getattr(config, head)
        networks[head], history[head] = training.train_network(own, head, setup, work, callback)
    ncs = comparison.nc_methods(networks, task, config)
    methods = [NONE, *ncs, comparison.oracle(recipe, task)]

    def see(method: Method, learners: Trajectory) -> Result:
        found = {"gap": learners.gap}
        if method is NONE:
            found |= {**vars(learners.end), "Y_te": task.Y_te}
        for head, nc in networks.items():
            if method.keys in (NONE.keys, PAPERS[head]):
                told = judge(nc, learners.end)
                found |= {f"predicted/{head}": told.gap, f"points/{head}": told.points}
        return found

    parts, steps = Parts(work.sub("evaluation"), len(methods), callback), range(config.steps + 1)
    compare = partial(comparison.compare, seed=config.seed, steps=steps, see=see)
    results = compare(methods, recipe, task, parts)
    kept = comparison.kept_tasks(result for _, result in results)
    make = partial(Row.of, NAME, config.seed)
    rows = [make("diverged tasks", scores.count(~kept), step=config.steps)]
    tensors: Result = {}
    for keys, result in results:
        known = "" if keys.get("mode") == "inductive" else str(keys["method"])
        published = PAPER_LOSS.get(known, {})
        for step in sorted({step for step in STEPS if step < config.steps} | {config.steps}):
            row = partial(make, **keys, step=step)
            rows += comparison.loss_rows(row, results, result, step, kept, published.get(step))
        for key in [key for key in result if key != "diverged"]:
            curve, some = key.startswith("loss"), result[key]
            tensors[f"{label(keys)}/{key}"] = some[:, kept].mean(dim=1) if curve else some[kept]
    # The posterior head's own mean for y, which regularizing with it pulls h towards.
    nc, given = networks["posterior"], task[kept]
    losses = nc.loss(comparison.own_predictions(nc, given), given.Y_te).mean(dim=1)  # (B,)
    own = {"method": "NC", "head": "posterior", "mode": "its beliefs"}
    rows.append(make("test loss", scores.estimate_mean(losses), **own))
    for (head, kind, name), (metric, score) in product(KINDS, SCORES.items()):
        fit = scores.estimate(score, tensors[f"{name}/predicted/{head}"], tensors[f"{name}/gap"])
        paper = PAPER_R2 if metric == "R2" else None
        rows.append(make(metric, fit, paper, method="NC", head=head, learners=kind))
    return Outcome(rows, tensors, networks, history)


def tables(rows: list[Row]) -> list[Table]:
    """Returns the tables of test losses and of the fit to the gap."""
    losses, fits = select(rows, "test loss"), select(rows, "R2")
    steps = sorted({int(row.keys["step"]) for row in losses if "step" in row.keys})
    lines = []
    for keys in distinct(losses, *comparison.METHOD):
        belief = find(losses, "test loss", **keys, step=None)
        found = [belief or find(losses, "test loss", **keys, step=step) for step in steps]
        share = find(rows, "share of oracle", **keys, step=steps[-1])
        digits = 2 if belief is None else 4
        lines.append((label(keys), *(show(row, digits) for row in found), show(share, digits=4)))
    for paper in (NONE.keys, PAPERS["direct"]):
        found = [find(losses, "test loss", **paper, step=step) for step in steps]
        published = ["" if r is None or r.paper is None else f"{r.paper:.2f}" for r in found]
        lines.append((f"the paper's {paper['method']}", *published, ""))
    diverged = sum(row.value for row in select(rows, "diverged tasks"))
    kinds, cell = distinct(fits, "method", "head", "learners"), partial(show, digits=4)
    scored = pivot(rows, kinds, SCORES, lambda k: f"{label(k)}, {k['learners']} learners", cell)
    return [
        Table(
            f"Test loss after learner steps, {losses[0].n:,} held-out tasks",
            ("regularizer", *(f"{step} steps" for step in steps), "share of oracle"),
            tuple(lines),
            f"Value ± 95 % interval over tasks. Share of oracle at {steps[-1]} steps. Tasks left "
            f"out because a learner diverged: {diverged:.0f}. "
            "NC's beliefs are its own mean for y, used as a predictor without any learner.",
        ),
        Table(
            f"Predicted against true gap, {fits[0].n:,} held-out tasks",
            ("gap predictor", *SCORES),
            (*scored, ("the paper's NC", f"{PAPER_R2:.4f}", "", "")),
            "Value ± 95 % interval over tasks, for learners after their last step. R2 is the "
            "coefficient of determination.",
        ),
    ]


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws the figures from what a run left."""
    canvas, ax = plots.sketch(5.2, 3.2)
    for head, statuses in outcome.history.items():
        seconds, left = zip(*((s.seconds, 1 - s.r2) for s in statuses), strict=True)
        ax.plot(seconds, left, ".-", color=COLORS[head], label=f"{head} head")
    ax.axhline(1 - PAPER_R2, color=COLORS["none"], lw=0.8, ls=":", label="paper")
    ax.set(xlabel="seconds of meta-training", ylabel="1 - R2", yscale="log")
    ax.legend()
    caption = "1 - R2 on 512 validation learners; the line is the paper's final value."
    bought = Drawing("meta-training", canvas, "What meta-training buys", caption)
    tensors = outcome.tensors
    canvas, axes = plots.sketch(6.4, 3.1 * len(HEADS), len(HEADS), 2)
    for ax, (head, kind, name) in zip(axes.flat, KINDS, strict=True):
        true, predicted = tensors[f"{name}/gap"], tensors[f"{name}/predicted/{head}"]
        score = plots.scatter_gaps(ax, true, predicted, COLORS[head])
        ax.set_title(f"{head} head, {kind}: {score}")
    caption = (
        "One dot per held-out task, after the learner's last step; the outermost 0.2 % are cut "
        f"off. The paper's R2 is {PAPER_R2}. Left: plain learners. Right: learners regularized by "
        "the same NC."
    )
    fit = Drawing("gap-fit", canvas, "Predicted against true gap", caption)
    canvas, ax = plots.sketch(5.2, 3.4)
    names = {"none": "none"} | {f"NC {head}": label(PAPERS[head]) for head in reversed(HEADS)}
    for text, name in names.items():
        color = COLORS[text.removeprefix("NC ")]
        ax.plot(tensors[f"{name}/loss_te"], color=color, label=text)
        ax.plot(tensors[f"{name}/loss_tr"], color=color, ls="--", lw=1)
    # As dots: the posterior head's curve is the same line.
    ax.plot(tensors["oracle/loss_te"], "o", ms=3.5, color=COLORS["oracle"], label="oracle")
    ax.plot([], color=COLORS["target"], label="test")
    ax.plot([], color=COLORS["target"], ls="--", lw=1, label="train")
    ax.set(xlabel="learner step", ylabel="mean squared error")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    caption = "Mean over held-out tasks. In the paper NC's test loss is below its train loss."
    title = "Train and test loss while learning"
    return [fit, Drawing("learning-curves", canvas, title, caption), _tasks(tensors), bought]


def _tasks(tensors: Result) -> Drawing:
    order = tensors["none/predicted/posterior"][:CANDIDATES].argsort()
    picks = order[np.linspace(0, len(order) - 1, TASKS_DRAWN).round().astype(int)]
    canvas, axes = plots.sketch(11, 4.4, 2, TASKS_DRAWN, sharex=True, height_ratios=(3, 2))
    for (top, bottom), index in zip(axes.T, picks.tolist(), strict=True):
        task = {name: tensors[f"none/{name}"][index] for name in SETS}
        told = {head: tensors[f"none/points/{head}"][index] for head in reversed(HEADS)}
        plots.plot_targets(top, task)
        x_te, error_te = task["X_te"].squeeze(-1), (task["H_te"] - task["Y_te"]).squeeze(-1)  # (N,)
        true = error_te.square() - (task["H_tr"] - task["Y_tr"]).square().mean()
        bottom.vlines(x_te, 0, true, color=COLORS["none"], lw=1)
        bottom.plot(x_te, true, "o", ms=4, mfc="none", color=COLORS["target"], label="true")
        for (head, points), mark in zip(told.items(), "x+", strict=True):
            bottom.plot(x_te, points, mark, ms=6, color=COLORS[head], label=f"NC {head}")
        top.set_title(f"gap {true.mean():.2f}, NC {told['posterior'].mean():.2f}")
        bottom.set_xlabel("x")
    axes[0, 0].set_ylabel("y")
    axes[1, 0].set_ylabel("loss - train loss")
    canvas.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower left", ncols=3)
    canvas.legend(*axes[1, 0].get_legend_handles_labels(), loc="outside lower right", ncols=3)
    caption = (
        "Plain learners, from the smallest to the largest gap predicted by the posterior head. "
        "Above: training points, test targets (never shown to NC) and the learner's predictions. "
        "Below: each test point's loss minus the training loss, and NC's estimate."
    )
    return Drawing("tasks", canvas, "What NC sees, point by point", caption)


LEAD = (
    "NC meta-trained on sinusoids A sin(x + b), 10 training and 15 test points, judged on held-out "
    "tasks. A learner regularized by NC descends its training loss plus the gap that NC predicts. "
    "Transductive: NC judges the learner on the unlabelled test inputs themselves, as in the "
    "paper; inductive: on other unlabelled inputs. The oracle is the true gap in "
    "NC's place, so that learners descend their test loss itself."
)
EXPERIMENT = Experiment(NAME, "Sinusoid regression", LEAD, Config, PRESETS, run, tables, figures)
