"""Appendix C: random search for NC's sizes, batch and learning rate on the sinusoid.

No search library: drawing and median stopping are a few lines, a setting is a pure function of the
seed and the trial's index, and a killed search continues inside the trial that was running.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import partial
from statistics import fmean, median
from typing import Annotated, Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.experiments.base import comparison, plots, training
from neural_complexity.experiments.base.comparison import NONE, SCORES, Result
from neural_complexity.experiments.base.config import BaseConfig, Between, Count
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.rows import Keys, Row, distinct, find, select, show
from neural_complexity.learners.fit import Trajectory
from neural_complexity.meta import scores
from neural_complexity.meta.optimize import Status
from neural_complexity.meta.scores import Estimate
from neural_complexity.model.judgement import judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import stream
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "search"
Setting = dict[str, Any]  # the searched fields of a `Training`
Way = list[Status]  # the scores of a trial
SEARCHED = ("encoder_layers", "width", "decoder_layers", "batch", "lr")
SHARED = ("iterations", "updates", "tasks", "capacity")  # by all trials
PAPER_SETTING: Setting = dict(zip(SEARCHED, (3, 1024, 3, 512, 0.0005), strict=True))
R2 = "validation R2"  # the metric that chooses
RECIPE = comparison.sinusoid_recipe()  # the learner of section 4.1
# How a trial ended, and its mark.
LOOKS: dict[str, dict[str, Any]] = {
    "best": {"marker": "o", "ms": 8, "color": COLORS["posterior"]},
    "to the end": {"marker": "o", "ms": 5, "color": COLORS["none"]},
    "stopped": {"marker": "x", "ms": 5, "color": COLORS["direct"]},
    "diverged": {"marker": "v", "ms": 5, "color": COLORS["target"]},
}


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Random search; the defaults are the paper's ranges. All other settings are ours."""

    head: training.Head = "direct"  # Which head; the paper's is direct.
    trials: Count = 64  # How many settings to try (the paper does not say).
    encoder_layers: tuple[int, ...] = (1, 2, 3)  # Choices for n_enc.
    width: tuple[int, ...] = (128, 256, 512, 1024)  # Choices for d.
    decoder_layers: tuple[int, ...] = (1, 2, 3)  # Choices for n_dec.
    batch: tuple[int, ...] = (128, 256, 512, 1024)  # Choices for bs.
    lr: tuple[float, ...] = (0.005, 0.001, 0.0005, 0.0001)  # Choices for Adam's peak learning rate.
    iterations: int = 5000  # Collections per trial (the paper does not say).
    updates: int = 10  # NC updates per collection (the paper does not say).
    tasks: int = 512  # New tasks per collection (the paper does not say).
    capacity: int = 1_000_000  # Rows of the memory bank (the paper does not say).
    grace: Annotated[float, Between(0, 1)] = 0.25  # The part of a trial in which it is not stopped.
    startup: Count = 4  # The first trials, which are never stopped: a median of fewer says little.

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges = self.some(SEARCHED)
        for name, choices in ranges.items():
            if not choices or len(set(choices)) < len(choices):
                raise ValueError(f"{name} must have choices, each once, got {choices}")
            for choice in choices:
                training.ours(**{name: choice})  # checks itself
        training.ours(**self.some(SHARED))
        settings = math.prod(map(len, ranges.values()))
        if self.trials > settings:
            raise ValueError(f"trials must be at most {settings}, all settings, got {self.trials}")

    def some(self, names: Sequence[str]) -> dict[str, Any]:
        """Returns the fields with these names."""
        return {name: getattr(self, name) for name in names}


CHOICES = {"encoder_layers": (1, 2), "decoder_layers": (1, 2), "width": (16, 32), "batch": (16, 32)}
TINY = {"trials": 5, "iterations": 10, "updates": 16, "tasks": 32, "capacity": 10_000, "startup": 2}
SMOKE = {"head": "posterior", "eval_tasks": 128, "lr": (0.01, 0.0001), **CHOICES, **TINY}
WIDTHS, RATES = (32, 64, 128, 256), (0.01, 0.003, 0.001, 0.0003)
MINUTES = {"trials": 16, "iterations": 40, "updates": 24, "tasks": 256, "capacity": 150_000}
CPU = {"head": "posterior", "width": WIDTHS, "batch": WIDTHS, "lr": RATES, **MINUTES}
PRESETS = comparison.presets(Config, SMOKE, CPU)


