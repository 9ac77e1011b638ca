"""Appendix C: random search for NC's sizes, batch and learning rate on the sinusoid.

No search library: drawing and stopping are a few lines, a setting is a pure function of the seed
and the trial's index, and a killed search goes on inside the trial that was running.
"""

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import torch
from torch import Tensor

from neural_complexity.experiments.base.comparison import (
    Method,
    nc_method,
    oracle,
    sinusoid_recipe,
    train_with,
)
from neural_complexity.experiments.base.configs import Basics, check_least
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.pieces import Pieces
from neural_complexity.experiments.base.rows import Row, score_row
from neural_complexity.experiments.base.training import (
    ours,
    train_nc,
    validation_learners,
    validation_r2,
)
from neural_complexity.files import read_json, write_json
from neural_complexity.meta.evaluate import Trajectory, predict_gaps, usable_tasks
from neural_complexity.meta.scores import (
    Estimate,
    count,
    estimate,
    mean_absolute_error,
    r_squared,
    share_of_oracle,
)
from neural_complexity.meta.training_loop import Moment, tell_moments
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import Tell
from neural_complexity.seeding import stream
from neural_complexity.tasks.sinusoids import Sinusoids

__all__ = [
    "NAME",
    "PAPER_SETTING",
    "PRESETS",
    "SEARCHED",
    "Config",
    "cpu",
    "draw_settings",
    "falls_behind",
    "paper",
    "read_setting",
    "run",
    "smoke",
    "write_setting",
]

NAME = "search"
Setting = dict[str, Any]  # the searched fields of a `Training`
# What the paper ended with: n_enc, d, n_dec, bs and lr.
PAPER_SETTING: Setting = {
    "encoder_layers": 3,
    "width": 1024,
    "decoder_layers": 3,
    "batch": 512,
    "lr": 0.0005,
}
SEARCHED = tuple(PAPER_SETTING)
# The learner of section 4.1.
RECIPE = sinusoid_recipe()


@dataclass(frozen=True, kw_only=True)
class Config(Basics):
    """Random search; the defaults are the paper's ranges. All other settings are ours."""

    head: Literal["posterior", "direct"] = "direct"
    """Which head; the paper's is direct."""
    trials: int = 64
    """How many settings to try (the paper does not say)."""
    encoder_layers: tuple[int, ...] = (1, 2, 3)
    """Choices for n_enc."""
    width: tuple[int, ...] = (128, 256, 512, 1024)
    """Choices for d."""
    decoder_layers: tuple[int, ...] = (1, 2, 3)
    """Choices for n_dec."""
    batch: tuple[int, ...] = (128, 256, 512, 1024)
    """Choices for bs."""
    lr: tuple[float, ...] = (0.005, 0.001, 0.0005, 0.0001)
    """Choices for the peak of Adam's learning rate."""
    iterations: int = 5000
    """Collections per trial (the paper does not say)."""
    updates: int = 10
    """NC updates per collection (the paper does not say)."""
    tasks: int = 512
    """New tasks per collection (the paper does not say)."""
    capacity: int = 1_000_000
    """Rows of the memory bank (the paper does not say)."""
    grace: float = 0.25
    """The part of a trial in which it is not stopped."""
    startup: int = 4
    """The first trials, which are never stopped: a median of fewer says little."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "trials", "startup")
        if not 0 <= self.grace <= 1:
            raise ValueError(f"grace must be from 0 to 1, got {self.grace}")
        if self.head not in ("posterior", "direct"):
            raise ValueError(f"head must be posterior or direct, got {self.head}")
        for name in SEARCHED:
            choices = getattr(self, name)
            if not choices or len(set(choices)) < len(choices):
                raise ValueError(f"{name} must have choices, each once, got {choices}")
            for choice in choices:
                ours(**{name: choice})  # checks itself
        ours(**self.lengths)
        settings = math.prod(len(getattr(self, name)) for name in SEARCHED)
        if self.trials > settings:
            raise ValueError(f"trials must be at most {settings}, all settings, got {self.trials}")

    @property
    def lengths(self) -> dict[str, int]:
        """What all trials share."""
        names = ("iterations", "updates", "tasks", "capacity")
        return {name: getattr(self, name) for name in names}


def paper() -> Config:
    """The paper's ranges and head, for a GPU."""
    return Config()


def cpu() -> Config:
    """Minutes on two cores."""
    return Config(
        head="posterior",
        trials=16,
        width=(32, 64, 128, 256),
        batch=(32, 64, 128, 256),
        lr=(0.01, 0.003, 0.001, 0.0003),
        iterations=40,
        updates=24,
        tasks=256,
        capacity=150_000,
    )


def smoke() -> Config:
    """Seconds; what CI runs."""
    return Config(
        eval_tasks=128,
        head="posterior",
        trials=5,
        encoder_layers=(1, 2),
        width=(16, 32),
        decoder_layers=(1, 2),
        batch=(16, 32),
        lr=(0.01, 0.0001),
        iterations=10,
        updates=16,
        tasks=32,
        capacity=10_000,
        startup=2,
    )


