"""Section 4.1, "Learning Curve", sixty-four times longer than the paper's."""

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.experiments.base import comparison, plots
from neural_complexity.experiments.base.comparison import METHOD, NONE, label
from neural_complexity.experiments.base.config import Count, NetworksConfig
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.rows import Row, distinct, pivot, select, show
from neural_complexity.experiments.base.run_folder import load_networks
from neural_complexity.meta.scores import Estimate, count, estimate_mean
from neural_complexity.progress import ProgressCallback
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "curves"
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

    steps: Count = 1024  # Updates of the learners; the paper's figure has 16.


# At `paper` all tasks, for a GPU.
PRESETS = comparison.presets(Config, {"eval_tasks": 64, "steps": 32}, {"eval_tasks": 512})


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Trains learners for long, with and without NC."""
    networks = load_networks(config.networks, config.device)
    task = comparison.evaluation_tasks(config)
    recipe = comparison.sinusoid_recipe(steps=config.steps)
    norms = [comparison.norm("L2", weight) for weight in (0.01, 1.0)]
    ncs, best = comparison.nc_methods(networks, task, config), comparison.oracle(recipe, task)
    methods = [NONE, *norms, *ncs, best]
    parts, steps = Parts(work, len(methods), callback), range(config.steps + 1)
    results = comparison.compare(methods, recipe, task, parts, seed=config.seed, steps=steps)
    rows, tensors = list[Row](), dict[str, Tensor]()
    for _, result in results:
        result["diverged"][:] = result["diverged"][-1].clone()  # left out of whole curves
    for keys, result in results:
        row, diverged = partial(Row.of, NAME, config.seed, **keys), result["diverged"][-1]
        # (steps + 1, B) of the learners that did not diverge
        loss_tr, loss_te = (result[key][:, ~diverged] for key in ("loss_tr", "loss_te"))
        curve_tr, curve_te = loss_tr.mean(dim=1), loss_te.mean(dim=1)
        tensors |= {f"loss_tr/{label(keys)}": curve_tr, f"loss_te/{label(keys)}": curve_te}
        rows.append(row("diverged tasks", count(diverged), step=config.steps))
        if comparison.too_many(diverged):
            continue
        for step in reported_steps(config):
            rows += comparison.loss_rows(partial(row, step=step), results, result, step)
            rows.append(row("gap", estimate_mean(loss_te[step] - loss_tr[step]), step=step))
        below = (curve_te < curve_tr)[1:].double().mean().item()
        for metric, value in ((LOWEST, curve_te.argmin().item()), (BELOW, below)):
            rows.append(row(metric, Estimate(value, None, loss_te.shape[1])))
    return Outcome(rows, tensors, facts=parts.facts(networks))


def reported_steps(config: Config) -> list[int]:
    """Returns the steps with rows of their own: 1, 2, 4, ..., and the last."""
    return sorted({*(2**i for i in range(config.steps.bit_length())), config.steps})


def tables(rows: list[Row]) -> list[Table]:
    """Returns the tables of losses, gaps, shares of the oracle, and of whole curves."""
    last = max(int(row.keys["step"]) for row in select(rows, "test loss"))
    steps = [step for step in TABLE_STEPS if step < last] + [last]
    lost = [row for row in select(rows, "diverged tasks") if row.value]
    some = ", ".join(f"{label(row.keys)} {row.value:.0f}" for row in lost) or "none"
    note = (
        f"Value ± 95 % interval over {max(row.n for row in rows):,} tasks. Left out of their "
        f"method, since their losses ended ten times above where they began, or not finite: {some}."
    )
    made = []
    for metric, (title, digits) in TABLES.items():
        lines = distinct(select(rows, metric), *METHOD)
        columns = [(metric, {"step": step}) for step in steps]
        cells = pivot(rows, lines, columns, label, partial(show, digits=digits))
        header = ("regularizer", *(f"{step} steps" for step in steps))
        made.append(Table(f"{title} after learner steps", header, tuple(cells), note))
    methods = distinct(select(rows, LOWEST), *METHOD)
    columns = [(LOWEST, {}), (BELOW, {})]
    whole = pivot(rows, methods, columns, label, lambda r: f"{r.value:.3g}" if r else "")
    made.append(Table("Whole curves", ("regularizer", LOWEST, BELOW), tuple(whole)))
    return made


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws the curves."""
    methods = distinct(select(outcome.rows, "diverged tasks"), *METHOD)
    canvas, axes = plots.sketch(10.5, 4.0, 1, 2, sharey=True)
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
    caption = "Mean over held-out tasks; test solid, train dashed; dotted: end of meta-training."
    return [Drawing("curves", canvas, "Train and test loss", caption)]


LEAD = (
    "Sinusoid learners trained far beyond the 16 steps of NC's meta-training and of the paper's "
    "curves, which come without numbers: does it stay useful, and does the test loss stay below "
    "the train loss, as the paper observes?"
)
EXPERIMENT = Experiment(NAME, "Long learning curves", LEAD, Config, PRESETS, run, tables, figures)
