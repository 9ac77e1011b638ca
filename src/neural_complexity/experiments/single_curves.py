"""Section 4.4, "Regularization Performance": learning curves with and without NC on one dataset."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from neural_complexity.experiments import single
from neural_complexity.experiments.base.configs import check_least
from neural_complexity.experiments.base.networks import how_made
from neural_complexity.experiments.base.one_dataset import make_recipe, make_world
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
from neural_complexity.meta.scores import count, estimate_over_seeds
from neural_complexity.progress import Tell

__all__ = ["LONG", "NAME", "PRESETS", "Config", "cpu", "paper", "reported", "run", "smoke"]

NAME = "single_curves"
LONG = f"{PLAIN}, after convergence"


@dataclass(frozen=True, kw_only=True)
class Config(AsksSingle):
    """Learners with and without NC, looked at often, and plain ones that learn for longer."""

    long_steps: int = 60_000
    """Updates of the learner that is trained until it has converged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, self.steps, "long_steps")


def paper() -> Config:
    """All of KMNIST, for a GPU."""
    own = {"dataset": "kmnist", "looks": 48}
    return Config(**shared_with(single.paper(), **own), long_steps=300_000)


def cpu() -> Config:
    """KMNIST's test images, on two cores."""
    return Config(**shared_with(single.small(), looks=24, runs=3), long_steps=4500)


def smoke() -> Config:
    """Seconds, on scikit-learn's digits; needs the networks of single's smoke run."""
    return Config(**shared_with(single.smoke(), looks=6), long_steps=40)


PRESETS: dict[str, Callable[[], Config]] = {"smoke": smoke, "cpu": cpu, "paper": paper}


def run(config: Config, *, folder: Path | None = None, tell: Tell | None = None) -> Outcome:
    """Follows learners with each NC and without, and a plain one for longer.

    Args:
        config: The settings.
        folder: Where unfinished work is kept, so that the same call goes on after an interruption.
        tell: Told about the progress.
    """
    world = make_world(config)
    judges = load_judges(config, world)
    methods = (PLAIN, LONG, *NC_METHODS)
    pieces = Pieces(len(methods) * len(chunks(config)), config, folder, tell)
    recipe = make_recipe(config, world)
    recipes = {LONG: replace(recipe, steps=config.long_steps)}
    found = {
        method: in_chunks(
            config,
            pieces,
            method,
            partial(learn_whole, config, world, judges, method, recipe=recipes.get(method, recipe)),
        )
        for method in methods
    }
    rows = _step_rows(config, found) + _reach_rows(config, found) + beside_rows(config, NAME)
    tensors = {f"{m}/{k}": t for m, result in found.items() for k, t in result.items()}
    networks = {head: judge.nc for head, judge in judges.items()}
    return Outcome(rows, tensors, facts=how_made(networks, pieces))


def reported(steps: Tensor) -> list[int]:
    """Gives the places of the looks that rows are made of: the first, the last, and two between.

    Args:
        steps: Numbers of updates at the looks, (looks,).
    """
    last = len(steps) - 1
    return sorted({last, last * 3 // 4, last // 2, last // 4} - {0})


def _step_rows(config: Config, found: dict[str, dict[str, Tensor]]) -> list[Row]:
    """Accuracy and losses at a few steps, and for the longest at its end."""
    rows = []
    for method, result in found.items():
        looks = reported(result["step"])
        for look in looks[-1:] if method == LONG else looks:
            setting = f"{int(result['step'][look])} steps"
            columns = {
                "accuracy": 100 * (1 - result["error"][look]),
                "test loss": result["loss_te"][look],
                "train loss": result["loss_tr"][look],
            }
            for metric, values in columns.items():
                score = estimate_over_seeds(values)
                rows.append(score_row(NAME, config.seed, method, setting, metric, score))
    return rows


def _reach_rows(config: Config, found: dict[str, dict[str, Tensor]]) -> list[Row]:
    """After how many steps learners are as good as plain ones are at their end, on average."""
    rows = []
    for goal in (PLAIN, LONG):
        level = found[goal]["error"][-1].mean()
        setting = f"{goal}, {int(found[goal]['step'][-1])} steps"
        for method, result in found.items():
            if method == LONG:
                continue
            there = result["error"] <= level  # (looks, runs)
            row = partial(score_row, NAME, config.seed, method, setting)
            rows.append(row("runs as good", count(there.any(dim=0))))
            if there.any(dim=0).all():  # else there is no mean
                first = result["step"][there.to(torch.uint8).argmax(dim=0)]
                rows.append(row("first step as good", estimate_over_seeds(first)))
    return rows
