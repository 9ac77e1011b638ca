"""Letting learners loose, regularized by the current NC, and remembering what they did."""

from collections.abc import Callable

import torch
from torch import Tensor

from neural_complexity.learners.recipe import Recipe
from neural_complexity.memory import MemoryBank
from neural_complexity.model.complexity import Context, NeuralComplexity
from neural_complexity.regularizers.nc import nc_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import IndexedFamily, Task, TaskFamily

__all__ = ["collect", "draw"]


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
    encode: Callable[[Task], Context] | None = None,
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
        encode: Does `nc.encode` on tasks as the bank keeps them, where that is cheaper.
    """
    device = nc.x_mean.device
    kept, task = draw(family, tasks, stream(seed, "collect tasks", index))
    by_number = kept is not task
    task = task.to(device)

    weights = torch.full((tasks,), weight)  # (B,)
    if spread_weights:
        weights *= torch.rand(tasks, generator=stream(seed, "collect weights", index))

    steps: list[Snapshot] = []

    def remember(_: int, snapshot: Snapshot) -> None:
        if by_number:
            steps.append(snapshot)
        else:
            bank.add(snapshot, task.Y_te)

    regularizer = None
    if weight:
        with torch.no_grad():
            context = None if encode is None else encode(kept.to(device))
        weights = weights.to(device)
        regularizer = nc_penalty(nc, task, weight=weights, safeguard=False, context=context)
    recipe.train(
        task,
        stream(seed, "collect learners", index),
        regularizer=regularizer,
        observe=remember,
    )
    if by_number:
        _add_by_task(bank, kept, steps, stream(seed, "collect order", index))


def draw(family: TaskFamily, tasks: int, generator: torch.Generator) -> tuple[Task, Task]:
    """Draws tasks as the bank keeps them and as learners see them.

    Returns:
        Tasks with numbers in the place of inputs, if the family can tell inputs by number, and the
        tasks themselves; otherwise the tasks, twice.
    """
    if not isinstance(family, IndexedFamily):
        task = family.sample(tasks, generator)
        return task, task
    kept = family.draw(tasks, generator)
    X_tr, X_te = family.look_up(kept.X_tr), family.look_up(kept.X_te)
    return kept, Task(X_tr, kept.Y_tr, X_te, kept.Y_te)


def _add_by_task(
    bank: MemoryBank, task: Task, steps: list[Snapshot], generator: torch.Generator
) -> None:
    """Stores numbers instead of inputs, the steps of each task side by side in random order.

    Rows that are drawn together then show one task at different steps.
    """
    B, S = len(task), len(steps)
    order = torch.rand(B, S, generator=generator).argsort(dim=1)

    def rows(stacked: list[Tensor]) -> Tensor:  # (B S, points, C)
        whole = torch.stack([t.cpu() for t in stacked], dim=1)
        return whole[torch.arange(B)[:, None], order].flatten(0, 1)

    H_tr, H_te = rows([s.H_tr for s in steps]), rows([s.H_te for s in steps])
    X_tr, Y_tr, X_te, Y_te = (
        t.repeat_interleave(S, dim=0) for t in (task.X_tr, task.Y_tr, task.X_te, task.Y_te)
    )
    bank.add(Snapshot(X_tr, Y_tr, H_tr, X_te, H_te), Y_te)
