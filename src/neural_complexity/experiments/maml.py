"""Section 4.1: NC and MAML, alone and together, on sinusoid regression."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from typing import Annotated, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from neural_complexity.assessment.drawing import COLORS
from neural_complexity.assessment.tables import Table
from neural_complexity.baselines.trained import Optimization, start_from, train_maml
from neural_complexity.experiments.base import comparison
from neural_complexity.experiments.base.comparison import NONE, Results
from neural_complexity.experiments.base.config import (
    POSITIVE,
    AtLeast,
    Between,
    Checked,
    NetworksConfig,
)
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.rows import Key, Keys, Row, make_row
from neural_complexity.experiments.base.saved_networks import HEADS, how_made, load_networks
from neural_complexity.experiments.base.table_views import distinct, pivot, select, show
from neural_complexity.experiments.base.training import Setup, Training, ours, train_network
from neural_complexity.meta import scores
from neural_complexity.meta.trainer import Status
from neural_complexity.progress import ProgressCallback
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "maml"
STARTS = {"random": "--", "MAML": "-"}  # where learners start, and how their curves are drawn
REPORTED_STEPS = (1, 2, 4, 8, 16)
LOSSES = ("test loss", "train loss")


@dataclass(frozen=True, kw_only=True)
class Initialisation(Checked):
    """How MAML is trained; the defaults are those of Finn et al. (2017) for the sinusoid."""

    iterations: Annotated[int, AtLeast(1)] = 70_000  # Updates of the initial parameters.
    tasks: Annotated[int, AtLeast(1)] = 25  # Tasks per update.
    steps: Annotated[int, AtLeast(1)] = 1  # Updates of a learner that gradients flow through.
    lr: Annotated[float, POSITIVE] = 0.001  # Adam's learning rate, or its peak.
    warmup: Annotated[float, Between(0, 1, open_end=True)] = 0.0
    """The part of training in which the learning rate rises."""
    decay: bool = False  # Whether the learning rate then falls to zero along a cosine.


@dataclass(frozen=True, kw_only=True)
class Config(NetworksConfig):
    """NC with and without MAML; the defaults are the papers'."""

    learner_width: Annotated[int, AtLeast(1)] = 40  # Units of each hidden layer of the learner.
    learner_layers: Annotated[int, AtLeast(0)] = 2  # Hidden layers of the learner.
    steps: Annotated[int, AtLeast(1)] = 16  # Updates of the learner.
    lr: Annotated[float, POSITIVE] = 0.01  # Learning rate of the learner (SGD).
    fresh: bool = True
    """Whether NC for MAML's learners starts untrained, not as the NC of random learners."""
    maml: Initialisation = field(default_factory=Initialisation)  # MAML.
    posterior: Training = field(default_factory=Training)
    """NC with our head, for learners that start from MAML's parameters."""
    direct: Training = field(default_factory=Training)
    """NC with the paper's head, for learners that start from MAML's parameters."""


# Gradients through five updates and a large learning rate: see docs/deviations.md.
QUICK = Initialisation(iterations=2000, tasks=64, steps=5, lr=0.02, warmup=0.05, decay=True)
# From nothing, the direct head had not learned to help MAML's learners when it was stopped after a
# third of its time, and some diverged; going on from the NC of random learners, it did at once.
FURTHER = ours(width=128, batch=128, updates=32, lr=0.001, ramp=0.0, tasks=256, capacity=150_000)


TINY = replace(FURTHER, batch=32, tasks=16, updates=4, iterations=4, capacity=2000)
LONGER = {"posterior": replace(FURTHER, iterations=100), "direct": replace(FURTHER, iterations=200)}
START = replace(QUICK, iterations=40)
PRESETS = comparison.presets(
    partial(Config, fresh=False),
    smoke={"eval_tasks": 128, "maml": START, "posterior": TINY, "direct": TINY},
    cpu={"maml": QUICK, **LONGER},
    paper={"fresh": True},
)


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Trains MAML, then NC on MAML's learners, and scores both on held-out tasks."""
    family, task = Sinusoids(), comparison.evaluation_tasks(config)
    random = comparison.sinusoid_recipe(
        width=config.learner_width, layers=config.learner_layers, steps=config.steps, lr=config.lr
    )
    networks = {"random": load_networks(config.networks, config.device), "MAML": {}}
    history: dict[str, list[Status]] = {}
    settings = asdict(config.maml)
    initial, history["MAML"] = train_maml(
        family,
        random,
        Optimization(updates=settings.pop("iterations"), **settings),
        seed=config.seed,
        device=config.device,
        work=work,
        callback=callback,
    )
    recipes = {"random": random, "MAML": start_from(random, initial)}
    for head in HEADS:
        known = None if config.fresh else networks["random"][head]
        setup = Setup(
            family=family,
            recipe=recipes["MAML"],
            seed=config.seed,
            device=config.device,
            start=known,
        )
        networks["MAML"][head], history[head] = train_network(
            getattr(config, head), head, setup, work, callback
        )
    parts = Parts(work, len(STARTS) * (len(HEADS) + 2), callback)
    results: dict[str, Results] = {}
    for start, recipe in recipes.items():
        own = networks[start].items()
        ncs = [comparison.nc_method({"method": "NC", "head": h}, nc, task) for h, nc in own]
        results[start] = comparison.compare(
            [NONE, *ncs, comparison.oracle(recipe, task)],
            recipe,
            task,
            parts,
            seed=config.seed,
            steps=range(config.steps + 1),
            see=comparison.see_gaps(networks[start]),
            name=partial(_label, start=start),
        )
    # A task whose learner diverges under one method is left out of all methods, and counted.
    kept = comparison.kept_tasks(result for found in results.values() for _, result in found)
    tensors = {f"initial/{n}": t.detach().cpu().clone() for n, t in initial.state_dict().items()}
    rows = [make_row(NAME, config.seed, "diverged tasks", scores.count(~kept), step=config.steps)]
    for start, found in results.items():
        for keys, result in found:
            for name in ("loss_te", "loss_tr"):
                tensors[f"{name}/{_label(keys, start)}"] = result[name][:, kept].mean(dim=1)
        rows += _rows(config, start, kept, found)
    return Outcome(rows, tensors, networks["MAML"], history, how_made(networks["random"], parts))


