"""Do no harm: NC on families of tasks that it was, and was not, trained on."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.experiments.base import comparison, plots, training
from neural_complexity.experiments.base.comparison import NONE, Method, Result, Results, label
from neural_complexity.experiments.base.config import Count, NetworksConfig
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.rows import Row, find, show
from neural_complexity.experiments.base.run_folder import HEADS, load_networks
from neural_complexity.learners.fit import CHUNK, Trajectory
from neural_complexity.meta.optimize import Status
from neural_complexity.meta.scores import count, estimate, estimate_mean, r_squared
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.regularizers.nc import trust
from neural_complexity.task import TaskFamily
from neural_complexity.tasks import families
from neural_complexity.tasks.splits import Tables
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "harm"
FAMILIES: dict[str, Callable[[], TaskFamily]] = {
    "sinusoids": families.Sinusoids,
    "Gaussian processes": families.GaussianProcesses,
    "step functions": families.StepFunctions,
    "real tables": partial(Tables, part="first"),
    "polynomials": families.Polynomials,
}
# Of the same families; real tables have other rows here.
HELD_OUT = FAMILIES | {"real tables": partial(Tables, part="second")}
SOURCES = tuple(FAMILIES)[:-1]  # NC is never trained on polynomials
FLOOR = -0.1  # the paper's, in its image experiments
MODES: dict[str, dict[str, Any]] = {
    "as in the paper": {},
    f"floor {FLOOR}": {"floor": FLOOR},
    "safeguarded": {"safeguard": True},
}
PAPERS, _, SAFE = MODES
UNCHANGED = 0.01  # a test loss that moved by less than this part of the plain one did not change
DRAWN = 512  # tasks drawn one by one


@dataclass(frozen=True, kw_only=True)
class Config(NetworksConfig):
    """NC on its own and on other families of tasks."""

    steps: Count = 16  # Updates of the learners.
    posterior: training.Training = training.PAPERS  # NC with our head, for each other family.
    direct: training.Training = training.PAPERS  # NC with the paper's head, for each other family.


TINY = training.ours(width=16, batch=32, tasks=16, updates=4, iterations=3, capacity=10_000)
MINUTES = training.minutes(tasks=256, iterations=50)
SMOKE = {"eval_tasks": 32, "steps": 12, "posterior": TINY, "direct": TINY}
CPU = {"eval_tasks": 2048, "posterior": MINUTES, "direct": MINUTES}
PRESETS = comparison.presets(Config, SMOKE, CPU)  # `paper` has the paper's wiring and sizes


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Trains NC on each family; each NC regularizes learners on all of them."""
    shipped = load_networks(config.networks, config.device)
    recipe = comparison.sinusoid_recipe(steps=config.steps)
    networks, history = dict[str, NeuralComplexity](), dict[str, list[Status]]()
    for head, source in product(HEADS, SOURCES):
        if source == "sinusoids":
            networks[f"{head}/{source}"] = shipped[head]
            continue
        name = f"{head}, {source}"
        setup = training.Setup(FAMILIES[source](), recipe, config.seed, config.device)
        networks[f"{head}/{source}"], history[name] = training.train_network(
            getattr(config, head), head, setup, work, callback, name=name
        )
    parts = Parts(work, len(FAMILIES) * (2 + len(networks) * len(MODES)), callback)
    rows, tensors = list[Row](), Result()

    def see(method: Method, learners: Trajectory) -> Result:
        """Returns the gaps of plain learners, and how far a safeguarded NC is trusted."""
        found, end = comparison.see_gaps(networks, method, learners), learners.end
        if method.keys.get("mode") == SAFE:
            nc = networks[f"{method.keys['head']}/{method.keys['source']}"]
            chunks = (end[i : i + CHUNK] for i in range(0, len(end.X_tr), CHUNK))
            found["trust"] = torch.cat([trust(nc, part.X_tr, part.Y_tr) for part in chunks])
        return found

    for family, make in HELD_OUT.items():
        task = comparison.evaluation_tasks(config, make())
        methods = [NONE, comparison.oracle(recipe, task)]
        for (name, nc), (mode, options) in product(networks.items(), MODES.items()):
            known, source = name.split("/")
            keys = {"method": "NC", "head": known, "source": source, "mode": mode}
            methods.append(comparison.nc_method(keys, nc, task, **options))
        compare = partial(comparison.compare, name=partial(label, before=f"{family}: "))
        results = compare(methods, recipe, task, parts, seed=config.seed, see=see)
        rows += _rows(config, family, results, tensors)
    trained = {name.replace("/", "-").replace(" ", "-"): nc for name, nc in networks.items()}
    return Outcome(rows, tensors, trained, history, parts.facts(shipped))


