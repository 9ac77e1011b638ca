"""Section 4.2: NC on learners unlike those it was trained on."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Annotated

from matplotlib.figure import Figure as Canvas
from torch import nn

from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.experiments.base import comparison
from neural_complexity.experiments.base.comparison import NONE, SCORES, Result, label
from neural_complexity.experiments.base.config import AtLeast, NetworksConfig
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.rows import Keys, Row, make_row
from neural_complexity.experiments.base.saved_networks import HEADS, how_made, load_networks
from neural_complexity.experiments.base.table_views import distinct, find, show
from neural_complexity.meta import scores
from neural_complexity.progress import ProgressCallback
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "ood"
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "none": nn.Identity,
}
# What is changed of the learner, one thing at a time, and to what.
ALTERED: dict[str, tuple[str | float | int, ...]] = {
    "activation": tuple(ACTIVATIONS),
    "lr": (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
    "width": (5, 10, 20, 40, 80, 160, 320),
    "layers": (1, 2, 3, 4),
    "steps": (16, 64, 256, 1024, 4096),
}
# The learners that NC was trained on.
HOME: Keys = {"activation": "relu", "lr": 1e-2, "width": 40, "layers": 2, "steps": 16}
LONG, WIDE = 256, 256  # learners with more steps, or with wider layers, get fewer tasks
HALF = 0.5  # the share of learners that must not have diverged for R2 to mean anything
FITS = ("R2", "MAE")
# Strengths that did best in the table of regularizers after 16 steps, but for a dropout of 0.7,
# under which wider learners diverge.
PLAIN = (
    NONE,
    comparison.norm("L2", 1.0),
    comparison.dropout(0.5),
    comparison.variational_dropout(),
)
NC_KEYS: dict[str, Keys] = {head: {"method": "NC", "head": head} for head in HEADS}
LOOKS = {
    label(keys): (keys, color, style)
    for keys, color, style in (
        (PLAIN[0].keys, COLORS["none"], "o-"),
        (PLAIN[1].keys, "#9a6fb0", "s-"),
        (PLAIN[2].keys, "#b0894f", "^-"),
        (PLAIN[3].keys, "#5fa8a0", "v-"),
        (NC_KEYS["direct"], COLORS["direct"], "o-"),
        (NC_KEYS["posterior"], COLORS["posterior"], "o-"),
        ({"method": "oracle"}, COLORS["oracle"], "x:"),
    )
}


@dataclass(frozen=True, kw_only=True)
class Config(NetworksConfig):
    """Learners unlike those that NC was trained on."""

    long_tasks: Annotated[int, AtLeast(2)] = 8192
    """Held-out tasks for learners with more than 256 steps, or with 320 units."""
    most_steps: Annotated[int, AtLeast(1)] = 4096
    """Learners with more steps than this are left out."""
    widest: Annotated[int, AtLeast(1)] = 320  # Learners with wider layers than this are left out.

    def settings(self) -> Iterator[tuple[str, str | float | int]]:
        """Returns what is altered, and to what."""
        most = {"steps": self.most_steps, "width": self.widest}
        for altered, values in ALTERED.items():
            for value in values:
                if altered not in most or int(value) <= most[altered]:
                    yield altered, value


PRESETS = comparison.presets(
    Config,
    smoke={"eval_tasks": 64, "long_tasks": 64, "most_steps": 16, "widest": 80},
    cpu={"eval_tasks": 1024, "long_tasks": 256},  # minutes on two cores
    paper={},  # all tasks everywhere, for a GPU
)


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Changes one thing of the learners at a time; the same NC predicts and regularizes them."""
    networks = load_networks(config.networks, config.device)
    whole = comparison.evaluation_tasks(config)
    settings = list(config.settings())
    parts = Parts(work, len(settings) * len(LOOKS), callback)
    rows: list[Row] = []
    for altered, value in settings:
        change = ACTIVATIONS[str(value)] if altered == "activation" else value
        recipe = comparison.sinusoid_recipe(**{altered: change})  # type: ignore[arg-type]
        fewer = recipe.steps > LONG or (altered == "width" and int(value) > WIDE)
        task = whole[: config.long_tasks] if fewer else whole
        ncs = [comparison.nc_method(NC_KEYS[head], nc, task) for head, nc in networks.items()]
        results = comparison.compare(
            [*PLAIN, *ncs, comparison.oracle(recipe, task)],
            recipe,
            task,
            parts,
            seed=config.seed,
            see=comparison.see_gaps(networks),
            name=partial(_label, f"{altered} {value}"),
        )
        row = partial(make_row, NAME, config.seed, altered=altered, value=value)
        for keys, result in results:
            rows += _rows(row, keys, (results[0][1], result, results[-1][1]))
    return Outcome(rows, facts=how_made(networks, parts))


def _label(setting: str, keys: Keys) -> str:
    return f"{setting}, {label(keys)}"


