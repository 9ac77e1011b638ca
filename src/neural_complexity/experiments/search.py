"""Appendix C: random search for NC's sizes, batch and learning rate on the sinusoid."""

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.experiments.base import comparison, plots, random_search
from neural_complexity.experiments.base.comparison import NONE, SCORES
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.random_search import PAPER_SETTING, SEARCHED, Config
from neural_complexity.experiments.base.rows import Keys, Row, make_row
from neural_complexity.experiments.base.table_views import distinct, find, select, show
from neural_complexity.experiments.base.training import Setup
from neural_complexity.meta import scores
from neural_complexity.meta.scores import Estimate
from neural_complexity.meta.trainer import Status
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "search"
R2 = "validation R2"  # the metric that chooses
RECIPE = comparison.sinusoid_recipe()  # the learner of section 4.1
# How a trial ended, and its mark.
LOOKS: dict[str, dict[str, Any]] = {
    "best": {"marker": "o", "ms": 8, "color": COLORS["posterior"]},
    "to the end": {"marker": "o", "ms": 5, "color": COLORS["none"]},
    "stopped": {"marker": "x", "ms": 5, "color": COLORS["direct"]},
    "diverged": {"marker": "v", "ms": 5, "color": COLORS["target"]},
}
CHOICES = {"encoder_layers": (1, 2), "decoder_layers": (1, 2), "width": (16, 32), "batch": (16, 32)}
TINY = {"trials": 5, "iterations": 10, "updates": 16, "tasks": 32, "capacity": 10_000, "startup": 2}
SMOKE = {"head": "posterior", "eval_tasks": 128, "lr": (0.01, 0.0001), **CHOICES, **TINY}
WIDTHS, RATES = (32, 64, 128, 256), (0.01, 0.003, 0.001, 0.0003)
MINUTES = {"trials": 16, "iterations": 40, "updates": 24, "tasks": 256, "capacity": 150_000}
CPU = {"head": "posterior", "width": WIDTHS, "batch": WIDTHS, "lr": RATES, **MINUTES}
PRESETS = comparison.presets(Config, SMOKE, CPU)


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Meta-trains one NC per trial and scores the best one on held-out tasks."""
    setup = Setup(Sinusoids(), RECIPE, config.seed, config.device)
    learners, rows = setup.validation_learners(), list[Row]()
    ways: list[list[Status]] = []
    best: tuple[float, Keys, NeuralComplexity] | None = None
    for index, setting in enumerate(random_search.draw_settings(config)):
        way, found = random_search.run_trial(config, setup, learners, setting, ways, work, callback)
        ways.append(way)
        row = partial(make_row, NAME, config.seed, trial=index, **setting)
        done = way[-1].iteration if way else 0
        stopped = found is not None and done < config.iterations
        ended = {"iterations": done, "stopped": stopped, "diverged": found is None}
        rows += [row(metric, Estimate(float(n), None, 1)) for metric, n in ended.items()]
        if found:
            r2, nc = found
            rows.append(row(R2, r2))
            if best is None or r2.value > best[0]:
                best = (r2.value, {"trial": index, **setting}, nc)
        if callback is not None:
            seconds = sum(way[-1].seconds for way in ways if way)
            callback(NAME, len(ways), config.trials, seconds, {"best R2": best[0]} if best else {})
    if best is None:
        raise FloatingPointError(f"NC must not diverge in all trials, got {len(ways)} that did")
    _, keys, nc = best
    parts, task = Parts(work.sub("evaluation"), 3, callback), comparison.evaluation_tasks(config)
    # The best trial's NC on tasks that had no part in choosing it.
    ours = comparison.nc_method({"method": "NC"}, nc, task)
    methods, see = (NONE, ours, comparison.oracle(RECIPE, task)), comparison.see_gaps({"best": nc})
    compared = comparison.compare(methods, RECIPE, task, parts, seed=config.seed, see=see)
    results = [result for _, result in compared]
    kept = comparison.kept_tasks(results)
    gaps = [results[0][key][kept] for key in ("predicted/best", "gap")]
    numbers = {metric: scores.estimate(SCORES[metric], *gaps) for metric in ("R2", "MAE")}
    losses = (result["loss_te"][0, kept] for result in results)
    numbers["share of oracle"] = scores.estimate(scores.share_of_oracle, *losses)
    numbers["diverged tasks"] = scores.count(~kept)
    rows += [make_row(NAME, config.seed, m, score, **keys) for m, score in numbers.items()]
    history = {f"trial {index}": way for index, way in enumerate(ways) if way}
    facts = {"seconds": {name: round(spent, 1) for name, spent in parts.seconds.items()}}
    grace = torch.tensor(config.grace * config.iterations)
    return Outcome(rows, {"grace": grace}, {"best": nc}, history, facts)


def _found(rows: list[Row]) -> list[tuple[str, dict[str, Row]]]:
    """How each trial ended, and its rows by metric: the best first, those that diverged last."""
    indices = [keys["trial"] for keys in distinct(rows, "trial")]
    trials = [{row.metric: row for row in select(rows, trial=index)} for index in indices]
    trials.sort(key=lambda trial: -trial[R2].value if R2 in trial else math.inf)
    ends = ([word for word in ("stopped", "diverged") if trial[word].value] for trial in trials)
    return [
        (end[0] if end else "to the end", trial) for end, trial in zip(ends, trials, strict=True)
    ]


def _named(row: Row) -> tuple[str, ...]:
    return (f"trial {row.keys['trial']}", *(str(row.keys[name]) for name in SEARCHED))


def tables(rows: list[Row]) -> list[Table]:
    """Returns the tables of the best trial and of all trials."""
    (r2,) = select(rows, "R2")
    scored = ("R2", "MAE", "share of oracle")
    left_out = sum(row.value for row in select(rows, "diverged tasks"))
    lines = []
    for ended, trial in _found(rows):
        done = trial["iterations"]
        lines.append((*_named(done), f"{done.value:.0f}", ended, show(trial.get(R2), 4)))
    best = (*_named(r2), *(show(find(rows, metric), 4) for metric in scored))
    papers = ("the paper's choice", *map(str, PAPER_SETTING.values()), "", "", "")
    return [
        Table(
            f"The best trial on {r2.n:,} held-out tasks",
            ("trial", *SEARCHED, *scored),
            (best, papers),
            "Value ± 95 % interval over tasks. R2 and MAE of the predicted gap: plain learners "
            "after their last step. Share of oracle: learners regularized by this NC, "
            "transductive, after their last step. Tasks left out because a learner diverged: "
            f"{left_out:.0f}.",
        ),
        Table(
            f"All {len(lines)} trials, the best first",
            ("trial", *SEARCHED, "iterations", "ended", R2),
            tuple(lines),
            "R2 ± 95 % interval over the validation learners, which also chose the best trial, so "
            "the first value is flattered. A stopped trial shows its last value, not the one it "
            "would have reached. In the paper's symbols: encoder_layers is n_enc, width d, "
            "decoder_layers n_dec, batch bs.",
        ),
    ]


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws the figures from what a run left."""
    found = _found(outcome.rows)
    looks = ["best", *(ended for ended, _ in found[1:])]
    canvas, ax = plots.sketch(6.2, 3.6)
    for look, (_, trial) in reversed([*zip(looks, found, strict=True)]):  # the best on top
        way = outcome.history.get(_named(trial["iterations"])[0], [])
        iterations, left = [s.iteration for s in way], [1 - s.r2 for s in way]
        width = 2 if look == "best" else 1
        ax.plot(iterations, left, **LOOKS[look], markevery=slice(-1, None), lw=width, alpha=0.8)
    ax.axvspan(0, outcome.tensors["grace"].item(), color=COLORS["none"], alpha=0.1, lw=0)
    ax.set(xlabel="iteration", ylabel="1 - R2, validation")
    ax.set_xlim(left=0)
    _finish(canvas, ax, looks)
    caption = "A cross is where a trial was stopped; in the shaded part none is."
    ways = Drawing("trials", canvas, "The trials on their way", caption)
    ends = [(x, trial[R2]) for x, (_, trial) in zip(looks, found, strict=True) if R2 in trial]
    return [ways, _choices(outcome, sorted(ends, key=lambda end: int(end[1].keys["trial"])))]


