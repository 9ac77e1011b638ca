"""Appendix C: random search for NC's sizes, batch and learning rate on the sinusoid."""

import math

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.experiments.base import comparison
from neural_complexity.experiments.base.comparison import NONE, SCORES
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.random_search import (
    PAPER_SETTING,
    SEARCHED,
    Config,
    Search,
    Trial,
    draw_settings,
)
from neural_complexity.experiments.base.rows import Row, make_row
from neural_complexity.experiments.base.table_views import distinct, find, select, show
from neural_complexity.experiments.base.training import Setup
from neural_complexity.meta import scores
from neural_complexity.meta.scores import Estimate
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "search"
R2 = "validation R2"  # the metric that chooses
RECIPE = comparison.sinusoid_recipe()  # the learner of section 4.1
# How a trial ended: marker and colour.
LOOKS = {
    "best": ("o", COLORS["posterior"]),
    "to the end": ("o", COLORS["none"]),
    "stopped": ("x", COLORS["direct"]),
    "diverged": ("v", COLORS["target"]),
}


CHOICES = {"encoder_layers": (1, 2), "decoder_layers": (1, 2), "width": (16, 32), "batch": (16, 32)}
TINY = {"trials": 5, "iterations": 10, "updates": 16, "tasks": 32, "capacity": 10_000, "startup": 2}
WIDTHS = (32, 64, 128, 256)
MINUTES = {"trials": 16, "iterations": 40, "updates": 24, "tasks": 256, "capacity": 150_000}
PRESETS = comparison.presets(
    Config,
    smoke={"head": "posterior", "eval_tasks": 128, "lr": (0.01, 0.0001), **CHOICES, **TINY},
    cpu={
        "head": "posterior",
        "width": WIDTHS,
        "batch": WIDTHS,
        "lr": (0.01, 0.003, 0.001, 0.0003),
        **MINUTES,
    },
    paper={},
)


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Meta-trains one NC per trial and scores the best one on held-out tasks."""
    setup = Setup(family=Sinusoids(), recipe=RECIPE, seed=config.seed, device=config.device)
    search = Search(config, setup, setup.validation_learners(), work, callback)
    trials: list[Trial] = []
    best: tuple[float, Trial, NeuralComplexity] | None = None
    for setting in draw_settings(config):
        trial, nc = search.trial(setting, trials)
        trials.append(trial)
        if trial.r2 and nc and (best is None or trial.r2.value > best[0]):
            best = (trial.r2.value, trial, nc)
        if callback is not None:
            seconds = sum(t.history[-1].seconds for t in trials if t.history)
            so_far = {} if best is None else {"best R2": best[0]}
            callback(NAME, len(trials), config.trials, seconds, so_far)
    if best is None:
        raise FloatingPointError(f"NC must not diverge in all trials, got {len(trials)} that did")
    parts = Parts(work.sub("evaluation"), 3, callback)
    found = [(trial, _ending(trial)) for trial in trials]
    rows = [
        make_row(NAME, config.seed, metric, score, trial=trial.index, **trial.setting)
        for trial, numbers in [*found, (best[1], _held_out(config, best[2], parts))]
        for metric, score in numbers.items()
    ]
    return Outcome(
        rows,
        {"grace": torch.tensor(config.grace * config.iterations)},
        {"best": best[2]},
        {f"trial {trial.index}": trial.history for trial in trials if trial.history},
        {"seconds": {name: round(spent, 1) for name, spent in parts.seconds.items()}},
    )


def _ending(trial: Trial) -> dict[str, Estimate]:
    """How a trial ended, early or not, and how good NC then was on the validation learners."""
    stopped = trial.r2 is not None and trial.iteration < trial.history[-1].iterations
    ended = {"iterations": trial.iteration, "stopped": stopped, "diverged": trial.r2 is None}
    scores = {name: Estimate(float(value), None, 1) for name, value in ended.items()}
    return scores | ({R2: trial.r2} if trial.r2 else {})


def _held_out(config: Config, nc: NeuralComplexity, parts: Parts) -> dict[str, Estimate]:
    """Scores the best trial's NC on tasks that had no part in choosing it."""
    task = comparison.evaluation_tasks(config)
    ours = comparison.nc_method({"method": "NC"}, nc, task)
    methods, see = (NONE, ours, comparison.oracle(RECIPE, task)), comparison.see_gaps({"best": nc})
    found = comparison.compare(methods, RECIPE, task, parts, seed=config.seed, see=see)
    results = [result for _, result in found]
    kept = comparison.kept_tasks(results)
    gaps = [results[0][key][kept] for key in ("predicted/best", "gap")]
    losses = (r["loss_te"][0, kept] for r in results)
    return {
        **{metric: scores.estimate(SCORES[metric], *gaps) for metric in ("R2", "MAE")},
        "share of oracle": scores.estimate(scores.share_of_oracle, *losses),
        "diverged tasks": scores.count(~kept),
    }


def _found(rows: list[Row]) -> list[dict[str, Row]]:
    """Returns the rows of each trial by metric, the best trial first, those that diverged last."""
    indices = [keys["trial"] for keys in distinct(rows, "trial")]
    trials = [{row.metric: row for row in select(rows, trial=index)} for index in indices]
    return sorted(trials, key=lambda t: -t[R2].value if R2 in t else math.inf)


def _name(row: Row) -> str:
    return f"trial {row.keys['trial']}"


def _setting(row: Row) -> list[str]:
    return [str(row.keys[name]) for name in SEARCHED]


