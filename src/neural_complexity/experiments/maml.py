"""Section 4.1: NC and MAML, alone and together, on sinusoid regression."""

from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Annotated, Any

from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.baselines.trained import train_maml
from neural_complexity.experiments.base import comparison, plots, training
from neural_complexity.experiments.base.comparison import NONE, LearnerConfig, Results
from neural_complexity.experiments.base.config import POSITIVE, Checked, Count, NetworksConfig
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.rows import Key, Keys, Row, distinct, pivot, select, show
from neural_complexity.experiments.base.run_folder import HEADS, load_networks
from neural_complexity.meta import scores
from neural_complexity.meta.optimize import Optimization, Status
from neural_complexity.progress import ProgressCallback
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "maml"
STARTS = {"random": "--", "MAML": "-"}  # where learners start, and how their curves are drawn
STEPS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class Initialisation(Checked):
    """How MAML is trained; the defaults are those of Finn et al. (2017) for the sinusoid."""

    iterations: Count = 70_000  # Updates of the initial parameters.
    tasks: Count = 25  # Tasks per update.
    steps: Count = 1  # Updates of a learner that gradients flow through.
    lr: Annotated[float, POSITIVE] = 0.001  # Adam's learning rate, or its peak.
    warmup: training.Part = 0.0  # The part of training in which the learning rate rises.
    decay: bool = False  # Whether the learning rate then falls to zero along a cosine.


@dataclass(frozen=True, kw_only=True)
class Config(LearnerConfig, NetworksConfig):
    """NC with and without MAML; the defaults are the papers'."""

    fresh: bool = True  # NC for MAML's learners starts untrained, not as that of random learners.
    maml: Initialisation = Initialisation()  # MAML.
    posterior: training.Training = training.PAPERS  # NC with our head, for MAML's learners.
    direct: training.Training = training.PAPERS  # NC with the paper's head, for MAML's learners.


# Gradients through five updates and a large learning rate: see docs/deviations.md.
QUICK = Initialisation(iterations=2000, tasks=64, steps=5, lr=0.02, warmup=0.05, decay=True)
# From nothing, the direct head had not learned to help MAML's learners when it was stopped after a
# third of its time, and some diverged; going on from the NC of random learners, it did at once.
FURTHER = training.minutes(tasks=256, lr=0.001, ramp=0.0)
TINY = replace(FURTHER, batch=32, tasks=16, updates=4, iterations=4, capacity=2000)
LONGER = {"posterior": replace(FURTHER, iterations=100), "direct": replace(FURTHER, iterations=200)}
SMOKE: dict[str, Any] = {"eval_tasks": 128, "maml": replace(QUICK, iterations=40)}
SMOKE |= {"fresh": False, "posterior": TINY, "direct": TINY}
PRESETS = comparison.presets(Config, SMOKE, {"fresh": False, "maml": QUICK, **LONGER})


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Trains MAML, then NC on MAML's learners, and scores both on held-out tasks."""
    family, task, random = Sinusoids(), comparison.evaluation_tasks(config), config.recipe()
    networks = {"random": load_networks(config.networks, config.device), "MAML": {}}
    settings, history = asdict(config.maml), dict[str, list[Status]]()
    how = Optimization(updates=settings.pop("iterations"), **settings)
    train = partial(train_maml, seed=config.seed, device=config.device, work=work)
    learned, history["MAML"] = train(family, random, how, callback=callback)
    recipes = {"random": random, "MAML": learned}
    for head in HEADS:
        known = None if config.fresh else networks["random"][head]
        setup = training.Setup(family, recipes["MAML"], config.seed, config.device, start=known)
        networks["MAML"][head], history[head] = training.train_network(
            getattr(config, head), head, setup, work, callback
        )
    parts = Parts(work, len(STARTS) * (len(HEADS) + 2), callback)
    results: dict[str, Results] = {}
    for start, recipe in recipes.items():
        own, see = networks[start].items(), partial(comparison.see_gaps, networks[start])
        ncs = [comparison.nc_method({"method": "NC", "head": h}, nc, task) for h, nc in own]
        methods = [NONE, *ncs, comparison.oracle(recipe, task)]
        compare = partial(comparison.compare, seed=config.seed, name=partial(_label, start=start))
        steps = range(config.steps + 1)
        results[start] = compare(methods, recipe, task, parts, steps=steps, see=see)
    # A task whose learner diverges under one method is left out of all methods, and counted.
    kept = comparison.kept_tasks(result for found in results.values() for _, result in found)
    tensors = {f"initial/{n}": t.cpu() for n, t in learned.make().state_dict().items()}
    rows = [Row.of(NAME, config.seed, "diverged tasks", scores.count(~kept), step=config.steps)]
    for start, found in results.items():
        for keys, result in found:
            for name in ("loss_te", "loss_tr"):
                tensors[f"{name}/{_label(keys, start)}"] = result[name][:, kept].mean(dim=1)
            row = partial(Row.of, NAME, config.seed, start=start, **keys)
            for step in sorted({s for s in STEPS if s < config.steps} | {config.steps}):
                rows += comparison.loss_rows(partial(row, step=step), found, result, step, kept)
            for kind, r in (("plain", found[0][1]), ("regularized", result)):
                if keys["method"] == "NC":
                    gaps = (r[name][kept] for name in (f"predicted/{keys['head']}", "gap"))
                    rows.append(row("R2", scores.estimate(scores.r_squared, *gaps), learners=kind))
    return Outcome(rows, tensors, networks["MAML"], history, parts.facts(networks["random"]))