def draw_settings(config: Config) -> list[Setting]:
    """Draws one setting per trial, each from a stream of its own, none twice."""
    settings: list[Setting] = []
    for index in range(config.trials):
        generator, setting = stream(config.seed, "trial", index), Setting()
        while not setting or setting in settings:  # the same run again would teach nothing
            for name, choices in config.some(SEARCHED).items():
                setting[name] = choices[int(torch.randint(len(choices), (), generator=generator))]
        settings.append(setting)
    return settings


def falls_behind(way: Way, earlier: list[Way], *, grace: float) -> bool:
    """Returns, by the median stopping rule (Vizier, Golovin et al., 2017) whether to stop a trial.

    A trial gives up when its best R2 so far is below the median of the earlier trials' running
    means at the same iteration. One that gave up votes with what it had reached, or the survivors
    alone would raise the bar. The means leave out the first `grace` iterations: R2 rises so steeply
    there that they would stay below any trial's best.
    """
    now = way[-1].iteration
    if now <= grace:
        return False
    running = [
        fmean(max(-math.inf, status.r2) for status in trial if grace < status.iteration <= now)
        for trial in earlier
        if any(status.iteration > grace for status in trial)
    ]  # NaN is not above minus infinity
    return bool(running) and max(-math.inf, *(status.r2 for status in way)) < median(running)


def run_trial(
    config: Config,
    setup: training.Setup,
    learners: Trajectory,
    setting: Setting,
    earlier: list[Way],
    work: Workspace,
    callback: ProgressCallback | None,
) -> tuple[Way, tuple[Estimate, NeuralComplexity] | None]:
    """Meta-trains one NC, once; returns the way there, and its R2 and itself unless it diverged."""
    name, sized = f"trial {len(earlier)}", training.ours(**setting, **config.some(SHARED))

    def train() -> Result:
        """Returns the history, (scores, 7), and unless NC diverged its score and weights."""
        way: Way = []

        def stop(status: Status) -> bool:
            way.append(status)
            grace = config.grace * config.iterations
            return len(earlier) >= config.startup and falls_behind(way, earlier, grace=grace)

        found = {}
        with suppress(FloatingPointError):  # ends nothing but the trial
            more: dict[str, Any] = {"validate": partial(training.validation_r2, learners)}
            more |= {"name": name, "stop": stop}
            nc, _ = training.train_network(sized, config.head, setup, work, callback, **more)
            if math.isfinite(way[-1].r2):
                whole = learners[~learners.diverged]
                r2 = scores.estimate(scores.r_squared, judge(nc, whole.end).gap, whole.gap)
                found = nc.state_dict() | {"r2": torch.tensor(astuple(r2), dtype=torch.float64)}
        history = torch.tensor([astuple(status)[:7] for status in way], dtype=torch.float64)
        return {**found, "history": history.reshape(-1, 7)}

    found = work.do(f"{name}, result", train)
    work.remove(name)  # its checkpoints and its bank
    history = [Status(*map(int, row[:4]), *row[4:]) for row in found.pop("history").tolist()]
    if not found:
        return history, None
    value, ci95, n = found.pop("r2").tolist()
    nc, _ = setup.network(sized, config.head)
    nc.load_state_dict(found)
    return history, (Estimate(value, ci95, int(n)), nc)


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Meta-trains one NC per trial and scores the best one on held-out tasks."""
    setup = training.Setup(Sinusoids(), RECIPE, config.seed, config.device)
    learners, rows, ways = setup.validation_learners(), list[Row](), list[Way]()
    best: tuple[float, Keys, NeuralComplexity] | None = None
    for index, setting in enumerate(draw_settings(config)):
        way, found = run_trial(config, setup, learners, setting, ways, work, callback)
        ways.append(way)
        row = partial(Row.of, NAME, config.seed, trial=index, **setting)
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
    methods = (NONE, ours, comparison.oracle(RECIPE, task))
    see = partial(comparison.see_gaps, {"best": nc})
    compared = comparison.compare(methods, RECIPE, task, parts, seed=config.seed, see=see)
    results = [result for _, result in compared]
    kept = comparison.kept_tasks(results)
    gaps = [results[0][key][kept] for key in ("predicted/best", "gap")]
    numbers = {metric: scores.estimate(SCORES[metric], *gaps) for metric in ("R2", "MAE")}
    losses = (result["loss_te"][0, kept] for result in results)
    numbers["share of oracle"] = scores.estimate(scores.share_of_oracle, *losses)
    numbers["diverged tasks"] = scores.count(~kept)
    rows += [Row.of(NAME, config.seed, m, score, **keys) for m, score in numbers.items()]
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
    ends.sort(key=lambda end: int(end[1].keys["trial"]))
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
    return [ways, Drawing("choices", canvas, "What each choice gives", caption)]


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