def _ended(trial: dict[str, Row]) -> str:
    ended = [word for word in ("stopped", "diverged") if trial[word].value]
    return ended[0] if ended else "to the end"


def tables(rows: list[Row]) -> list[Table]:
    """Returns the tables of the best trial and of all trials."""
    (r2,) = select(rows, "R2")
    scored = ("R2", "MAE", "share of oracle")
    left_out = sum(row.value for row in select(rows, "diverged tasks"))
    lines = []
    for trial in _found(rows):
        end = trial["iterations"]
        result = (f"{end.value:.0f}", _ended(trial), show(trial.get(R2), 4))
        lines.append((_name(end), *_setting(end), *result))
    return [
        Table(
            f"The best trial on {r2.n:,} held-out tasks",
            ("trial", *SEARCHED, *scored),
            (
                (_name(r2), *_setting(r2), *(show(find(rows, metric), 4) for metric in scored)),
                ("the paper's choice", *map(str, PAPER_SETTING.values()), "", "", ""),
            ),
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
    return [
        Drawing(
            "trials",
            _curves(outcome),
            "The trials on their way",
            "1 - R2 on the validation learners; a cross is where a trial was stopped. In the "
            "shaded part none is.",
        ),
        Drawing(
            "choices",
            _choices(outcome),
            "What each choice gives",
            "One mark per trial at its last score; marks of the same choice are spread "
            "sideways, from trial 0 on. A stopped trial had less time. Last: the seconds that "
            "the trial took.",
        ),
    ]


def _curves(outcome: Outcome) -> Canvas:
    canvas = Canvas(figsize=(6.2, 3.6), layout="constrained")
    ax = canvas.subplots()
    ends = [("best" if rank == 0 else _ended(t), t) for rank, t in enumerate(_found(outcome.rows))]
    for look, trial in reversed(ends):  # the best on top
        scores = outcome.history.get(_name(trial["iterations"]), [])
        iterations, left = [s.iteration for s in scores], [1 - s.r2 for s in scores]
        marker, color = LOOKS[look]
        ax.plot(iterations, left, color=color, lw=2 if look == "best" else 1, alpha=0.8)
        ax.plot(iterations[-1:], left[-1:], marker, ms=5, color=color)
    ax.axvspan(0, outcome.tensors["grace"].item(), color=COLORS["none"], alpha=0.1, lw=0)
    ax.set(xlabel="iteration", ylabel="1 - R2, validation")
    ax.set_xlim(left=0)
    _finish(canvas, ax, {look for look, _ in ends})
    return canvas


def _choices(outcome: Outcome) -> Canvas:
    trials = [trial for trial in _found(outcome.rows) if R2 in trial]
    looks = ["best" if rank == 0 else _ended(trial) for rank, trial in enumerate(trials)]
    ends = [(look, trial[R2]) for look, trial in zip(looks, trials, strict=True)]
    ends.sort(key=lambda end: int(end[1].keys["trial"]))
    canvas = Canvas(figsize=(8.6, 4.8), layout="constrained")
    axes = canvas.subplots(2, 3, sharey=True).flat
    for ax, name in zip(axes, SEARCHED, strict=False):
        choices = sorted({float(row.keys[name]) for _, row in ends})
        for position, choice in enumerate(choices):
            same = [(look, row) for look, row in ends if row.keys[name] == choice]
            spread = np.linspace(-0.25, 0.25, len(same)) if len(same) > 1 else [0.0]
            for aside, (look, row) in zip(spread, same, strict=True):
                _mark(ax, position + aside, row, look)
            if position:
                ax.axvline(position - 0.5, color=COLORS["none"], alpha=0.25, lw=0.6)
        ax.set_xticks(range(len(choices)), [f"{choice:g}" for choice in choices])
        ax.set(xlabel=name, xlim=(-0.5, len(choices) - 0.5))
        ax.grid(visible=False, axis="x")
    last = axes[len(SEARCHED)]
    for look, row in ends:
        _mark(last, outcome.history[_name(row)][-1].seconds, row, look)
    last.set(xlabel="seconds")
    last.set_xlim(left=0)
    for ax in (axes[0], axes[3]):
        ax.set_ylabel("1 - R2, validation")
    _finish(canvas, last, set(looks))
    return canvas


def _mark(ax: Axes, x: float, row: Row, look: str) -> None:
    marker, color = LOOKS[look]
    ax.plot([x], [1 - row.value], marker, ms=8 if look == "best" else 5, color=color, alpha=0.85)


def _finish(canvas: Canvas, ax: Axes, looks: set[str]) -> None:
    """Makes the vertical axis logarithmic, with plain numbers: it often spans one decade only."""
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    for look, (marker, color) in LOOKS.items():
        if look in looks:
            ax.plot([], [], marker, ms=5, color=color, label=look)
    canvas.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=len(LOOKS))


LEAD = (
    "A random search as in appendix C of the paper: each trial meta-trains one NC with sizes, "
    "batch and learning rate drawn at random, for the same number of updates. After a grace "
    "period a trial is stopped when its best validation R2 is below the median of the running "
    "means, since that period, of the trials before it. The best trial is then scored once on "
    "held-out tasks that had no part in choosing it. The paper's search ended with "
    + " ".join(f"{name}={value}" for name, value in PAPER_SETTING.items())
    + "."
)
EXPERIMENT = Experiment(
    NAME, "Hyperparameter search on the sinusoid", LEAD, Config, PRESETS, run, tables, figures
)