def _choices(outcome: Outcome, ends: list[tuple[str, Row]]) -> Drawing:
    canvas, axes = plots.sketch(8.6, 4.8, 2, 3, sharey=True)
    *panels, last = axes.flat
    for ax, name in zip(panels, SEARCHED, strict=True):
        choices = sorted({float(row.keys[name]) for _, row in ends})
        for position, choice in enumerate(choices):
            same = [(look, row) for look, row in ends if row.keys[name] == choice]
            spread = np.linspace(-0.25, 0.25, len(same)) if len(same) > 1 else [0.0]
            for aside, (look, row) in zip(spread, same, strict=True):
                ax.plot(position + aside, 1 - row.value, ls="", alpha=0.85, **LOOKS[look])
            if position:
                ax.axvline(position - 0.5, color=COLORS["none"], alpha=0.25, lw=0.6)
        ax.set_xticks(range(len(choices)), [f"{choice:g}" for choice in choices])
        ax.set(xlabel=name, xlim=(-0.5, len(choices) - 0.5))
        ax.grid(visible=False, axis="x")
    for look, row in ends:
        seconds = outcome.history[_named(row)[0]][-1].seconds
        last.plot(seconds, 1 - row.value, ls="", alpha=0.85, **LOOKS[look])
    last.set(xlabel="seconds")
    last.set_xlim(left=0)
    for ax in axes[:, 0]:
        ax.set_ylabel("1 - R2, validation")
    _finish(canvas, last, [look for look, _ in ends])
    caption = "One mark per trial at its last score, spread sideways; stopped trials had less time."
    return Drawing("choices", canvas, "What each choice gives", caption)


def _finish(canvas: Canvas, ax: Axes, looks: list[str]) -> None:
    """Makes the vertical axis logarithmic, with plain numbers: it often spans one decade only."""
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    for look in [look for look in LOOKS if look in looks]:
        ax.plot([], [], ls="", label=look, **LOOKS[look])
    canvas.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=len(LOOKS))


CHOICE = " ".join(f"{name}={value}" for name, value in PAPER_SETTING.items())
LEAD = (
    "A random search as in appendix C of the paper: each trial meta-trains one NC with sizes, "
    "batch and learning rate drawn at random, for the same number of updates. After a grace period "
    "a trial is stopped when its best validation R2 is below the median of the running means, "
    "since that period, of the trials before it. The best trial is then scored once on held-out "
    f"tasks. The paper's search ended with {CHOICE}."
)
TITLE = "Hyperparameter search on the sinusoid"
EXPERIMENT = Experiment(NAME, TITLE, LEAD, Config, PRESETS, run, tables, figures)
