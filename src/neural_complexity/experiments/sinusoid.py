"""Section 4.1: NC on sinusoid regression, its fit to the gap and its use as a regularizer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Annotated

import numpy as np
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from neural_complexity.assessment.drawing import COLORS
from neural_complexity.assessment.tables import Table
from neural_complexity.experiments.base import comparison, plots
from neural_complexity.experiments.base.comparison import NONE, SCORES, Method, Result, label
from neural_complexity.experiments.base.config import POSITIVE, AtLeast, BaseConfig
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.rows import Key, Keys, Row, make_row
from neural_complexity.experiments.base.saved_networks import HEADS
from neural_complexity.experiments.base.table_views import distinct, find, pivot, select, show
from neural_complexity.experiments.base.training import Setup, Training, ours, train_network
from neural_complexity.learners.trajectory import Trajectory
from neural_complexity.meta import scores
from neural_complexity.meta.trainer import Status
from neural_complexity.model.judgement import judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "sinusoid"
STEPS = (1, 2, 4, 8, 16)
PAPER_LOSS: dict[Key, dict[int, float]] = {
    "none": {1: 4.17, 2: 4.04, 4: 4.05, 8: 4.04, 16: 4.05},
    "NC": {1: 3.87, 2: 3.60, 4: 3.36, 8: 3.13, 16: 2.93},
}
PAPER_R2 = 0.9589
METHOD = ("method", "head", "mode")  # keys that name a method
CURVES = ("loss_tr", "loss_te")
SETS = ("X_tr", "Y_tr", "H_tr", "X_te", "H_te", "Y_te")
TASKS_DRAWN, CANDIDATES = 6, 512  # tasks drawn one by one, chosen among the first ones


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Sinusoid regression; the defaults are the paper's."""

    learner_width: Annotated[int, AtLeast(1)] = 40  # Units of each hidden layer of the learner.
    learner_layers: Annotated[int, AtLeast(0)] = 2  # Hidden layers of the learner.
    steps: Annotated[int, AtLeast(1)] = 16  # Updates of the learner.
    lr: Annotated[float, POSITIVE] = 0.01  # Learning rate of the learner (SGD).
    posterior: Training = field(default_factory=Training)  # NC with our head.
    direct: Training = field(default_factory=Training)  # NC with the paper's head.


