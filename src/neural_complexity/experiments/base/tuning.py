"""How baselines are tuned on held-out training images: strengths, learning rate, augmentation."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from neural_complexity import ledger
from neural_complexity.assessment.report import Table
from neural_complexity.experiments.base import image_learners as images
from neural_complexity.experiments.base.config import POSITIVE, AtLeast
from neural_complexity.experiments.base.experiment import Parts
from neural_complexity.experiments.base.image_report import Make
from neural_complexity.experiments.base.one_dataset import Choice, ImageConfig, ImageData, Size
from neural_complexity.experiments.base.rows import Row, select, show
from neural_complexity.meta.scores import estimate_over_seeds
from neural_complexity.seeding import stream

__all__ = ["Tried", "TuningConfig", "best", "beyond", "choose", "least_parts", "tune"]
__all__ += ["tuning_rows", "tuning_table"]

METRIC = "accuracy on held-out training images"
SHARES = ("smoothing", "dropout")  # whose strengths are less than 1
Strengths = Annotated[tuple[float, ...], POSITIVE]
Tried = dict[Choice, Tensor]  # what was tried, and the errors of its learners, (n,)


@dataclass(frozen=True, kw_only=True)
class TuningConfig(ImageConfig):
    """What baselines may choose from."""

    l2: Strengths = (0.00003, 0.0001, 0.0003, 0.001, 0.003)  # Strengths of weight decay.
    smoothing: Strengths = (0.025, 0.05, 0.1, 0.2, 0.4)  # Strengths of label smoothing.
    mixup: Strengths = (0.05, 0.1, 0.2, 0.4, 0.8)  # Strengths of mixup.
    dropout: Strengths = (0.05, 0.1, 0.2, 0.35, 0.5)  # Strengths of dropout.
    sam: Strengths = (0.025, 0.05, 0.1, 0.2, 0.4)  # Radii of sharpness-aware minimization.
    rates: Strengths = (0.5, 2.0)  # Learning rates to try beside the usual one, as multiples.
    widen: Annotated[int, AtLeast(0)] = (
        3  # How often a grid may grow where its best strength is at its end.
    )
    tuning_learners: Size = 3  # Learners of everything that is tried.


def best(tried: Tried) -> Choice:
    """Returns the choice with the least mean error; of equals, the one that was tried first."""
    return min(tried, key=lambda choice: tried[choice].mean().item())


def beyond(grid: list[float], at: float, most: float) -> float | None:
    """Returns the strength that continues an ascending grid whose best is at its end, if it is."""
    if len(grid) < 2 or at not in (grid[0], grid[-1]):
        return None
    further = grid[0] ** 2 / grid[1]
    if at == grid[-1]:
        further = min(grid[-1] ** 2 / grid[-2], (grid[-1] + most) / 2)
    return float(f"{further:.3g}")


def tune(data: ImageData, name: str, choice: Choice) -> images.Results:
    """Trains learners with a baseline without the held-out images, evaluated on them."""
    config = data.config
    assert isinstance(config, TuningConfig)
    found = []
    for runs in config.chunks(config.tuning_learners):
        task = data.task(data.pool, data.held, len(runs))
        evaluation = data.task(data.pool[: config.judged], data.held, len(runs))
        seed = stream(config.seed, "tuning", *[runs.start][: runs.start]).initial_seed()
        with ledger.choosing():
            trial = images.Trial(config, data.recipe(name, choice), task, evaluation, seed)
            found.append(images.run_trial(trial)["error"])
    return {"error": torch.cat(found, dim=1)}


def least_parts(config: TuningConfig) -> int:
    """Returns how many parts tuning has if no grid grows."""
    training, names = config.posterior, images.BASELINES
    each = len(config.rates) + bool(training.shift or training.flip)
    return each * (1 + len(names)) + 1 + sum(len(getattr(config, name)) for name in names)


def choose(data: ImageData, parts: Parts, name: str, label: str) -> Tried:
    """Tries what a baseline, or plain learning if it has no name, may choose from.

    First strengths, then learning rates at the best of them, then augmentation at the best of both.
    A grid grows where its best is at its end: a better strength might be beyond.
    """
    config, tried = data.config, Tried()
    assert isinstance(config, TuningConfig)

    def attempt(choices: Iterable[Choice]) -> None:
        for choice in (choice for choice in choices if choice not in tried):
            found = parts.do(f"{label} {choice.label}, tuning", partial(tune, data, name, choice))
            tried[choice] = found["error"][-1]

    attempt(map(Choice, getattr(config, name) if name else (0.0,)))
    for _ in range(config.widen):
        grid = sorted(choice.strength for choice in tried)
        further = beyond(grid, best(tried).strength, 1.0 if name in SHARES else math.inf)
        if further is None:
            break
        parts.total += 1
        attempt([Choice(further)])
    attempt([best(tried)._replace(rate=rate) for rate in config.rates])
    if config.posterior.shift or config.posterior.flip:
        attempt([best(tried)._replace(augment=True)])
    return tried


def tuning_rows(make: Make, method: images.ImageMethod, tried: Tried) -> list[Row]:
    """Returns how good everything was that a baseline could choose from."""
    rows, chosen = [], best(tried)
    for choice, error in tried.items():
        keys = {**method.keys, **choice._asdict(), "chosen": choice == chosen}
        rows.append(make(METRIC, estimate_over_seeds(100 * (1 - error)), **keys))
    return rows


def tuning_table(rows: list[Row]) -> Table:
    """Returns the table of `tuning_rows`."""
    lines, learners = [], 1
    for row in select(rows, METRIC):
        known = {n: row.keys[n] for n in Choice._fields if n in row.keys}
        choice, learners = Choice(**known), row.n  # type: ignore[arg-type]
        chosen = "chosen" if row.keys["chosen"] else ""
        lines.append((images.ImageMethod.of(row).label, choice.label, show(row), chosen))
    header = ("method", "strength", "accuracy in %", "choice")
    many = "one learner each" if learners == 1 else f"{learners} learners each"
    note = f"Of {many}, trained without the held-out training images and judged on them."
    return Table("Choice of the baselines' strengths", header, tuple(lines), note)
