"""Section 4.1: NC and MAML, alone and together, on sinusoid regression."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Annotated, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from neural_complexity.assessment.drawing import COLORS
from neural_complexity.assessment.tables import Table
from neural_complexity.baselines.trained import MamlTraining, start_from, train_maml
from neural_complexity.experiments.base import comparison
from neural_complexity.experiments.base.comparison import NONE, Method
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
from neural_complexity.learners.recipe import Recipe
from neural_complexity.learners.trajectory import usable_rows
from neural_complexity.meta import scores
from neural_complexity.meta.trainer import Status
from neural_complexity.model.judgement import judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.task import Task
from neural_complexity.tasks.sinusoids import Sinusoids
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "maml"
STARTS = {"random": "--", "MAML": "-"}  # where learners start, and how their curves are drawn
REPORTED_STEPS = (1, 2, 4, 8, 16)
LOSSES = {"test loss": "loss_te", "train loss": "loss_tr"}

Results = list[tuple[dict[str, Key], dict[str, Tensor]]]  # by start and method


@dataclass(frozen=True, kw_only=True)
class Initialisation(Checked):
    """How MAML is trained; the defaults are those of Finn et al. (2017) for the sinusoid."""

    iterations: Annotated[int, AtLeast(1)] = 70_000
    """Updates of the initial parameters."""
    tasks: Annotated[int, AtLeast(1)] = 25
    """Tasks per update."""
    steps: Annotated[int, AtLeast(1)] = 1
    """Updates of a learner that gradients flow through."""
    lr: Annotated[float, POSITIVE] = 0.001
    """Adam's learning rate, or its peak."""
    warmup: Annotated[float, Between(0, 1, open_end=True)] = 0.0
    """The part of training in which the learning rate rises."""
    decay: bool = False
    """Whether the learning rate then falls to zero along a cosine."""

    def settings(self) -> MamlTraining:
        """Returns them as the baseline takes them."""
        rest = {name: getattr(self, name) for name in ("tasks", "steps", "lr", "warmup", "decay")}
        return MamlTraining(updates=self.iterations, **rest)


@dataclass(frozen=True, kw_only=True)
class Config(NetworksConfig):
    """NC with and without MAML; the defaults are the papers'."""

    learner_width: Annotated[int, AtLeast(1)] = 40
    """Units of each hidden layer of the learner."""
    learner_layers: Annotated[int, AtLeast(0)] = 2
    """Hidden layers of the learner."""
    steps: Annotated[int, AtLeast(1)] = 16
    """Updates of the learner."""
    lr: Annotated[float, POSITIVE] = 0.01
    """Learning rate of the learner (SGD)."""
    fresh: bool = True
    """Whether NC for MAML's learners starts untrained, not as the NC of random learners."""
    maml: Initialisation = field(default_factory=Initialisation)
    """MAML."""
    posterior: Training = field(default_factory=Training)
    """NC with our head, for learners that start from MAML's parameters."""
    direct: Training = field(default_factory=Training)
    """NC with the paper's head, for learners that start from MAML's parameters."""


# Gradients through five updates and a large learning rate: see docs/deviations.md.
QUICK = Initialisation(iterations=2000, tasks=64, steps=5, lr=0.02, warmup=0.05, decay=True)
# From nothing, the direct head had not learned to help MAML's learners when it was stopped after a
# third of its time, and some diverged; going on from the NC of random learners, it did at once.
FURTHER = ours(width=128, batch=128, updates=32, lr=0.001, ramp=0.0, tasks=256, capacity=150_000)


def _sized(maml: Initialisation, posterior: Training, direct: Training) -> Config:
    return Config(fresh=False, maml=maml, posterior=posterior, direct=direct)


def _cpu() -> Config:
    return _sized(QUICK, replace(FURTHER, iterations=100), replace(FURTHER, iterations=200))


def _smoke() -> Config:
    tiny = replace(FURTHER, batch=32, tasks=16, updates=4, iterations=4, capacity=2000)
    return replace(_sized(replace(QUICK, iterations=40), tiny, tiny), eval_tasks=128)


PRESETS: dict[str, Callable[[], Config]] = {"smoke": _smoke, "cpu": _cpu, "paper": Config}


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Trains MAML, then NC on MAML's learners, and scores both on held-out tasks."""
    family = Sinusoids()
    random = comparison.sinusoid_recipe(
        width=config.learner_width, layers=config.learner_layers, steps=config.steps, lr=config.lr
    )
    networks = {"random": load_networks(config.networks, config.device), "MAML": {}}
    history: dict[str, list[Status]] = {}
    initial, history["MAML"] = train_maml(
        family,
        random,
        config.maml.settings(),
        seed=config.seed,
        device=config.device,
        work=work,
        callback=callback,
    )
    recipes = {"random": random, "MAML": start_from(random, initial)}
    for head in HEADS:
        setup = Setup(
            family=family,
            recipe=recipes["MAML"],
            seed=config.seed,
            device=config.device,
            start=None if config.fresh else networks["random"][head],
        )
        networks["MAML"][head], history[head] = train_network(
            getattr(config, head), head, setup, work, callback
        )
    task = comparison.evaluation_tasks(config)
    parts = Parts(work, len(STARTS) * (len(HEADS) + 2), callback)
    results: Results = []
    for start, recipe in recipes.items():
        for method in _methods(recipe, task, networks[start]):
            keys = {"start": start, **method.keys}
            train = partial(_train, config, recipe, task, method, networks[start])
            results.append((keys, parts.do(_label(keys), train)))
    # A task whose learner diverges under one method is left out of all methods, and counted.
    kept = usable_rows(result.pop("diverged") for _, result in results)
    results = [(keys, {n: t[..., kept] for n, t in result.items()}) for keys, result in results]
    tensors = {f"initial/{n}": t.detach().cpu().clone() for n, t in initial.state_dict().items()}
    for keys, result in results:
        tensors |= {f"{name}/{_label(keys)}": result[name].mean(dim=1) for name in LOSSES.values()}
    rows = _rows(config, kept, results)
    facts = how_made(networks["random"], parts)
    return Outcome(rows, tensors, networks["MAML"], history, facts)


