"""Section 4.4, "Network Size": plain learners of two and four times the capacity against NC."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from neural_complexity.experiments import single
from neural_complexity.experiments.base.networks import how_made
from neural_complexity.experiments.base.one_dataset import describe, make_recipe, make_world
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.pieces import Pieces
from neural_complexity.experiments.base.rows import Row, score_row
from neural_complexity.experiments.base.shared_networks import (
    AsksSingle,
    beside_rows,
    learn_whole,
    load_judges,
    shared_with,
)
from neural_complexity.experiments.base.trajectories import NC_METHODS, PLAIN, chunks, in_chunks
from neural_complexity.learners.networks import pooled
from neural_complexity.meta.scores import Estimate, estimate_over_seeds
from neural_complexity.progress import Tell

__all__ = [
    "NAME",
    "PAPER",
    "PRESETS",
    "Config",
    "cifar",
    "cpu",
    "larger",
    "paper",
    "run",
    "smoke",
    "svhn",
]

NAME = "capacity"


def larger(times: int) -> str:
    """Names a plain learner of a multiple of the capacity."""
    return PLAIN if times == 1 else f"{PLAIN} ({times}x capacity)"


# Table 4 of the paper: accuracies.
PAPER = {
    "svhn": {larger(1): 93.23, larger(2): 93.59, larger(4): 93.88, "NC": 93.83},
    "cifar-10": {larger(1): 79.76, larger(2): 79.64, larger(4): 80.47, "NC": 81.15},
}
PAPER_NC = "NC direct, transductive"


@dataclass(frozen=True, kw_only=True)
class Config(AsksSingle):
    """Learners of several capacities, and one with NC."""

    times: tuple[int, ...] = (1, 2, 4)
    """How many networks are trained jointly as one plain learner."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.times or min(self.times) < 1 or len(set(self.times)) < len(self.times):
            raise ValueError(f"times must be different positive numbers, got {self.times}")


def paper() -> Config:
    """ResNet-18 on CIFAR-10 or SVHN, for a GPU."""
    return Config(**shared_with(single.paper_resnet()))


def cifar() -> Config:
    """A narrow, shallow residual network on a part of CIFAR-10, on two cores."""
    return Config(**shared_with(single.cifar()))


def svhn() -> Config:
    """The same on SVHN."""
    return Config(**shared_with(single.svhn()))


def cpu() -> Config:
    """An MLP of 500 units on Fashion-MNIST, on two cores."""
    return Config(**shared_with(single.cpu(), dataset="fashion-mnist", looks=4, runs=3))


def smoke() -> Config:
    """Seconds, on scikit-learn's digits; needs the networks of single's smoke run."""
    return Config(**shared_with(single.smoke()))


PRESETS: dict[str, Callable[[], Config]] = {
    "smoke": smoke,
    "cpu": cpu,
    "cifar": cifar,
    "svhn": svhn,
    "paper": paper,
}


def run(config: Config, *, folder: Path | None = None, tell: Tell | None = None) -> Outcome:
    """Trains plain learners of each capacity, and learners of the usual one with each NC.

    Args:
        config: The settings.
        folder: Where unfinished work is kept, so that the same call goes on after an interruption.
        tell: Told about the progress.
    """
    world = make_world(config)
    judges = load_judges(config, world)
    recipe = make_recipe(config, world)
    recipes = {
        larger(times): replace(recipe, make=partial(pooled, recipe.make, times))
        for times in config.times
        if times > 1
    }
    methods = [*(larger(times) for times in config.times), *NC_METHODS]
    pieces = Pieces(len(methods) * len(chunks(config)), config, folder, tell)
    rows: list[Row] = []
    tensors: dict[str, Tensor] = {}
    for method in methods:
        own = recipes.get(method, recipe)
        result = in_chunks(
            config,
            pieces,
            method,
            partial(learn_whole, config, world, judges, method, recipe=own),
        )
        with torch.device("meta"):  # sizes only: nothing is drawn
            weights = sum(parameter.numel() for parameter in own.make().parameters())
        rows += _rows(config, method, weights, result)
        tensors |= {f"{method}/{name}": tensor for name, tensor in result.items()}
    rows += beside_rows(config, NAME)
    networks = {head: judge.nc for head, judge in judges.items()}
    return Outcome(rows, tensors, facts=how_made(networks, pieces))


def _rows(config: Config, method: str, weights: int, result: dict[str, Tensor]) -> list[Row]:
    """How good learners are at their end, and how large they are."""
    published = PAPER.get(config.dataset, {}).get("NC" if method == PAPER_NC else method)
    setting = describe(config)
    accuracy = estimate_over_seeds(100 * (1 - result["error"][-1]))
    row = partial(score_row, NAME, config.seed, method, setting)
    return [
        row("accuracy", accuracy, published),
        row("test loss", estimate_over_seeds(result["loss_te"][-1])),
        row("train loss", estimate_over_seeds(result["loss_tr"][-1])),
        row("parameters", Estimate(weights, None, 1)),
    ]
