"""Letting learners loose, regularized by the current NC, and remembering what they did."""

import torch

from neural_complexity.learners.recipe import Recipe
from neural_complexity.memory import MemoryBank
from neural_complexity.model.complexity import NeuralComplexity
from neural_complexity.regularizers.nc import nc_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import TaskFamily

__all__ = ["collect"]


def collect(
    nc: NeuralComplexity,
    family: TaskFamily,
    recipe: Recipe,
    bank: MemoryBank,
    *,
    tasks: int,
    weight: float,
    spread_weights: bool,
    seed: int,
    index: int,
) -> None:
    """Trains learners on new tasks and stores every one of their steps.

    A pure function of NC's weights, the seed and the index, but for what it adds to the bank.

    Args:
        nc: Regularizes the learners.
        family: Where tasks come from.
        recipe: How learners learn.
        bank: Where `tasks * (recipe.steps + 1)` rows go, fewer if learners diverge.
        tasks: How many tasks to draw.
        weight: The weight of NC; at 0 the learners are plain.
        spread_weights: Whether each learner draws its own weight between 0 and this one: a bank of
            fully regularized learners alone would make NC forget plain ones.
        seed: The run's seed.
        index: Which collection of the run this is.
    """
    device = nc.x_mean.device
    task = family.sample(tasks, stream(seed, "collect tasks", index)).to(device)

    weights = torch.full((tasks,), weight)  # (B,)
    if spread_weights:
        weights *= torch.rand(tasks, generator=stream(seed, "collect weights", index))

    def remember(_: int, snapshot: Snapshot) -> None:
        bank.add(snapshot, task.Y_te)

    recipe.train(
        task,
        stream(seed, "collect learners", index),
        regularizer=nc_penalty(nc, task, weight=weights.to(device), safeguard=False)
        if weight
        else None,
        observe=remember,
    )
