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

from neural_complexity.experiments.base import training
from neural_complexity.experiments.base.config import BaseConfig, Between, Count
from neural_complexity.learners.trajectory import Trajectory
from neural_complexity.meta.scores import Estimate, estimate, r_squared
from neural_complexity.meta.trainer import Status
from neural_complexity.model.judgement import judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import stream
from neural_complexity.workspace import Workspace

__all__ = ["PAPER_SETTING", "SEARCHED", "Config", "draw_settings", "falls_behind", "run_trial"]

Setting = dict[str, Any]  # the searched fields of a `Training`
SEARCHED = ("encoder_layers", "width", "decoder_layers", "batch", "lr")
SHARED = ("iterations", "updates", "tasks", "capacity")  # by all trials
PAPER_SETTING: Setting = dict(zip(SEARCHED, (3, 1024, 3, 512, 0.0005), strict=True))


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


def falls_behind(
    scores: Sequence[Status], earlier: Sequence[Sequence[Status]], *, grace: float
) -> bool:
    """Returns, by the median stopping rule (Vizier, Golovin et al., 2017) whether to stop a trial.

    A trial gives up when its best R2 so far is below the median of the earlier trials' running
    means at the same iteration. One that gave up votes with what it had reached, or the survivors
    alone would raise the bar. The means leave out the first `grace` iterations: R2 rises so steeply
    there that they would stay below any trial's best.
    """
    now = scores[-1].iteration
    if now <= grace:
        return False
    running = [
        fmean(max(-math.inf, status.r2) for status in trial if grace < status.iteration <= now)
        for trial in earlier
        if any(status.iteration > grace for status in trial)
    ]  # NaN is not above minus infinity
    return bool(running) and max(-math.inf, *(status.r2 for status in scores)) < median(running)


def run_trial(
    config: Config,
    setup: training.Setup,
    learners: Trajectory,
    setting: Setting,
    earlier: Sequence[Sequence[Status]],
    work: Workspace,
    callback: ProgressCallback | None,
) -> tuple[list[Status], tuple[Estimate, NeuralComplexity] | None]:
    """Meta-trains one NC, once; returns the way there, and its R2 and itself unless it diverged."""
    name, sized = f"trial {len(earlier)}", training.ours(**setting, **config.some(SHARED))

    def train() -> dict[str, Tensor]:
        """Returns the history, (scores, 7), and unless NC diverged its score and weights."""
        scores: list[Status] = []

        def stop(status: Status) -> bool:
            scores.append(status)
            grace = config.grace * config.iterations
            return len(earlier) >= config.startup and falls_behind(scores, earlier, grace=grace)

        found = {}
        with suppress(FloatingPointError):  # ends nothing but the trial
            more: dict[str, Any] = {"validate": partial(training.validation_r2, learners)}
            more |= {"name": name, "stop": stop}
            nc, _ = training.train_network(sized, config.head, setup, work, callback, **more)
            if math.isfinite(scores[-1].r2):
                whole = learners[~learners.diverged]
                r2 = estimate(r_squared, judge(nc, whole.end).gap, whole.gap)
                found = nc.state_dict() | {"r2": torch.tensor(astuple(r2), dtype=torch.float64)}
        history = torch.tensor([astuple(score) for score in scores], dtype=torch.float64)
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