def _rows(config: Config, family: str, results: Results, tensors: Result) -> list[Row]:
    """Returns test losses, changes by NC, tasks helped and hurt; adds some of them to tensors."""
    make, plain = partial(Row.of, NAME, config.seed, family=family), results[0][1]
    fine = plain["loss_te"][-1].isfinite()  # what diverges without NC says nothing about it
    none = unguarded = plain["loss_te"][-1][fine]  # (B,)
    rows = []
    for keys, result in results:
        row = partial(make, **keys)
        rows.append(row("diverged tasks", count(result["diverged"][-1])))
        loss = result["loss_te"][-1][fine]
        # Learners that NC drove to infinity leave no mean: to leave them out would hide the harm.
        if loss.isfinite().all():
            rows.append(row("test loss", estimate_mean(loss)))
        if keys["method"] != "NC":
            continue
        change = loss - none
        if change.isfinite().all():
            rows.append(row("change", estimate_mean(change)))
        helped, hurt = change < -UNCHANGED * none, ~(change <= UNCHANGED * none)
        for metric, these in (("helped", helped), ("unchanged", ~helped & ~hurt), ("hurt", hurt)):
            rows.append(row(metric, estimate_mean(these.double())))
        name = f"{keys['head']}/{keys['source']}/{family}"
        if keys["mode"] == PAPERS:
            unguarded, first = loss, plain["loss_te"][-1][:DRAWN]
            tensors[f"change/{name}"] = (result["loss_te"][-1][:DRAWN] - first) / first
        if keys["mode"] == SAFE:
            tensors[f"trust/{name}"] = result["trust"][:DRAWN]
            rows.append(row("trust", estimate_mean(result["trust"])))
            if (loss + unguarded).isfinite().all():
                rows.append(row("change by the safeguard", estimate_mean(loss - unguarded)))
    for head, source in product(sorted(HEADS), sorted(SOURCES)):
        predicted = plain[f"predicted/{head}/{source}"]
        known = (predicted + plain["gap"]).isfinite()
        score = estimate(r_squared, predicted[known], plain["gap"][known])
        rows.append(make("R2", score, method="NC", head=head, source=source))
    return rows


