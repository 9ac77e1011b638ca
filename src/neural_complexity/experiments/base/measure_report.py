"""What the experiment `measures` shows: which measures rank models by their gap, and where."""

import math
from textwrap import fill
from typing import Any

import matplotlib as mpl
import torch
from scipy.stats import rankdata

from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.baselines.ranking import CMI, GRANULATED, MAE, R2, TAU, WORST
from neural_complexity.experiments.base.experiment import Drawing, Outcome
from neural_complexity.experiments.base.plots import sketch
from neural_complexity.experiments.base.rows import Row, distinct, find, pivot, select, show
from neural_complexity.experiments.base.run_folder import HEADS

__all__ = ["AVERAGED", "CHANCE", "ELSEWHERE", "ERROR", "EVERY", "FOLDS", "GAP", "HOLD_OUT"]
__all__ += ["LEAST", "LOST", "MODELS", "OWN", "PREDICTIONS", "REFITS", "TABLES", "TRAINING"]
__all__ += ["UNUSED", "figures", "tables"]

TRAINING, HOLD_OUT, FOLDS = "training loss", "20 % hold-out", "5-fold CV"
UNUSED = "unused labels"  # those of the points that NC was meta-trained on
CHANCE = "random numbers"
USUAL = (TRAINING, HOLD_OUT, FOLDS, UNUSED, CHANCE)  # what a user has anyway
# Meta-trained on other points of the dataset.
OWN: dict[str, str] = {head: f"NC, {head} head" for head in HEADS}
TABLES, ELSEWHERE = "NC for tables", "NC, posterior head, of another dataset"
NCS = (*OWN.values(), TABLES, ELSEWHERE)
PREDICTIONS = (HOLD_OUT, FOLDS, UNUSED, *NCS)  # of the gap, in units of the loss
SCORES = {TAU: 2, GRANULATED: 2, CMI: 3, WORST: 2, R2: 2, MAE: 3}  # and their digits
AVERAGED = (TAU, GRANULATED, CMI, WORST)  # over datasets, whose losses have sizes of their own
EVERY, ERROR = "mean of all datasets", "sign error"
MODELS, LOST, GAP = "models", "left out", "gap"
LEAST, REFITS = "least training loss", "refits above the training loss"
BEST = 10  # measures in the scatter plot

NOTE = (
    "Value ± 95 % interval of a bootstrap of models. Kendall's tau: with the gap, test minus "
    "training cross-entropy. Granulated tau: where one hyper-parameter alone changes. CMI: the "
    "information about the order of gaps that no two hyper-parameters have, from 0 to 1. Worst "
    "sign error: the share of wrong orders where one hyper-parameter changes between two values, "
    "for the worst of these. R2 and MAE: of what predicts the gap itself."
)


def tables(rows: list[Row]) -> list[Table]:
    """Returns a table of all datasets by tau, and one of each dataset by all scores."""
    datasets = [str(d["dataset"]) for d in distinct(select(rows, MODELS), "dataset")]
    columns = [(TAU, {"dataset": name}) for name in datasets]
    columns += [(metric, {"dataset": EVERY}) for metric in AVERAGED]
    header = ("measure", *(f"tau, {name}" for name in datasets), *(f"{m}, mean" for m in AVERAGED))
    lines = pivot(rows, _ranked(rows, EVERY), columns, "{measure}".format_map)
    said = ", ".join(f"{name} {_counted(rows, name)}" for name in datasets)
    note = f"{NOTE} Models, and those that did not reach the training loss: {said}."
    for what, digits in ((LEAST, 3), (REFITS, 0)):
        if there := [row for row in rows if row.metric == what]:
            own = ", ".join(f"{row.keys['dataset']} {row.value:.{digits}f}" for row in there)
            note += f" {what[0].upper()}{what[1:]}: {own}."
    found = [Table("Measures on all datasets", header, tuple(lines), note)]
    for name in datasets:
        lines = [
            (
                str(keys["measure"]),
                *(
                    show(find(rows, m, dataset=name, **keys), digits)
                    for m, digits in SCORES.items()
                ),
            )
            for keys in _ranked(rows, name)
        ]
        title = f"Measures on {name}: {_counted(rows, name)} models"
        found.append(Table(title, ("measure", *SCORES), tuple(lines), NOTE))
    return found


def _counted(rows: list[Row], dataset: str) -> str:
    """Returns how many models there are, and how many were left out."""
    there, lost = (find(rows, metric, dataset=dataset) for metric in (MODELS, LOST))
    assert there is not None
    assert lost is not None
    return f"{there.value:.0f} (+ {lost.value:.0f} left out)"