def _rows(row: Callable[..., Row], keys: Keys, three: tuple[Result, Result, Result]) -> list[Row]:
    """Returns fits to the gap and test losses, over the tasks whose learners did not diverge."""
    result, kept = three[1], ~three[1]["diverged"][-1]
    rows = [row("diverged tasks", scores.count(~kept), **keys)]
    learners = "plain" if keys == NONE.keys else "regularized"
    for head, metric in product(sorted(HEADS), FITS):
        if f"predicted/{head}" in result and kept.sum() >= HALF * kept.numel():
            gaps = (result[name][kept] for name in (f"predicted/{head}", "gap"))
            fit = scores.estimate(SCORES[metric], *gaps)
            rows.append(row(metric, fit, **NC_KEYS[head], learners=learners))
    if not comparison.too_many(~kept):
        found = comparison.loss_rows(partial(row, **keys), three, -1)
        rows += [loss for loss in found if loss.metric != "train loss"]
    return rows


def tables(rows: list[Row]) -> list[Table]:
    """Returns one table of how well NC predicts and one of how much it helps."""
    kinds = [(head, k, m) for head in HEADS for k in ("plain", "regularized") for m in FITS]
    fits, losses = [], []
    for setting in distinct(rows, "altered", "value"):
        altered, value = str(setting["altered"]), setting["value"]
        name = f"{altered} {value}" + (" (NC's own)" if HOME[altered] == value else "")
        found = [find(rows, m, **setting, head=head, learners=k) for head, k, m in kinds]
        fits.append((name, *(show(row, 3) for row in found)))
        seek = partial(find, rows, **setting)
        cells = [
            comparison.beside(show(seek("test loss", **keys)), seek("diverged tasks", **keys))
            for keys, _, _ in LOOKS.values()
        ]
        shares = [find(rows, "share of oracle", **setting, head=head) for head in HEADS]
        tasks = str(max(row.n for row in rows if setting.items() <= row.keys.items()))
        losses.append((name, *cells, *(show(row, 3) for row in shares), tasks))
    return [
        Table(
            "Predicted against true gap",
            ("learner", *(f"{head}: {metric}, {k} learners" for head, k, metric in kinds)),
            tuple(fits),
            "Value ± 95 % interval over tasks whose learners did not diverge; the other table has "
            "the number of those that did. Empty: more than half diverged.",
        ),
        Table(
            "Test loss after learning",
            ("learner", *LOOKS, *(f"share of oracle, {head}" for head in HEADS), "tasks"),
            tuple(losses),
            f"Value ± 95 % interval over tasks. {comparison.LOST_NOTE}",
        ),
    ]


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws the paper's figure."""
    rows = outcome.rows
    canvas = Canvas(figsize=(12.5, 7.2), layout="constrained")
    axes = canvas.subplots(3, len(ALTERED), sharex="col")
    for column, (altered, values) in zip(axes.T, ALTERED.items(), strict=True):
        changes = [{"altered": altered, "value": value} for value in values]
        shown = [keys for keys in changes if find(rows, "test loss", **keys, method="none")]
        drawn = [keys["value"] for keys in shown]
        places = range(len(drawn))
        for head, (ax, metric) in product(HEADS, zip(column, FITS, strict=False)):
            fits = [find(rows, metric, **keys, head=head, learners="plain") for keys in shown]
            ys = [max(row.value, -0.05) if row else math.nan for row in fits]
            ax.plot(places, ys, "o-", ms=3.5, color=COLORS[head])
        for name, (method, color, style) in LOOKS.items():
            losses = [find(rows, "test loss", **{**keys, **method}) for keys in shown]
            ys = [row.value if row else math.nan for row in losses]
            column[2].plot(places, ys, style, ms=3.5, lw=1.2, color=color, label=name)
        for ax in column:
            if HOME[altered] in drawn:
                ax.axvline(drawn.index(HOME[altered]), color=COLORS["none"], lw=0.8, ls=":")
        column[0].set(ylim=(-0.07, 1.05), title=altered)
        column[1].set(yscale="log")
        column[2].set_xticks(places, [str(v) for v in drawn], fontsize=7)
    axes[2, -1].set(yscale="log")
    for ax, name in zip(axes[:, 0], (*FITS, "test loss"), strict=True):
        ax.set_ylabel(name)
    handles, labels = axes[2, 0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=len(LOOKS))
    caption = (
        "Above: R2 of predicted against true gap, plain learners, cut off below 0. Middle: mean "
        "absolute error. Below: test loss after learning. The dotted line marks the learners that "
        "NC was trained on. Settings in which more than 1 % of the plain learners diverge are not "
        "shown, nor is a method whose learners do."
    )
    return [Drawing("ood", canvas, "NC on learners it has never seen", caption)]


LEAD = (
    "NC was trained on ReLU learners with 2 layers of 40 units, learning rate 0.01 and 16 "
    "steps. Here one of these is changed at a time, and the same NC predicts the gap of the "
    "learners and regularizes them (transductive), against no regularizer, L2, dropout and "
    "variational dropout (L2 at the strength that did best in the table of regularizers; "
    "dropout at 0.5, since wider learners diverge at 0.7; variational dropout as it is). The "
    "paper shows these as figures without numbers."
)
EXPERIMENT = Experiment(
    NAME, "Learners that NC was not trained on", LEAD, Config, PRESETS, run, tables, figures
)
