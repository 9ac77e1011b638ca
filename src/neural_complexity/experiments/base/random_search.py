"""Random search over settings of an NC's meta-training, with median stopping.

No search library: drawing and stopping are a few lines, a setting is a pure function of the seed
and the trial's index, and a killed search continues inside the trial that was running.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import partial
from statistics import fmean, median
from typing import Annotated, Any

import torch
from torch import Tensor

from neural_complexity.experiments.base.config import AtLeast, BaseConfig, Between
from neural_complexity.experiments.base.training import (
    Head,
    Setup,
    ours,
    train_network,
    validation_r2,
)
from neural_complexity.learners.trajectory import Trajectory
from neural_complexity.meta.scores import Estimate, estimate, r_squared
from neural_complexity.meta.trainer import Status
from neural_complexity.model.judgement import judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import stream
from neural_complexity.workspace import Workspace

__all__ = ["PAPER_SETTING", "SEARCHED", "Config", "Search", "Trial", "draw_settings"]

Setting = dict[str, Any]  # the searched fields of a `Training`
SEARCHED = ("encoder_layers", "width", "decoder_layers", "batch", "lr")
PAPER_SETTING: Setting = dict(zip(SEARCHED, (3, 1024, 3, 512, 0.0005), strict=True))


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Random search; the defaults are the paper's ranges. All other settings are ours."""

    head: Head = "direct"  # Which head; the paper's is direct.
    trials: Annotated[int, AtLeast(1)] = 64  # How many settings to try (the paper does not say).
    encoder_layers: tuple[int, ...] = (1, 2, 3)  # Choices for n_enc.
    width: tuple[int, ...] = (128, 256, 512, 1024)  # Choices for d.
    decoder_layers: tuple[int, ...] = (1, 2, 3)  # Choices for n_dec.
    batch: tuple[int, ...] = (128, 256, 512, 1024)  # Choices for bs.
    lr: tuple[float, ...] = (0.005, 0.001, 0.0005, 0.0001)
    """Choices for the peak of Adam's learning rate."""
    iterations: int = 5000  # Collections per trial (the paper does not say).
    updates: int = 10  # NC updates per collection (the paper does not say).
    tasks: int = 512  # New tasks per collection (the paper does not say).
    capacity: int = 1_000_000  # Rows of the memory bank (the paper does not say).
    grace: Annotated[float, Between(0, 1)] = 0.25  # The part of a trial in which it is not stopped.
    startup: Annotated[int, AtLeast(1)] = 4
    """The first trials, which are never stopped: a median of fewer says little."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in self.ranges.items():
            if not choices or len(set(choices)) < len(choices):
                raise ValueError(f"{name} must have choices, each once, got {choices}")
            for choice in choices:
                ours(**{name: choice})  # checks itself
        ours(**self.lengths)
        settings = math.prod(map(len, self.ranges.values()))
        if self.trials > settings:
            raise ValueError(f"trials must be at most {settings}, all settings, got {self.trials}")

    @property
    def ranges(self) -> dict[str, tuple[Any, ...]]:
        """What is drawn for each trial."""
        return {name: getattr(self, name) for name in SEARCHED}

    @property
    def lengths(self) -> dict[str, int]:
        """What all trials share."""
        names = ("iterations", "updates", "tasks", "capacity")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Trial:
    """What came of one setting."""

    index: int
    setting: Setting
    history: list[Status]
    r2: Estimate | None = None  # of validation learners, at its end; none if NC diverged

    @property
    def iteration(self) -> int:
        """The last one after which NC was scored."""
        return self.history[-1].iteration if self.history else 0


def draw_settings(config: Config) -> list[Setting]:
    """Draws one setting per trial, each from a stream of its own, none twice."""

    def draw(generator: torch.Generator) -> Setting:
        sizes = {name: len(choices) for name, choices in config.ranges.items()}
        drawn = {n: int(torch.randint(size, (), generator=generator)) for n, size in sizes.items()}
        return {name: config.ranges[name][index] for name, index in drawn.items()}

    settings: list[Setting] = []
    for index in range(config.trials):
        generator = stream(config.seed, "trial", index)
        setting = draw(generator)
        while setting in settings:  # the same run again would teach nothing
            setting = draw(generator)
        settings.append(setting)
    return settings


def falls_behind(
    scores: Sequence[Status], earlier: Sequence[Sequence[Status]], *, grace: float
) -> bool:
    """Returns, by the median stopping rule (Vizier, Golovin et al., 2017) whether to stop a trial.

    A trial gives up when its best R2 so far is below the median of the earlier trials' running
    means of R2 at the same iteration. One that gave up votes with what it had reached, otherwise
    the survivors alone would set the bar, higher and higher. Scores of the first `grace` iterations
    are not in the means: R2 rises so steeply at first that they would keep the means below any
    trial's best.
    """
    now = scores[-1].iteration
    if now <= grace:
        return False
    running = [
        fmean(_finite_r2(status) for status in trial if grace < status.iteration <= now)
        for trial in earlier
        if any(status.iteration > grace for status in trial)
    ]
    return bool(running) and max(map(_finite_r2, scores)) < median(running)


def _finite_r2(status: Status) -> float:
    return status.r2 if math.isfinite(status.r2) else -math.inf


@dataclass(frozen=True)
class Search:
    """Meta-trains one NC after the other, all on one set-up and scored on the same learners."""

    config: Config
    setup: Setup
    learners: Trajectory
    work: Workspace  # where finished trials are kept
    callback: ProgressCallback | None

    def trial(
        self, setting: Setting, earlier: Sequence[Trial]
    ) -> tuple[Trial, NeuralComplexity | None]:
        """Meta-trains one NC, unless an earlier session did; one that diverged is none."""
        index, name, config = len(earlier), f"trial {len(earlier)}", self.config
        sized = ours(**setting, **config.lengths)
        histories = [other.history for other in earlier]

        def train() -> dict[str, Tensor]:
            """Returns the history, (scores, 7), and unless NC diverged its score and weights."""
            scores: list[Status] = []

            def stop(status: Status) -> bool:
                scores.append(status)
                grace = config.grace * config.iterations
                return index >= config.startup and falls_behind(scores, histories, grace=grace)

            found = {}
            with suppress(FloatingPointError):  # ends nothing but the trial
                nc, _ = train_network(
                    sized,
                    config.head,
                    self.setup,
                    self.work,
                    self.callback,
                    name=name,
                    validate=partial(validation_r2, self.learners),
                    stop=stop,
                )
                if math.isfinite(scores[-1].r2):
                    whole = self.learners[~self.learners.diverged]
                    r2 = estimate(r_squared, judge(nc, whole.end).gap, whole.gap)
                    found = nc.state_dict() | {"r2": torch.tensor(astuple(r2), dtype=torch.float64)}
            history = torch.tensor([astuple(score) for score in scores], dtype=torch.float64)
            return {**found, "history": history.reshape(-1, 7)}

        found = self.work.do(f"{name}, result", train)
        self.work.remove(name)  # its checkpoints and its bank
        history = [Status(*map(int, row[:4]), *row[4:]) for row in found.pop("history").tolist()]
        if not found:
            return Trial(index, setting, history), None
        value, ci95, n = found.pop("r2").tolist()
        nc, _ = self.setup.network(sized, config.head)
        nc.load_state_dict(found)
        return Trial(index, setting, history, Estimate(value, ci95, int(n))), nc