def _ranked(rows: list[Row], dataset: str) -> list[dict[str, Any]]:
    """Returns the measures by Kendall's tau; those without one at the end."""
    own = [row for row in rows if "measure" in row.keys]
    there = own if dataset == EVERY else select(own, dataset=dataset)
    of = {row.keys["measure"]: row.value for row in select(own, TAU, dataset=dataset)}
    every: list[dict[str, Any]] = distinct(there, "measure")
    return sorted(every, key=lambda keys: -of.get(keys["measure"], -math.inf))


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws tau by measure, the best measures against the gap, and sign errors."""
    ranked = [
        k for k in _ranked(outcome.rows, EVERY) if find(outcome.rows, TAU, dataset=EVERY, **k)
    ]
    names = [str(keys["measure"]) for keys in ranked]
    return [
        _draw_taus(outcome, names),
        _draw_best(outcome, names[:BEST]),
        _draw_errors(outcome, names),
    ]


def _color(measure: str) -> str:
    usual = COLORS["target"] if measure in USUAL else COLORS["none"]
    return COLORS["posterior"] if measure in NCS else usual


def _draw_taus(outcome: Outcome, names: list[str]) -> Drawing:
    canvas, ax = sketch(7, 1.2 + 0.2 * len(names))
    for place, name in enumerate(reversed(names)):
        row = find(outcome.rows, TAU, dataset=EVERY, measure=name)
        assert row is not None
        ax.errorbar(row.value, place, xerr=row.ci95 or 0, fmt="o", ms=4, color=_color(name))
    ax.set_yticks(range(len(names)), names[::-1])
    ax.axvline(0, color=COLORS["target"], lw=0.8)
    ax.set(xlabel="Kendall's tau with the gap, mean of all datasets", ylim=(-1, len(names)))
    caption = "With 95 % intervals over models, and over meta-trainings where there are several. "
    caption += "Blue: NC; black: what a user has anyway."
    return Drawing("measures-tau", canvas, "Which measures rank models by their gap", caption)


def _draw_best(outcome: Outcome, names: list[str]) -> Drawing:
    datasets = [str(d["dataset"]) for d in distinct(select(outcome.rows, MODELS), "dataset")]
    canvas, axes = sketch(10, 4.6, 2, 5, sharex=True, sharey=True)
    for ax, name in zip(axes.flat, names, strict=False):
        for i, dataset in enumerate(datasets):
            both = outcome.tensors[f"{dataset}/{name}"], outcome.tensors[f"{dataset}/{GAP}"]
            x, y = (rankdata(column) / len(column) for column in both)
            ax.plot(x, y, ".", ms=3, alpha=0.5, color=mpl.colormaps["tab10"](i), label=dataset)
        ax.set_title(fill(name, 26), fontsize=8)
    for ax in axes.flat[len(names) :]:
        ax.set_axis_off()
    canvas.supxlabel("rank of the measure")
    canvas.supylabel("rank of the gap")
    handles = axes[0, 0].get_legend_handles_labels()
    canvas.legend(*handles, loc="outside upper center", ncols=len(datasets))
    caption = (
        "Ranks among the models of a dataset, from 0 to 1, of the measures with the best tau. "
    )
    caption += "Of an NC: its first meta-training."
    return Drawing("measures-best", canvas, "The best measures against the gap", caption)


def _draw_errors(outcome: Outcome, names: list[str]) -> Drawing:
    own = select(outcome.rows, ERROR)
    places = [str(keys["environment"]) for keys in distinct(own, "environment")]
    means = torch.full((len(names), len(places)), torch.nan)
    for i, name in enumerate(names):
        for j, place in enumerate(places):
            errors = [row.value for row in select(own, measure=name, environment=place)]
            means[i, j] = sum(errors) / len(errors) if errors else math.nan
    canvas, ax = sketch(7, 1.6 + 0.2 * len(names))
    image = ax.imshow(means.numpy(), aspect="auto", cmap="RdYlGn_r", vmin=0, vmax=1)
    ax.set_yticks(range(len(names)), names)
    ax.set_xticks(range(len(places)), places, rotation=30, ha="right")
    ax.grid(visible=False)
    canvas.colorbar(image, ax=ax, label="sign error")
    caption = "The share of pairs of models in the wrong order that differ in one hyper-parameter "
    caption += "alone, which has these two values; mean of all datasets. One half is chance."
    return Drawing("measures-errors", canvas, "Sign errors by hyper-parameter", caption)