def _rows(config: Config, start: str, kept: Tensor, results: Results) -> list[Row]:
    """Returns losses, shares of the oracle from the same start, and the fit to the gap."""
    rows: list[Row] = []
    none, best = results[0][1], results[-1][1]
    steps = [s for s in sorted({*REPORTED_STEPS, config.steps}) if s <= config.steps]
    for keys, result in results:
        row = partial(make_row, NAME, config.seed, start=start, **keys)
        for step in steps:
            rows += comparison.loss_rows(partial(row, step=step), (none, result, best), step, kept)
        if keys["method"] == "NC":
            for learners, r in (("plain", none), ("regularized", result)):
                gaps = (r[name][kept] for name in (f"predicted/{keys['head']}", "gap"))
                rows.append(row("R2", scores.estimate(scores.r_squared, *gaps), learners=learners))
    return rows


def _label(keys: Keys, start: Key = "") -> str:
    aid = "" if keys["method"] == "none" else f" + {comparison.label(keys)}"
    return f"{start or keys['start']}{aid}"


def tables(rows: list[Row]) -> list[Table]:
    """Returns the tables of losses and of the fit to the gap."""
    losses = select(rows, "test loss")
    learners, steps = distinct(losses, "start", "method", "head"), distinct(losses, "step")
    size, last = f"{losses[0].n:,} held-out tasks", f"{steps[-1]['step']} steps"
    (diverged,) = select(rows, "diverged tasks")
    note = f"Tasks left out because a learner diverged: {diverged.value:.0f}."
    columns = {metric: [(metric, step) for step in steps] for metric in LOSSES}
    columns["test loss"].append(("share of oracle", steps[-1]))
    header = ("learners", *(f"{step['step']} steps" for step in steps), "share of oracle")
    notes = {
        "train loss": "",
        "test loss": f" Share of the oracle from the same start, at {last}. The paper draws these "
        "curves and gives no numbers: there, NC lowers the final test loss with and without MAML.",
    }
    found = [
        Table(
            f"{metric.capitalize()} after learner steps, {size}",
            header[: len(columns[metric]) + 1],
            tuple(pivot(rows, learners, columns[metric], _label, _cell)),
            f"Value ± 95 % interval over tasks. {note}{notes[metric]}",
        )
        for metric in LOSSES
    ]
    fits = pivot(
        rows,
        [{"start": start, "head": head} for start in STARTS for head in HEADS],
        [("R2", {"learners": learners}) for learners in ("plain", "regularized")],
        lambda keys: f"NC {keys['head']}, {keys['start']} learners",
        _cell,
    )
    return [
        *found,
        Table(
            f"R2 of predicted against true gap, {size}",
            ("gap predictor", "unregularized", "regularized"),
            tuple(fits),
            "Value ± 95 % interval over tasks, for learners after their last step: plain ones, and "
            "ones that the same NC regularized.",
        ),
    ]


def _cell(row: Row | None) -> str:
    return show(row, 3 if row and row.metric == "share of oracle" else 4)


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws the test losses on the way."""
    canvas = Canvas(figsize=(7.6, 3.9), layout="constrained")
    axes = canvas.subplots(1, len(HEADS), sharey=True)
    curves: list[tuple[Keys, Sequence[Axes], dict[str, Any]]] = [
        (NONE.keys, axes, {"color": COLORS["none"]}),
        *(
            ({"method": "NC", "head": head}, [ax], {"color": COLORS[head]})
            for ax, head in zip(axes, HEADS, strict=True)
        ),
        ({"method": "oracle"}, axes, {"color": COLORS["oracle"], "marker": "o", "ms": 2.5}),
    ]
    handles = {}
    for (keys, panels, look), (start, line) in product(curves, STARTS.items()):
        best, name = keys["method"] == "oracle", _label({"start": start, **keys})
        for ax in panels:
            losses = outcome.tensors[f"loss_te/{name}"]
            (drawn,) = ax.plot(losses, ls="" if best else line, **look)
        handles["oracle" if best else name] = drawn
    for ax, head in zip(axes, HEADS, strict=True):
        ax.set_xticks(range(0, len(losses), max(1, (len(losses) - 1) // 4)))
        ax.set(xlabel="learner step", title=f"{head} head")
    axes[0].set(ylabel="test loss (mean squared error)", yscale="log")
    axes[0].yaxis.set_major_formatter("{x:g}")
    canvas.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
    caption = (
        "Mean over held-out tasks, on a logarithmic scale; one panel per head of NC. Dots: the "
        "oracle from the same start."
    )
    title = "Test loss with and without MAML, with and without NC"
    return [Drawing("maml-curves", canvas, title, caption)]


LEAD = (
    "MAML finds initial parameters from which learners learn a sinusoid quickly; NC, trained "
    "on snapshots of learners that start there, regularizes them on their way. At presets "
    "`cpu` and `smoke` that NC does not start untrained, but goes on from the sinusoid "
    "experiment's, which is also the one that helps randomly initialised learners. NC judges "
    "learners on the unlabelled test inputs (transductive). The oracle descends the test loss "
    "itself, as a perfect gap predictor would make it."
)
EXPERIMENT = Experiment(NAME, "NC and MAML", LEAD, Config, PRESETS, run, tables, figures)
