"""Letting learners loose, regularized by the current NC, and remembering what they did."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta.executor import Collection, Job
from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.regularizers.nc import nc_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import IndexedFamily, Task, TaskFamily

__all__ = ["ByNumber", "TaskCollector", "collect", "draw"]


def collect(
    nc: NeuralComplexity,
    family: TaskFamily,
    recipe: Recipe,
    *,
    tasks: int,
    weight: float,
    spread_weights: bool,
    seed: int,
    index: int,
    encode: Callable[[Task], Context] | None = None,
) -> Collection:
    """Trains learners on new tasks and records every one of their steps.

    A pure function of NC's weights, the seed and the index.

    Args:
        nc: Regularizes the learners.
        family: Where tasks come from.
        recipe: How learners learn.
        tasks: How many tasks to draw.
        weight: The weight of NC; at 0 the learners are plain.
        spread_weights: Whether each learner draws its own weight between 0 and this one: a bank of
            fully regularized learners alone would make NC forget plain ones.
        seed: The run's seed.
        index: Which collection of the run this is.
        encode: Does `nc.encode` on tasks as the bank keeps them, where that is cheaper.

    Returns:
        `tasks * (recipe.steps + 1)` rows for the bank and their test targets, also of learners that
        diverged.
    """
    device = nc.x_mean.device
    kept, task = draw(family, tasks, stream(seed, "collect tasks", index))
    by_number = kept is not task
    task = task.to(device)

    weights = torch.full((tasks,), weight)  # (B,)
    if spread_weights:
        weights *= torch.rand(tasks, generator=stream(seed, "collect weights", index))

    regularizer = None
    if weight:
        with torch.no_grad():
            context = None if encode is None else encode(kept.to(device))
        weights = weights.to(device)
        regularizer = nc_penalty(nc, task, weight=weights, safeguard=False, context=context)
    steps: list[Snapshot] = []
    recipe.train(
        task,
        stream(seed, "collect learners", index),
        regularizer=regularizer,
        observe=lambda _, snapshot: steps.append(snapshot),
    )
    if by_number:
        return _join_by_task(kept, steps, stream(seed, "collect order", index))
    return _join(task, steps)


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


def _join(task: Task, steps: list[Snapshot]) -> Collection:
    """Puts the steps one after another, each with all tasks."""
    fields = zip(*(snapshot.tensors() for snapshot in steps), strict=True)
    return Snapshot(*map(torch.cat, fields)), task.Y_te.repeat(
        len(steps), *[1] * (task.Y_te.ndim - 1)
    )


def _join_by_task(task: Task, steps: list[Snapshot], generator: torch.Generator) -> Collection:
    """Puts numbers instead of inputs, and the steps of each task side by side in random order.

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
    return Snapshot(X_tr, Y_tr, H_tr, X_te, H_te), Y_te


class ByNumber:
    """Encodes tasks that hold numbers, embedding each input once however often it occurs.

    With a table of all embeddings at hand, nothing is embedded.
    """

    def __init__(
        self, nc: NeuralComplexity, family: IndexedFamily, table: Tensor | None = None
    ) -> None:
        self.nc, self.family, self.table = nc, family, table

    def __call__(
        self, task: Task | Snapshot, augment: Callable[[Tensor], Tensor] | None = None
    ) -> Context:
        """Does `nc.encode` on tasks as the bank keeps them.

        Args:
            task: The tasks.
            augment: Changes inputs, (P, ...), before they are embedded.
        """
        M = task.X_tr.shape[1]
        numbers = torch.cat([task.X_tr, task.X_te], dim=1)  # (B, M + N)
        if self.table is None:
            different, place = numbers.unique(return_inverse=True)
            inputs = self.family.look_up(different)
            E = self.nc.embed(inputs if augment is None else augment(inputs))[place]
        else:
            E = self.table[numbers]  # (B, M + N, features)
        classes = task.H_te.shape[-1] if isinstance(task, Snapshot) and self.nc.labels else None
        return self.nc.context(E[:, :M], task.Y_tr, E[:, M:], classes=classes)


@dataclass(frozen=True, kw_only=True)
class TaskCollector:
    """Does `collect` for an engine; the arguments are those of `collect`."""

    family: TaskFamily
    recipe: Recipe
    tasks: int
    seed: int
    spread_weights: bool = True
    device: str = "cpu"
    """Where NC and learners live."""

    def __call__(self, nc: NeuralComplexity, job: Job) -> Collection:
        """Makes one collection."""
        nc = nc.to(self.device)
        family = self.family
        return collect(
            nc,
            family,
            self.recipe,
            tasks=self.tasks,
            weight=job.weight,
            spread_weights=self.spread_weights,
            seed=self.seed,
            index=job.index,
            encode=ByNumber(nc, family) if isinstance(family, IndexedFamily) else None,
        )
