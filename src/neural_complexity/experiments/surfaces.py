"""Section 4.3, "Loss Surface Visualization": losses, gap and NC around a converged learner."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from neural_complexity.baselines.gap_surface import gap_measure
from neural_complexity.experiments.base.configs import check_least
from neural_complexity.experiments.base.few_shot_images import FewShotConfig
from neural_complexity.experiments.base.held_out_tasks import make_scene
from neural_complexity.experiments.base.networks import SHIPPED_OMNIGLOT, how_made, load_networks
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.pieces import Pieces
from neural_complexity.experiments.base.rows import Row, score_row
from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.learners.loss_surface import Measure, surface
from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta.evaluate import usable_tasks
from neural_complexity.meta.scores import (
    correlation,
    count,
    estimate,
    estimate_mean,
    share_of_oracle,
)
from neural_complexity.progress import Tell
from neural_complexity.seeding import stream
from neural_complexity.task import Task

__all__ = ["ALL", "NAME", "PRESETS", "SHOWN", "Config", "cpu", "paper", "run", "smoke"]

NAME = "surfaces"
SHOWN = 3  # tasks with rows of their own, and drawn
ALL = "all tasks"
AT_LEARNER, AT_EDGE = "train loss lowest at the learner", "at the edge"
WITH_GAP, WITH_TEST = "correlation of NC with gap", "correlation of objective with test loss"


@dataclass(frozen=True, kw_only=True)
class Config(FewShotConfig):
    """Planes of parameters around learners that were trained without NC."""

    networks: str = ""
    """The folder of a finished run of `omniglot`, for its NCs; the shipped ones if empty."""
    steps: int = 500
    """Updates of the learners, enough to converge."""
    size: int = 31
    """Points along each of the two directions; odd, so that the learner is one of them."""
    radius: float = 2.0
    """How far the plane reaches, in lengths of the learner's filters."""
    chunk: int = 64
    """Points of the plane at a time: bounds memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "chunk")
        check_least(self, 3, "size")
        if self.size % 2 == 0:
            raise ValueError(f"size must be odd, got {self.size}")
        if not self.radius > 0:
            raise ValueError(f"radius must be positive, got {self.radius}")


def paper() -> Config:
    """Many tasks on a fine grid, for a GPU; the paper shows one task."""
    return Config(eval_tasks=512, size=51, learner_width=500, lr=0.01, steps=5000)


def cpu() -> Config:
    """Minutes on two cores."""
    return Config(eval_tasks=48)


def smoke() -> Config:
    """Seconds; what CI runs."""
    return Config(queries=2, eval_tasks=4, learner_width=16, steps=20, size=7, radius=1.0)


PRESETS: dict[str, Callable[[], Config]] = {"smoke": smoke, "cpu": cpu, "paper": paper}


def run(config: Config, *, folder: Path | None = None, tell: Tell | None = None) -> Outcome:
    """Trains learners without NC and measures the plane around each.

    Args:
        config: The settings.
        folder: Where finished parts are kept, so that the same call goes on after an interruption.
        tell: Told about the progress.
    """
    networks = load_networks(config.networks, config.device, SHIPPED_OMNIGLOT)
    task = make_scene(config).task
    recipe = config.recipe(tuple(task.X_tr.shape[2:]))
    pieces = Pieces(1 + len(task), config, folder, tell)
    state = pieces.do("learners", lambda: _train(config, recipe, task))
    with torch.random.fork_rng(devices=[]):
        h = BatchedLearner(recipe.make(), state).to(config.device)
    found = []
    for b in range(len(task)):
        measure = gap_measure(networks, task[b : b + 1], loss=recipe.loss, classes=config.ways)
        found.append(pieces.do(f"task {b + 1}", partial(_measure, config, h, b, measure)))
    planes = {name: torch.stack([plane[name] for plane in found]) for name in found[0]}
    kept = usable_tasks(plane.flatten(1).isfinite().all(dim=1) for plane in planes.values())
    planes = {name: plane[kept] for name, plane in planes.items()}
    rows = [score_row(NAME, config.seed, "all", ALL, "diverged tasks", count(~kept))]
    rows += _rows(config, planes, list(networks))
    tensors = {name: plane[:SHOWN].clone() for name, plane in planes.items()}
    return Outcome(rows, tensors, facts=how_made(networks, pieces))


def _train(config: Config, recipe: Recipe, task: Task) -> dict[str, Tensor]:
    return recipe.train(task, stream(config.seed, "learners")).state()


def _measure(config: Config, h: BatchedLearner, b: int, measure: Measure) -> dict[str, Tensor]:
    """Measures the plane around learner b."""
    found = surface(
        h.one(b),
        measure,
        generator=stream(config.seed, "directions", b),
        size=config.size,
        radius=config.radius,
        chunk=config.chunk,
    )
    return {"alpha": found.alpha, "beta": found.beta, **found.values}


def _rows(config: Config, planes: dict[str, Tensor], heads: list[str]) -> list[Row]:
    """What each objective says over the plane, and the test loss where it is lowest."""
    row = partial(score_row, NAME, config.seed)
    points = {name: plane.flatten(1).double() for name, plane in planes.items()}  # (B, size^2)
    test, centre = points["test loss"], config.size**2 // 2
    none, best = test[:, centre], test.amin(dim=1)  # (B,)
    scores = {
        ("none", "test loss"): none,
        ("none", AT_LEARNER): (points["train loss"].argmin(dim=1) == centre).double(),
        ("none", WITH_TEST): correlation(points["train loss"], test),
        ("oracle", "test loss"): best,
        ("oracle", "change"): best - none,
        ("oracle", AT_EDGE): _at_edge(test.argmin(dim=1), config.size),
    }
    shares = []
    for head in heads:
        method, objective = f"NC {head}", points[f"regularized loss, {head}"]
        lowest = objective.argmin(dim=1)  # (B,)
        ours = test.gather(1, lowest.unsqueeze(1)).squeeze(1)  # (B,)
        scores[method, "test loss"] = ours
        scores[method, "change"] = ours - none
        scores[method, AT_EDGE] = _at_edge(lowest, config.size)
        scores[method, WITH_TEST] = correlation(objective, test)
        scores[method, WITH_GAP] = correlation(points[f"NC, {head}"], points["gap"])
        if (best < none).any():  # where the plane has no better point there is nothing to share
            share = estimate(share_of_oracle, none, ours, best)
            shares.append(row(method, ALL, "share of oracle", share))
    rows = []
    for (method, metric), values in scores.items():
        rows.append(row(method, ALL, metric, estimate_mean(values)))
        for b, value in enumerate(values[:SHOWN].split(1), start=1):
            rows.append(row(method, f"task {b}", metric, estimate_mean(value)))
    return rows + shares


def _at_edge(points: Tensor, size: int) -> Tensor:
    """Tells which points of a plane are at its edge, as 0 and 1: there a larger one goes on."""
    rows, columns = points // size, points % size
    return torch.stack([rows, columns]).remainder(size - 1).eq(0).any(dim=0).double()