def _label(keys: Keys, start: Key = "") -> str:
    aid = "" if keys["method"] == "none" else f" + {comparison.label(keys)}"
    return f"{start or keys['start']}{aid}"


def tables(rows: list[Row]) -> list[Table]:
    """Returns the tables of losses and of the fit to the gap."""
    losses = select(rows, "test loss")
    learners, steps = distinct(losses, "start", "method", "head"), distinct(losses, "step")
    size, last = f"{losses[0].n:,} held-out tasks", f"{steps[-1]['step']} steps"
    (diverged,) = select(rows, "diverged tasks")
    notes = {
        "test loss": f" Share of the oracle from the same start, at {last}. The paper draws these "
        "curves and gives no numbers: there, NC lowers the final test loss with and without MAML.",
        "train loss": "",
    }
    lost = f"Tasks left out because a learner diverged: {diverged.value:.0f}."
    header = ("learners", *(f"{step['step']} steps" for step in steps), "share of oracle")
    columns = {metric: [(metric, step) for step in steps] for metric in notes}
    columns["test loss"].append(("share of oracle", steps[-1]))
    found = []
    for metric, more in notes.items():
        lines = tuple(pivot(rows, learners, columns[metric], _label, _cell))
        title = f"{metric.capitalize()} after learner steps, {size}"
        note = f"Value ± 95 % interval over tasks. {lost}{more}"
        found.append(Table(title, header[: len(columns[metric]) + 1], lines, note))
    heads = [{"start": start, "head": head} for start in STARTS for head in HEADS]
    ends = [("R2", {"learners": kind}) for kind in ("plain", "regularized")]
    fits = pivot(rows, heads, ends, lambda k: f"NC {k['head']}, {k['start']} learners", _cell)
    note = (
        "Value ± 95 % interval over tasks, for learners after their last step: plain ones, and "
        "ones that the same NC regularized."
    )
    header = ("gap predictor", "unregularized", "regularized")
    title = f"R2 of predicted against true gap, {size}"
    return [*found, Table(title, header, tuple(fits), note)]


def _cell(row: Row | None) -> str:
    return show(row, 3 if row and row.metric == "share of oracle" else 4)


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws the test losses on the way."""
    canvas, axes = plots.sketch(7.6, 3.9, 1, len(HEADS), sharey=True)
    ncs: list[Keys] = [{"method": "NC", "head": head} for head in HEADS]
    handles = {}
    for keys, start in product((NONE.keys, *ncs, {"method": "oracle"}), STARTS):
        best, name = keys["method"] == "oracle", _label(keys, start)
        look = {"ls": "", "marker": "o", "ms": 2.5} if best else {"ls": STARTS[start]}
        color = COLORS[str(keys.get("head", keys["method"]))]
        losses = outcome.tensors[f"loss_te/{name}"]
        for ax, head in zip(axes, HEADS, strict=True):
            if keys.get("head", head) == head:
                (handles["oracle" if best else name],) = ax.plot(losses, color=color, **look)
    for ax, head in zip(axes, HEADS, strict=True):
        ax.set_xticks(range(0, len(losses), max(1, (len(losses) - 1) // 4)))
        ax.set(xlabel="learner step", title=f"{head} head")
    axes[0].set(ylabel="test loss (mean squared error)", yscale="log")
    axes[0].yaxis.set_major_formatter("{x:g}")
    canvas.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
    caption = "Mean over held-out tasks; one panel per head. Dots: the oracle from the same start."
    title = "Test loss with and without MAML, with and without NC"
    return [Drawing("maml-curves", canvas, title, caption)]


LEAD = (
    "MAML finds initial parameters from which learners learn a sinusoid quickly; NC, trained on "
    "snapshots of learners that start there, regularizes them on their way. At presets `cpu` and "
    "`smoke` that NC goes on from the sinusoid experiment's, which is also the one that helps "
    "randomly initialised learners. NC judges learners on the unlabelled test inputs "
    "(transductive). The oracle descends the test loss itself, as a perfect gap predictor would."
)
EXPERIMENT = Experiment(NAME, "NC and MAML", LEAD, Config, PRESETS, run, tables, figures)