TINY = ours(width=32, batch=64, tasks=64, updates=10, iterations=20, capacity=10_000)
MINUTES = partial(ours, width=128, batch=128, updates=32, capacity=150_000)
PRESETS = comparison.presets(
    Config,
    smoke={"eval_tasks": 256, "posterior": TINY, "direct": TINY},
    cpu={"posterior": MINUTES(iterations=200), "direct": MINUTES(iterations=300, tasks=256)},
    paper={},
)


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Meta-trains NC with both heads and scores them on held-out tasks."""
    recipe = comparison.sinusoid_recipe(
        width=config.learner_width, layers=config.learner_layers, steps=config.steps, lr=config.lr
    )
    setup = Setup(family=Sinusoids(), recipe=recipe, seed=config.seed, device=config.device)
    networks: dict[str, NeuralComplexity] = {}
    history: dict[str, list[Status]] = {}
    for head in HEADS:
        training = getattr(config, head)
        networks[head], history[head] = train_network(training, head, setup, work, callback)
    task = comparison.evaluation_tasks(config)
    ncs = comparison.nc_methods(networks, task, config)
    methods = [NONE, *ncs, comparison.oracle(recipe, task)]

    def see(method: Method, learners: Trajectory) -> Result:
        found = {"gap": learners.gap}
        if method is NONE:
            found |= {**vars(learners.end), "Y_te": task.Y_te}
        for head, nc in networks.items():
            if method.keys in (NONE.keys, _regularized(head)):
                told = judge(nc, learners.end)
                found |= {f"predicted/{head}": told.gap, f"points/{head}": told.points}
        return found

    parts, steps = Parts(work.sub("evaluation"), len(methods), callback), range(config.steps + 1)
    results = comparison.compare(
        methods, recipe, task, parts, seed=config.seed, steps=steps, see=see
    )
    kept = comparison.kept_tasks(result for _, result in results)
    rows = [make_row(NAME, config.seed, "diverged tasks", scores.count(~kept), step=config.steps)]
    for keys, result in results:
        published = {} if keys.get("mode") == "inductive" else PAPER_LOSS.get(keys["method"], {})
        three = (results[0][1], result, results[-1][1])
        for step in sorted({step for step in STEPS if step < config.steps} | {config.steps}):
            row = partial(make_row, NAME, config.seed, **keys, step=step)
            rows += comparison.loss_rows(row, three, step, kept, published.get(step))
    tensors = {
        f"{label(keys)}/{key}": tensor[:, kept].mean(dim=1) if key in CURVES else tensor[kept]
        for keys, result in results
        for key, tensor in result.items()
        if key != "diverged"
    }
    rows += _nc_rows(config, task[kept], networks["posterior"], tensors)
    return Outcome(rows, tensors, networks, history)


def _regularized(head: str) -> Keys:
    """The method of the paper."""
    return {"method": "NC", "head": head, "mode": "transductive"}


def _ends(head: str) -> dict[str, str]:
    """The methods on whose learners an NC is scored, by kind."""
    return {"unregularized": NONE.name, "regularized": label(_regularized(head))}


def _nc_rows(config: Config, task: Task, nc: NeuralComplexity, tensors: Result) -> list[Row]:
    """How good the posterior head's own mean is, and the predicted gaps where learners end."""
    make: Callable[..., Row] = partial(make_row, NAME, config.seed, method="NC")
    # What regularizing with it pulls h towards.
    own = nc.loss(comparison.own_predictions(nc, task), task.Y_te).mean(dim=1)  # (B,)
    rows = [make("test loss", scores.estimate_mean(own), head="posterior", mode="its beliefs")]
    for head in HEADS:
        for (learners, name), (metric, score) in product(_ends(head).items(), SCORES.items()):
            predicted, gap = tensors[f"{name}/predicted/{head}"], tensors[f"{name}/gap"]
            paper = PAPER_R2 if metric == "R2" else None
            fit = scores.estimate(score, predicted, gap)
            rows.append(make(metric, fit, paper, head=head, learners=learners))
    return rows


def tables(rows: list[Row]) -> list[Table]:
    """Returns the tables of test losses and of the fit to the gap."""
    losses, fits = select(rows, "test loss"), select(rows, "R2")
    steps = sorted({int(row.keys["step"]) for row in losses if "step" in row.keys})
    lines = []
    for keys in distinct(losses, *METHOD):
        belief = find(losses, "test loss", **keys, step=None)
        found = [belief or find(losses, "test loss", **keys, step=step) for step in steps]
        share = find(rows, "share of oracle", **keys, step=steps[-1])
        digits = 2 if belief is None else 4
        lines.append((label(keys), *(show(row, digits) for row in found), show(share, digits=4)))
    for paper in (NONE.keys, _regularized("direct")):
        found = [find(losses, "test loss", **paper, step=step) for step in steps]
        published = ["" if r is None or r.paper is None else f"{r.paper:.2f}" for r in found]
        lines.append((f"the paper's {paper['method']}", *published, ""))
    diverged = sum(row.value for row in select(rows, "diverged tasks"))
    scored = pivot(
        rows,
        distinct(fits, "method", "head", "learners"),
        [(metric, {}) for metric in SCORES],
        lambda keys: f"{label(keys)}, {keys['learners']} learners",
        partial(show, digits=4),
    )
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
    return [
        Drawing(
            "gap-fit",
            _gap_fit(outcome.tensors),
            "Predicted against true gap",
            "One dot per held-out task, after the learner's last step; the outermost 0.2 % of "
            f"tasks are cut off. The paper's R2 is {PAPER_R2}. Left: plain learners. Right: "
            "learners regularized by the same NC.",
        ),
        Drawing(
            "learning-curves",
            _curves(outcome.tensors),
            "Train and test loss while learning",
            "Mean over held-out tasks; test solid, train dashed. In the paper the test loss "
            "with NC is below the train loss throughout.",
        ),
        Drawing(
            "tasks",
            _tasks(outcome.tensors),
            "What NC sees, point by point",
            "Plain learners, from the smallest to the largest gap predicted by the posterior "
            "head. Above: training points, test targets (never shown to NC) and the learner's "
            "predictions. Below: each test point's loss minus the training loss, and NC's "
            "estimate.",
        ),
        Drawing(
            "meta-training",
            plots.plot_meta_training(outcome.history, PAPER_R2),
            "What meta-training time buys",
            "1 - R2 on 512 validation learners, by seconds of meta-training; the line is the "
            "paper's final value.",
        ),
    ]