def tables(rows: list[Row]) -> list[Table]:
    """Returns the tables of pairs of families, of changes, and of tasks helped and hurt."""
    lines, changes, shares, kinds = [], [], [], ("helped", "unchanged", "hurt")
    for head, own, mode in product(HEADS, (True, False), MODES):
        pairs = [(s, f) for s, f in product(SOURCES, FAMILIES) if (s == f) == own]
        found = [find(rows, "change", head=head, source=s, mode=mode, family=f) for s, f in pairs]
        # Without a mean, learners were driven to infinity.
        means = [(row.value, row.ci95 or 0.0) if row else (1.0, 0.0) for row in found]
        better = sum(change < -ci for change, ci in means)
        worse = sum(change > ci for change, ci in means)
        name = f"NC {head}, {'its own' if own else 'another'} family, {mode}"
        lines.append((name, str(better), str(len(means) - better - worse), str(worse)))
    for head, source, family in product(HEADS, SOURCES, FAMILIES):
        seek = partial(find, rows, family=family)
        nc = partial(seek, head=head, source=source)
        name = f"NC {head} of {source} on {family}"
        cells = [show(seek("test loss", method=method)) for method in ("none", "oracle")]
        for mode in MODES:
            change, diverged = (nc(metric, mode=mode) for metric in ("change", "diverged tasks"))
            cells.append(comparison.beside(show(change, 3), diverged))
        cells.append(show(nc("change by the safeguard", mode=SAFE), 3))
        cells += [show(nc("trust", mode=SAFE)), show(nc("R2", mode=None))]
        changes.append((name, *cells))
        found = [nc(kind, mode=mode) for mode in MODES for kind in kinds]
        shares.append((name, *(f"{100 * row.value:.0f} %" if row else "" for row in found)))
    helps = Table(
        "On average over tasks, in how many pairs of families does NC help or hurt?",
        ("NC, judged on", "helps", "no difference", "hurts"),
        tuple(lines),
        "Helps, hurts: the mean change of the test loss is beyond its 95 % interval over tasks.",
    )
    averages = Table(
        "Change of the test loss by NC",
        ("NC", "none", "oracle", *MODES, "by the safeguard", "mean trust", "R2 of gaps"),
        tuple(changes),
        "Value ± 95 % interval over tasks; below 0 NC helps. None and oracle are test losses. By "
        "the safeguard: test loss with it minus test loss as in the paper. Behind †: so many "
        "learners' losses ended ten times above where they began. Trust: its square multiplies the "
        "weight. R2: of predicted against true gaps of plain learners.",
    )
    header = ("NC", *(f"{kind}, {mode}" for mode in MODES for kind in kinds))
    note = "Unchanged: the test loss moved by at most 1 % of what it is without NC."
    title = "Share of tasks helped, unchanged and hurt"
    return [helps, averages, Table(title, header, tuple(shares), note)]


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws the changes, and how trust foretells them."""
    canvas, axes = plots.sketch(11.5, 6.0, len(HEADS), len(MODES))
    for ax, (head, mode) in zip(axes.flat, product(HEADS, MODES), strict=True):
        ratios = np.full((len(SOURCES), len(FAMILIES)), np.nan)
        for (a, source), (b, family) in product(enumerate(SOURCES), enumerate(FAMILIES)):
            seek = partial(find, outcome.rows, "test loss", family=family)
            none, with_nc = seek(method="none"), seek(source=source, head=head, mode=mode)
            if none and with_nc:
                ratios[a, b] = with_nc.value / none.value
        ax.imshow(np.log2(ratios), cmap="RdBu_r", vmin=-1, vmax=1)
        for (a, b), ratio in np.ndenumerate(ratios):
            shade = "white" if abs(np.log2(ratio)) > 0.6 else COLORS["target"]
            text = f"{ratio:.2f}" if np.isfinite(ratio) else "inf"
            ax.text(b, a, text, ha="center", va="center", fontsize=8, color=shade)
        ax.set_xticks(range(len(FAMILIES)), [f.replace(" ", "\n") for f in FAMILIES], fontsize=7)
        sources = SOURCES if mode == PAPERS else [""] * len(SOURCES)
        ax.set_yticks(range(len(SOURCES)), sources, fontsize=7)
        ax.set_title(f"NC {head}, {mode}")
        ax.grid(False)
    caption = "Rows: what NC was trained on. Columns: what it is judged on. Below 1 NC helps."
    changes = Drawing("change", canvas, "Test loss with NC over test loss without", caption)
    tensors, grid = outcome.tensors, (len(HEADS), len(SOURCES))
    canvas, axes = plots.sketch(10.5, 4.8, *grid, sharex=True, sharey=True)
    for ax, (head, source) in zip(axes.flat, product(HEADS, SOURCES), strict=True):
        for family in FAMILIES:
            name = f"{head}/{source}/{family}"
            change = tensors[f"change/{name}"].nan_to_num(3.0, 3.0).clamp(max=3.0)
            ax.plot(tensors[f"trust/{name}"], change, ".", ms=2.5, alpha=0.4, label=family)
        ax.axhline(0, color=COLORS["target"], lw=0.8)
        ax.set(xlabel="trust", ylabel="relative change of test loss")
        ax.set_title(f"NC {head} of {source}")
        ax.label_outer()
    handles, _ = axes[0, 0].get_legend_handles_labels()
    names = [f"judged on {family}" for family in FAMILIES]
    canvas.legend(handles, names, loc="outside lower center", ncols=len(names), markerscale=4)
    caption = "One dot per task; above the line it is hurt. Changes beyond 3 are drawn at 3."
    title = "What NC does without a safeguard, by how far it would be trusted"
    return [changes, Drawing("trust", canvas, title, caption)]


LEAD = (
    "NC trained on one family of tasks regularizes learners (transductive, weight 1) on its own "
    "and on other families: as in the paper; with the paper's floor of -0.1 for its estimate; and "
    "with our safeguard, which multiplies the weight of each task by the square of how well NC's "
    "gradient does on the task's own training points, held out in turn. It was chosen while "
    "looking at these families with other seeds (polynomials only once, at the end). Real tables: "
    "scikit-learn's diabetes, wine, breast cancer and iris data, one random column predicted from "
    "another, NC trained and judged on different rows of the same four tables, so their intervals "
    "say nothing about other tables. NC of sinusoids was trained longer, and expects inputs from "
    "-5 to 5, where tables have a standard deviation of 1: part of the harm is of other units."
)
EXPERIMENT = Experiment(NAME, "Do no harm", LEAD, Config, PRESETS, run, tables, figures)