PRESETS: dict[str, Callable[[], Config]] = {"smoke": smoke, "cpu": cpu, "paper": paper}


@dataclass(frozen=True)
class Trial:
    """What came of one setting."""

    setting: Setting
    history: list[Moment]
    r2: Estimate | None  # of validation learners, at its end; none if NC diverged

    @property
    def iteration(self) -> int:
        """The last one after which NC was scored."""
        return self.history[-1].iteration if self.history else 0

    @property
    def stopped(self) -> bool:
        """Whether it was ended early because it fell behind."""
        return self.r2 is not None and self.iteration < self.history[-1].iterations


def run(config: Config, *, folder: Path | None = None, tell: Tell | None = None) -> Outcome:
    """Meta-trains one NC per trial and scores the best one on held-out tasks.

    Args:
        config: The settings.
        folder: Where unfinished work is kept, so that the same call goes on after an interruption.
        tell: Told about the progress.

    Raises:
        FloatingPointError: If NC diverges in all trials.
    """
    learners = validation_learners(Sinusoids(), RECIPE, seed=config.seed, device=config.device)
    trials: list[Trial] = []
    best: tuple[float, int, NeuralComplexity] | None = None  # R2, index, network
    seconds = 0.0
    for index, setting in enumerate(draw_settings(config)):
        trial, nc = _do_trial(config, index, setting, trials, learners, folder, tell)
        trials.append(trial)
        if trial.r2 and nc and (best is None or trial.r2.value > best[0]):
            best = (trial.r2.value, index, nc)
        if tell is not None:
            seconds += trial.history[-1].seconds if trial.history else 0.0
            found = {} if best is None else {"best R2": best[0]}
            tell(NAME, len(trials), config.trials, seconds, found)
    if best is None:
        raise FloatingPointError(f"NC must not diverge in all trials, got {len(trials)} that did")
    _, winner, nc = best
    pieces = Pieces(3, config, None if folder is None else folder / "evaluation", tell)
    rows = [row for index, trial in enumerate(trials) for row in _trial_rows(config, index, trial)]
    rows += _held_out_rows(config, winner, trials[winner], nc, pieces)
    history = {f"trial {index}": trial.history for index, trial in enumerate(trials)}
    return Outcome(
        rows,
        {"grace": torch.tensor(config.grace * config.iterations)},
        {"best": nc},
        {name: moments for name, moments in history.items() if moments},
        {"seconds": {name: round(spent, 1) for name, spent in pieces.seconds.items()}},
    )


def draw_settings(config: Config) -> list[Setting]:
    """Draws one setting per trial, each from a stream of its own, none twice."""
    settings: list[Setting] = []
    for index in range(config.trials):
        generator = stream(config.seed, "trial", index)
        setting = _draw(config, generator)
        while setting in settings:  # the same run again would teach nothing
            setting = _draw(config, generator)
        settings.append(setting)
    return settings


def _draw(config: Config, generator: torch.Generator) -> Setting:
    ranges = {name: getattr(config, name) for name in SEARCHED}
    return {
        name: choices[int(torch.randint(len(choices), (), generator=generator))]
        for name, choices in ranges.items()
    }


def write_setting(setting: Setting) -> str:
    """Writes a setting as text.

    Example:
        >>> write_setting(PAPER_SETTING)
        'encoder_layers=3 width=1024 decoder_layers=3 batch=512 lr=0.0005'
    """
    return " ".join(f"{name}={value}" for name, value in setting.items())


def read_setting(text: str) -> dict[str, str]:
    """Reads what `write_setting` wrote, each value as text."""
    return dict(part.split("=") for part in text.split())


def falls_behind(
    scores: Sequence[Moment], earlier: Sequence[Sequence[Moment]], *, grace: float
) -> bool:
    """Decides by the median stopping rule (Vizier, Golovin et al., 2017) whether to give up.

    A trial gives up when its best R2 so far is below the median of the earlier trials' running
    means of R2 at the same iteration.

    Args:
        scores: Those of the trial so far, the latest last; not empty.
        earlier: The scores of each earlier trial; one that gave up votes with what it had reached,
            otherwise the survivors alone would set the bar, higher and higher.
        grace: Iterations after which trials are judged. Scores up to then are not in the means: R2
            rises so steeply at first that they would keep the means below any trial's best.
    """
    now = scores[-1].iteration
    if now <= grace:
        return False
    running = [
        fmean(_finite_r2(moment) for moment in moments if grace < moment.iteration <= now)
        for moments in earlier
        if any(moment.iteration > grace for moment in moments)
    ]
    return bool(running) and max(map(_finite_r2, scores)) < median(running)


def _finite_r2(moment: Moment) -> float:
    return moment.r2 if math.isfinite(moment.r2) else -math.inf


