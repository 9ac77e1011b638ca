"""Section 4.2: NC on learners unlike those it was trained on."""

import math
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Annotated, Any

from torch import nn

from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.experiments.base import comparison, plots
from neural_complexity.experiments.base.comparison import NONE, SCORES, label
from neural_complexity.experiments.base.config import AtLeast, Count, NetworksConfig
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.rows import Keys, Row, distinct, find, show
from neural_complexity.experiments.base.run_folder import HEADS, load_networks
from neural_complexity.meta import scores
from neural_complexity.progress import ProgressCallback
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "ood"
ACTIVATIONS = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "none": nn.Identity}
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
PLAIN = [NONE, comparison.norm("L2", 1.0), comparison.dropout(0.5)]
PLAIN.append(comparison.variational_dropout())
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

    long_tasks: Annotated[int, AtLeast(2)] = 8192  # Tasks for over 256 steps, or for 320 units.
    most_steps: Count = 4096  # Learners with more steps than this are left out.
    widest: Count = 320  # Learners with wider layers than this are left out.

    def settings(self) -> list[tuple[str, str | float | int]]:
        """Returns what is altered, and to what."""
        most = {"steps": self.most_steps, "width": self.widest}
        every = [(altered, value) for altered, values in ALTERED.items() for value in values]
        return [(a, v) for a, v in every if a not in most or int(v) <= most[a]]


SMOKE = {"eval_tasks": 32, "long_tasks": 32, "most_steps": 16, "widest": 80}
CPU = {"eval_tasks": 1024, "long_tasks": 256}  # minutes on two cores; all tasks are for a GPU
PRESETS = comparison.presets(Config, SMOKE, CPU)


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Changes one thing of the learners at a time; the same NC predicts and regularizes them."""
    networks = load_networks(config.networks, config.device)
    whole = comparison.evaluation_tasks(config)
    see = partial(comparison.see_gaps, networks)
    parts = Parts(work, len(config.settings()) * len(LOOKS), callback)
    rows: list[Row] = []
    for altered, value in config.settings():
        change: Any = ACTIVATIONS[str(value)] if altered == "activation" else value
        recipe = comparison.sinusoid_recipe(**{altered: change})
        fewer = recipe.steps > LONG or (altered == "width" and int(value) > WIDE)
        task = whole[: config.long_tasks] if fewer else whole
        ncs = [comparison.nc_method(NC_KEYS[head], nc, task) for head, nc in networks.items()]
        methods = [*PLAIN, *ncs, comparison.oracle(recipe, task)]
        compare = partial(comparison.compare, seed=config.seed, see=see)
        name = partial(label, before=f"{altered} {value}, ")
        results = compare(methods, recipe, task, parts, name=name)
        row = partial(Row.of, NAME, config.seed, altered=altered, value=value)
        for keys, result in results:
            kept = ~result["diverged"][-1]  # all numbers are of learners that did not diverge
            rows.append(row("diverged tasks", scores.count(~kept), **keys))
            learners = "plain" if keys == NONE.keys else "regularized"
            for head, metric in product(sorted(HEADS), FITS):
                if f"predicted/{head}" in result and kept.sum() >= HALF * kept.numel():
                    gaps = (result[name][kept] for name in (f"predicted/{head}", "gap"))
                    fit = scores.estimate(SCORES[metric], *gaps)
                    rows.append(row(metric, fit, **NC_KEYS[head], learners=learners))
            if not comparison.too_many(~kept):
                found = comparison.loss_rows(partial(row, **keys), results, result, -1)
                rows += [loss for loss in found if loss.metric != "train loss"]
    return Outcome(rows, facts=parts.facts(networks))


def tables(rows: list[Row]) -> list[Table]:
    """Returns one table of how well NC predicts and one of how much it helps."""
    kinds = [(head, k, m) for head in HEADS for k in ("plain", "regularized") for m in FITS]
    fits, losses = [], []
    for setting in distinct(rows, "altered", "value"):
        altered, value = str(setting["altered"]), setting["value"]
        name = f"{altered} {value}" + (" (NC's own)" if HOME[altered] == value else "")
        seek = partial(find, rows, **setting)
        fits.append((name, *(show(seek(m, head=head, learners=k), 3) for head, k, m in kinds)))
        cells = [
            comparison.beside(show(seek("test loss", **keys)), seek("diverged tasks", **keys))
            for keys, _, _ in LOOKS.values()
        ]
        shares = [show(seek("share of oracle", head=head), 3) for head in HEADS]
        tasks = max(row.n for row in rows if setting.items() <= row.keys.items())
        losses.append((name, *cells, *shares, str(tasks)))
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
    canvas, axes = plots.sketch(12.5, 7.2, 3, len(ALTERED), sharex="col")
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
    drawn = axes[2, 0].get_legend_handles_labels()
    canvas.legend(*drawn, loc="outside lower center", ncols=len(LOOKS))
    caption = (
        "Above: R2 of predicted against true gap, plain learners, cut off below 0. Below: test "
        "loss after learning. Dotted: the learners that NC was trained on. Settings in which more "
        "than 1 % of the plain learners diverge are not shown, nor is a method whose learners do."
    )
    return [Drawing("ood", canvas, "NC on learners it has never seen", caption)]


LEAD = (
    "NC was trained on ReLU learners with 2 layers of 40 units, learning rate 0.01 and 16 steps. "
    "Here one of these is changed at a time, and the same NC predicts the gap of the learners and "
    "regularizes them (transductive), against no regularizer, L2 at the strength that did best in "
    "the table of regularizers, dropout at 0.5 (wider learners diverge at 0.7) and variational "
    "dropout. The paper shows these as figures without numbers."
)
TITLE = "Learners that NC was not trained on"
EXPERIMENT = Experiment(NAME, TITLE, LEAD, Config, PRESETS, run, tables, figures)