def _methods(recipe: Recipe, task: Task, networks: dict[str, NeuralComplexity]) -> list[Method]:
    keys = {head: {"method": "NC", "head": head} for head in networks}
    ncs = [comparison.nc_method(keys[head], nc, task) for head, nc in networks.items()]
    return [NONE, *ncs, comparison.oracle(recipe, task)]


def _train(
    config: Config,
    recipe: Recipe,
    task: Task,
    method: Method,
    networks: dict[str, NeuralComplexity],
) -> dict[str, Tensor]:
    """Returns losses, (steps + 1, B); at the end the gap and what NCs predict it to be, (B,)."""
    trajectory = comparison.train_with(method, recipe, task, seed=config.seed)
    result = {name: getattr(trajectory, name) for name in ("loss_tr", "loss_te", "gap")}
    for head, nc in networks.items():
        if method is NONE or method.keys.get("head") == head:
            result[f"predicted/{head}"] = judge(nc, trajectory.end).gap
    return result | {"diverged": trajectory.diverged}


def _rows(config: Config, kept: Tensor, results: Results) -> list[Row]:
    """Returns losses, shares of the oracle from the same start, and the fit to the gap."""
    make: Callable[..., Row] = partial(make_row, NAME, config.seed)
    steps = [s for s in sorted({*REPORTED_STEPS, config.steps}) if s <= config.steps]
    rows = [make("diverged tasks", scores.count(~kept), step=config.steps)]
    of = {(keys["start"], keys["method"]): result for keys, result in results}
    for (keys, result), step in product(results, steps):
        row = partial(make, **keys, step=step)
        rows += [row(m, scores.estimate_mean(result[name][step])) for m, name in LOSSES.items()]
        if keys["method"] == "NC":
            three = (of[keys["start"], "none"], result, of[keys["start"], "oracle"])
            losses = (r["loss_te"][step] for r in three)
            rows.append(row("share of oracle", scores.estimate(scores.share_of_oracle, *losses)))
    for keys, result in results:
        if keys["method"] == "NC":
            for learners, r in (("plain", of[keys["start"], "none"]), ("regularized", result)):
                fit = scores.estimate(scores.r_squared, r[f"predicted/{keys['head']}"], r["gap"])
                rows.append(make("R2", fit, **keys, learners=learners))
    return rows


def _label(keys: Keys) -> str:
    aid = "" if keys["method"] == "none" else f" + {comparison.label(keys)}"
    return f"{keys['start']}{aid}"


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
    return [
        Drawing(
            "maml-curves",
            _curves(outcome.tensors),
            "Test loss with and without MAML, with and without NC",
            "Mean over held-out tasks, on a logarithmic scale; one panel per head of NC. "
            "Dots: the oracle from the same start.",
        )
    ]


def _curves(tensors: dict[str, Tensor]) -> Canvas:
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
            losses = tensors[f"loss_te/{name}"]
            (drawn,) = ax.plot(losses, ls="" if best else line, **look)
        handles["oracle" if best else name] = drawn
    for ax, head in zip(axes, HEADS, strict=True):
        ax.set_xticks(range(0, len(losses), max(1, (len(losses) - 1) // 4)))
        ax.set(xlabel="learner step", title=f"{head} head")
    axes[0].set(ylabel="test loss (mean squared error)", yscale="log")
    axes[0].yaxis.set_major_formatter("{x:g}")
    canvas.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
    return canvas


EXPERIMENT = Experiment(
    name=NAME,
    title="NC and MAML",
    lead=(
        "MAML finds initial parameters from which learners learn a sinusoid quickly; NC, trained "
        "on snapshots of learners that start there, regularizes them on their way. At presets "
        "`cpu` and `smoke` that NC does not start untrained, but goes on from the sinusoid "
        "experiment's, which is also the one that helps randomly initialised learners. NC judges "
        "learners on the unlabelled test inputs (transductive). The oracle descends the test loss "
        "itself, as a perfect gap predictor would make it."
    ),
    config=Config,
    presets=PRESETS,
    run=run,
    tables=tables,
    figures=figures,
)