def _do_trial(
    config: Config,
    index: int,
    setting: Setting,
    earlier: list[Trial],
    learners: Trajectory,
    folder: Path | None,
    tell: Tell | None,
) -> tuple[Trial, NeuralComplexity | None]:
    """Meta-trains one NC, or reads what an earlier session did; an NC that diverged is none."""
    name = f"trial-{index}"
    if folder is not None and (folder / f"{name}.json").is_file():
        return _read_trial(folder, name, setting, config.device)
    nc, scores = _train(config, index, setting, earlier, learners, folder, tell)
    r2 = None
    if nc is not None:
        whole = learners[learners.finite]
        r2 = estimate(r_squared, predict_gaps(nc, whole.end), whole.gap)
    trial = Trial(setting, scores, r2)
    if folder is not None:
        if nc is not None:
            nc.save(folder / f"{name}.safetensors")
        content = {
            "setting": setting,
            "history": [moment.to_json() for moment in scores],
            "r2": None if r2 is None else asdict(r2),
        }
        write_json(folder / f"{name}.json", content)  # last: it says that the trial is done
        shutil.rmtree(folder / name)
    return trial, nc


def _train(
    config: Config,
    index: int,
    setting: Setting,
    earlier: list[Trial],
    learners: Trajectory,
    folder: Path | None,
    tell: Tell | None,
) -> tuple[NeuralComplexity | None, list[Moment]]:
    scores: list[Moment] = []
    histories = [trial.history for trial in earlier]

    def stop(moment: Moment) -> bool:
        scores.append(moment)
        grace = config.grace * config.iterations
        return index >= config.startup and falls_behind(scores, histories, grace=grace)

    try:
        nc, _ = train_nc(
            ours(**setting, **config.lengths),
            config.head,
            Sinusoids(),
            RECIPE,
            seed=config.seed,
            device=config.device,
            validate=partial(validation_r2, learners),
            folder=None if folder is None else folder / f"trial-{index}",
            watch=tell_moments(tell, f"trial {index}"),
            stop=stop,
        )
    except FloatingPointError:
        return None, scores  # says something about the setting, and ends nothing but the trial
    return (nc if math.isfinite(scores[-1].r2) else None), scores


def _read_trial(
    folder: Path, name: str, setting: Setting, device: str
) -> tuple[Trial, NeuralComplexity | None]:
    content = read_json(folder / f"{name}.json")
    if content.get("setting") != setting:
        raise ValueError(f"{folder / name}.json must be of the same search, got one of another")
    history = [Moment(**numbers) for numbers in content["history"]]
    if content["r2"] is None:
        return Trial(setting, history, None), None
    nc = NeuralComplexity.load(folder / f"{name}.safetensors").to(device)
    return Trial(setting, history, Estimate(**content["r2"])), nc


def _trial_rows(config: Config, index: int, trial: Trial) -> list[Row]:
    """How a trial ended, and how good NC then was on the validation learners."""
    scores = {
        "iterations": Estimate(float(trial.iteration), None, 1),
        "stopped": Estimate(float(trial.stopped), None, 1),
        "diverged": Estimate(float(trial.r2 is None), None, 1),
    }
    if trial.r2 is not None:
        scores["validation R2"] = trial.r2
    return _rows(config, index, trial, scores)


def _held_out_rows(
    config: Config, index: int, trial: Trial, nc: NeuralComplexity, pieces: Pieces
) -> list[Row]:
    """The best trial's NC on tasks that had no part in choosing it."""
    task = Sinusoids().sample(config.eval_tasks, stream(config.seed, "evaluation tasks"))
    task = task.to(config.device)

    def work(method: Method) -> dict[str, Tensor]:
        learners = train_with(method, RECIPE, task, seed=config.seed)
        given = {"loss_te": learners.loss_te[-1:], "finite": learners.finite}
        if method.name == "none":
            given |= {"gap": learners.gap, "predicted": predict_gaps(nc, learners.end)}
        return given

    methods = (Method("none"), nc_method("NC", nc, task), oracle(RECIPE, task))
    parts = [pieces.do(method.name, partial(work, method)) for method in methods]
    none = parts[0]
    kept = usable_tasks(part["finite"] for part in parts)
    losses = [part["loss_te"][0, kept] for part in parts]
    predicted, gap = none["predicted"][kept], none["gap"][kept]
    scores = {
        "R2": estimate(r_squared, predicted, gap),
        "MAE": estimate(mean_absolute_error, predicted, gap),
        "share of oracle": estimate(share_of_oracle, *losses),
        "diverged tasks": count(~kept),
    }
    return _rows(config, index, trial, scores)


def _rows(config: Config, index: int, trial: Trial, scores: dict[str, Estimate]) -> list[Row]:
    setting = write_setting(trial.setting)
    return [
        score_row(NAME, config.seed, f"trial {index}", setting, metric, score)
        for metric, score in scores.items()
    ]
