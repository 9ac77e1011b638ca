"""Section 4.1, "Learning Curve", sixty-four times longer than the paper's."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from matplotlib.figure import Figure as Canvas
from torch import Tensor

from neural_complexity.assessment.drawing import COLORS
from neural_complexity.assessment.tables import Table
from neural_complexity.experiments.base import comparison
from neural_complexity.experiments.base.comparison import FEW, NONE, Method, label
from neural_complexity.experiments.base.config import AtLeast, NetworksConfig
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.rows import Keys, Row, make_row
from neural_complexity.experiments.base.saved_networks import how_made, load_networks
from neural_complexity.experiments.base.table_views import distinct, find, pivot, select, show
from neural_complexity.meta.scores import Estimate, count, estimate, estimate_mean, share_of_oracle
from neural_complexity.progress import ProgressCallback
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "curves"
METHOD = ("method", "head", "weight", "mode")  # keys that name a method
TABLES = {
    "test loss": ("Test loss", 3),
    "train loss": ("Train loss", 3),
    "gap": ("Test loss minus train loss", 3),
    "share of oracle": ("Share of the oracle's improvement", 4),
}
TABLE_STEPS = (1, 4, 16, 64, 256, 1024)
LOWEST, BELOW = "step of the lowest test loss", "share of steps with test below train"
COLOR = {
    "none": COLORS["none"],
    "L2 (0.01)": "#c3a5d0",
    "L2 (1)": "#9a6fb0",
    "NC posterior, transductive": COLORS["posterior"],
    "NC posterior, inductive": "#8fbfe3",
    "NC direct, transductive": COLORS["direct"],
    "NC direct, inductive": "#f0bd8f",
    "oracle": COLORS["oracle"],
}


@dataclass(frozen=True, kw_only=True)
class Config(NetworksConfig):
    """Long learning curves."""

    steps: Annotated[int, AtLeast(1)] = 1024
    """Updates of the learners; the paper's figure has 16."""


