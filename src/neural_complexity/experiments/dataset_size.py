"""Section 4.4, "Effect of Dataset Size": the gap and NC's estimate of it by training images."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from neural_complexity.experiments import single
from neural_complexity.experiments.base.networks import how_made
from neural_complexity.experiments.base.one_dataset import World, make_recipe, make_world
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.pieces import Pieces
from neural_complexity.experiments.base.rows import Row, score_row
from neural_complexity.experiments.base.shared_networks import AsksSingle, load_judges, shared_with
from neural_complexity.experiments.base.trajectories import (
    Judge,
    chunks,
    fit_rows,
    in_chunks,
    learn,
    run_seed,
    subsets,
)
from neural_complexity.meta.collect_splits import log_steps
from neural_complexity.meta.scores import estimate_over_seeds
from neural_complexity.progress import Tell
from neural_complexity.seeding import stream

__all__ = ["NAME", "PRESETS", "TRUE", "Config", "cpu", "paper", "run", "smoke"]

NAME = "dataset_size"
TRUE = "true"


@dataclass(frozen=True, kw_only=True)
class Config(AsksSingle):
    """Unregularized learners of parts of the training images."""

    sizes: tuple[int, ...] = (1000, 4000, 16_000, 60_000)
    """Training images of the learners (the paper does not say)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"sizes must be positive numbers, got {self.sizes}")


def paper() -> Config:
    """All of KMNIST, for a GPU."""
    return Config(**shared_with(single.paper(), dataset="kmnist", looks=24))


def cpu() -> Config:
    """KMNIST's test images, on two cores."""
    return Config(
        **shared_with(single.small(), looks=12, judged=8000, runs=3),
        sizes=(500, 2000, 8000),
    )


def smoke() -> Config:
    """Seconds, on scikit-learn's digits; needs the networks of single's smoke run."""
    return Config(**shared_with(single.smoke(), looks=4), sizes=(100, 1000))


PRESETS: dict[str, Callable[[], Config]] = {"smoke": smoke, "cpu": cpu, "paper": paper}


def run(config: Config, *, folder: Path | None = None, tell: Tell | None = None) -> Outcome:
    """Trains learners of each size and compares their gap on the test images with NC's estimate.

    Args:
        config: The settings.
        folder: Where unfinished work is kept, so that the same call goes on after an interruption.
        tell: Told about the progress.
    """
    world = make_world(config)
    if max(config.sizes) > len(world.train):
        raise ValueError(
            f"sizes must be at most the {len(world.train)} training images, got {config.sizes}"
        )
    judges = load_judges(config, world)
    pieces = Pieces(len(config.sizes) * len(chunks(config)), config, folder, tell)
    found = {
        size: in_chunks(
            config, pieces, f"{size} images", partial(_learn, config, world, judges, size)
        )
        for size in config.sizes
    }
    rows = _size_rows(config, found)
    results = list(found.values())
    rows += [row for head in judges for row in fit_rows(NAME, config, head, "", results)]
    tensors = {f"{size}/{k}": t for size, result in found.items() for k, t in result.items()}
    networks = {head: judge.nc for head, judge in judges.items()}
    return Outcome(rows, tensors, facts=how_made(networks, pieces))


def _learn(
    config: Config,
    world: World,
    judges: dict[str, Judge],
    size: int,
    first: int,
    runs: int,
) -> dict[str, Tensor]:
    """Trains unregularized learners of random training sets of one size."""
    generator = stream(config.seed, "dataset size", size, first)
    task, judged = subsets(config, world, world.train, world.test, size, runs, generator)
    return learn(
        make_recipe(config, world),
        config,
        task,
        judged,
        seed=run_seed(config, first),
        judges=judges,
        visits=log_steps(config.steps, config.looks),
    )


def _size_rows(config: Config, found: dict[int, dict[str, Tensor]]) -> list[Row]:
    """The gap at the end by size, and what NC says of it."""
    rows = []
    for size, result in found.items():
        for name, values in result.items():
            if name != "gap" and not name.startswith("predicted/"):
                continue
            method = TRUE if name == "gap" else f"NC {name.removeprefix('predicted/')}"
            score = estimate_over_seeds(values[-1])
            rows.append(
                score_row(NAME, config.seed, method, f"{size} training images", "gap", score)
            )
        error = estimate_over_seeds(100 * (1 - result["error"][-1]))
        setting = f"{size} training images"
        rows.append(score_row(NAME, config.seed, TRUE, setting, "accuracy", error))
    return rows