def _gap_fit(tensors: dict[str, Tensor]) -> Canvas:
    canvas = Canvas(figsize=(6.4, 3.1 * len(HEADS)), layout="constrained")
    axes = canvas.subplots(len(HEADS), 2)
    for i, head in enumerate(HEADS):
        for j, (kind, name) in enumerate(_ends(head).items()):
            true, predicted = tensors[f"{name}/gap"], tensors[f"{name}/predicted/{head}"]
            score = plots.scatter_gaps(axes[i, j], true, predicted, COLORS[head])
            axes[i, j].set_title(f"{head} head, {kind}: {score}")
    return canvas


def _curves(tensors: dict[str, Tensor]) -> Canvas:
    canvas = Canvas(figsize=(5.2, 3.4), layout="constrained")
    ax = canvas.subplots()
    for head in (None, *reversed(HEADS)):
        name = "none" if head is None else label(_regularized(head))
        color, text = COLORS[head or "none"], f"NC {head}" if head else "none"
        ax.plot(tensors[f"{name}/loss_te"], color=color, label=text)
        ax.plot(tensors[f"{name}/loss_tr"], color=color, ls="--", lw=1)
    # As dots: the posterior head's curve is the same line.
    ax.plot(tensors["oracle/loss_te"], "o", ms=3.5, color=COLORS["oracle"], label="oracle")
    ax.plot([], color=COLORS["target"], label="test")
    ax.plot([], color=COLORS["target"], ls="--", lw=1, label="train")
    ax.set(xlabel="learner step", ylabel="mean squared error")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return canvas


def _tasks(tensors: dict[str, Tensor]) -> Canvas:
    order = tensors["none/predicted/posterior"][:CANDIDATES].argsort()
    picks = order[np.linspace(0, len(order) - 1, TASKS_DRAWN).round().astype(int)]
    canvas = Canvas(figsize=(11, 4.4), layout="constrained")
    axes = canvas.subplots(2, TASKS_DRAWN, sharex=True, height_ratios=(3, 2))
    for (top, bottom), index in zip(axes.T, picks.tolist(), strict=True):
        task = {name: tensors[f"none/{name}"][index] for name in SETS}
        told = {head: tensors[f"none/points/{head}"][index] for head in reversed(HEADS)}
        plots.plot_targets(top, task)
        true = plots.plot_points(bottom, task, told)
        top.set_title(f"gap {true.mean():.2f}, NC {told['posterior'].mean():.2f}")
        bottom.set_xlabel("x")
    axes[0, 0].set_ylabel("y")
    axes[1, 0].set_ylabel("loss - train loss")
    canvas.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower left", ncols=3)
    canvas.legend(*axes[1, 0].get_legend_handles_labels(), loc="outside lower right", ncols=3)
    return canvas


LEAD = (
    "NC meta-trained on sinusoids A sin(x + b), 10 training and 15 test points, judged on "
    "held-out tasks. A learner regularized by NC descends its training loss plus the gap that "
    "NC predicts. Transductive: NC judges the learner on the unlabelled test inputs "
    "themselves, as in the paper; inductive: on other unlabelled inputs. The oracle descends "
    "the test loss itself: no gap predictor can do better."
)
EXPERIMENT = Experiment(NAME, "Sinusoid regression", LEAD, Config, PRESETS, run, tables, figures)