PRESETS: dict[str, Callable[[], Config]] = {
    "smoke": lambda: Config(eval_tasks=64, steps=32),
    "cpu": lambda: Config(eval_tasks=512),
    "paper": Config,  # all tasks, for a GPU
}


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Trains learners for long, with and without NC."""
    networks = load_networks(config.networks, config.device)
    task = comparison.evaluation_tasks(config)
    recipe = comparison.sinusoid_recipe(steps=config.steps)
    ncs = comparison.nc_methods(networks, task, comparison.unlabelled_inputs(config))
    methods = [
        NONE,
        comparison.norm("L2", 0.01),
        comparison.norm("L2", 1.0),
        *ncs,
        comparison.oracle(recipe, task),
    ]
    parts = Parts(work, len(methods), callback)

    def train(method: Method) -> dict[str, Tensor]:
        trajectory = comparison.train_with(method, recipe, task, seed=config.seed)
        return comparison.losses_at(trajectory, range(config.steps + 1))

    results = [parts.do(method.name, partial(train, method)) for method in methods]
    tensors = {
        f"{key}/{method.name}": result[key][:, ~result["diverged"][-1]].mean(dim=1)
        for method, result in zip(methods, results, strict=True)
        for key in ("loss_tr", "loss_te")
    }
    rows = [
        row
        for method, result in zip(methods, results, strict=True)
        for row in _rows(config, method.keys, result, results[0], results[-1])
    ]
    return Outcome(rows, tensors, facts=how_made(networks, parts))


def reported_steps(config: Config) -> list[int]:
    """Returns the steps with rows of their own: 1, 2, 4, ..., and the last."""
    powers = [2**i for i in range(config.steps.bit_length())]
    return sorted({*powers, config.steps})


def _rows(
    config: Config,
    keys: Keys,
    result: dict[str, Tensor],
    none: dict[str, Tensor],
    best: dict[str, Tensor],
) -> list[Row]:
    """Losses after some steps, and what whole curves do, of learners that did not diverge."""
    row = partial(make_row, NAME, config.seed, **keys)
    diverged = result["diverged"][-1]
    rows = [row("diverged tasks", count(diverged), step=config.steps)]
    if diverged.sum() > FEW * diverged.numel():
        return rows
    loss_tr, loss_te = (result[key][:, ~diverged] for key in ("loss_tr", "loss_te"))
    three = (none, result, best)
    common = comparison.kept_tasks(three)
    for step in reported_steps(config):
        rows.append(row("test loss", estimate_mean(loss_te[step]), step=step))
        rows.append(row("train loss", estimate_mean(loss_tr[step]), step=step))
        rows.append(row("gap", estimate_mean(loss_te[step] - loss_tr[step]), step=step))
        if keys["method"] not in ("none", "oracle"):
            share = estimate(share_of_oracle, *(r["loss_te"][step][common] for r in three))
            rows.append(row("share of oracle", share, step=step))
    curve_te, curve_tr = loss_te.mean(dim=1), loss_tr.mean(dim=1)  # (steps + 1,)
    below = (curve_te < curve_tr)[1:].double().mean().item()
    for metric, value in ((LOWEST, curve_te.argmin().item()), (BELOW, below)):
        rows.append(row(metric, Estimate(value, None, loss_te.shape[1])))
    return rows


def tables(rows: list[Row]) -> list[Table]:
    """Returns the tables of losses, gaps, shares of the oracle, and of whole curves."""
    last = max(int(row.keys["step"]) for row in select(rows, "test loss"))
    steps = [step for step in TABLE_STEPS if step < last] + [last]
    tasks = max(row.n for row in rows)
    lost = [row for row in select(rows, "diverged tasks") if row.value]
    some = ", ".join(f"{label(row.keys)} {row.value:.0f}" for row in lost) or "none"
    note = (
        f"Value ± 95 % interval over {tasks:,} tasks. Left out of their method, since their losses "
        f"ended ten times above where they began, or not finite: {some}."
    )
    made = []
    for metric, (title, digits) in TABLES.items():
        lines = distinct(select(rows, metric), *METHOD)
        columns = [(metric, {"step": step}) for step in steps]
        cells = pivot(rows, lines, columns, label, partial(show, digits=digits))
        header = ("regularizer", *(f"{step} steps" for step in steps))
        made.append(Table(f"{title} after learner steps", header, tuple(cells), note))
    whole = [
        (
            label(keys),
            *(f"{row.value:.3g}" for m in (LOWEST, BELOW) if (row := find(rows, m, **keys))),
        )
        for keys in distinct(select(rows, LOWEST), *METHOD)
    ]
    made.append(Table("Whole curves", ("regularizer", LOWEST, BELOW), tuple(whole)))
    return made


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws the curves."""
    return [
        Drawing(
            "curves",
            _curves(outcome),
            "Train and test loss",
            "Mean over held-out tasks, both axes logarithmic; test solid, train dashed. The "
            "dotted line is where NC's meta-training ends, and the paper's curves, of which it "
            "gives no numbers.",
        )
    ]


def _curves(outcome: Outcome) -> Canvas:
    methods = distinct(select(outcome.rows, "diverged tasks"), *METHOD)
    canvas = Canvas(figsize=(10.5, 4.0), layout="constrained")
    axes = canvas.subplots(1, 2, sharey=True)
    for ax, mode in zip(axes, ("transductive", "inductive"), strict=True):
        for keys in methods:
            # The norms stand beside the paper's NC only.
            if keys.get("mode", mode) != mode or ("weight" in keys and mode == "inductive"):
                continue
            name, color = label(keys), COLOR[label(keys)]
            test, train = (outcome.tensors[f"{key}/{name}"][1:] for key in ("loss_te", "loss_tr"))
            short = label({key: value for key, value in keys.items() if key != "mode"})
            steps = range(1, len(test) + 1)
            ax.plot(steps, test, color=color, label=short)
            ax.plot(steps, train, "--", lw=0.9, color=color)
        ax.axvline(16, color=COLORS["target"], lw=0.8, ls=":")
        ax.set(xscale="log", yscale="log", xlabel="learner step", title=f"NC {mode}")
        ax.legend(loc="lower left")
    axes[0].set_ylabel("mean squared error")
    return canvas


EXPERIMENT = Experiment(
    name=NAME,
    title="Long learning curves",
    lead=(
        "Sinusoid learners trained far beyond the 16 steps on which NC was meta-trained: does it "
        "stay useful, and does the test loss stay below the train loss, as the paper observes?"
    ),
    config=Config,
    presets=PRESETS,
    run=run,
    tables=tables,
    figures=figures,
)
