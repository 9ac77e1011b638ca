"""Training one learner per task, and what its losses were on the way."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from neural_complexity import ledger
from neural_complexity.learners.fit import Recipe, Regularizer
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap
from neural_complexity.task import Task

__all__ = ["CHUNK", "Trajectory", "diverged", "train_learners", "usable_rows"]

# Tasks treated at a time: bounds memory. The initial learners are drawn chunk by chunk.
CHUNK = 1024
DIVERGED = 10.0  # losses this many times above where they began, or ever not finite


def diverged(losses: Tensor) -> Tensor:
    """Returns which have diverged by training plus test loss after each step, (steps + 1, B)."""
    infinite = (~losses.isfinite()).cummax(dim=0).values
    return infinite | (losses > DIVERGED * losses[0])


@dataclass(frozen=True)
class Trajectory:
    """The losses of B learners after every step, and where they ended."""

    loss_tr: Tensor  # (steps + 1, B)
    loss_te: Tensor  # (steps + 1, B)
    end: Snapshot
    gap: Tensor  # (B,), at the end

    def __getitem__(self, rows: Tensor) -> "Trajectory":
        losses = self.loss_tr[:, rows], self.loss_te[:, rows]
        return Trajectory(*losses, self.end[rows], self.gap[rows])

    @property
    def diverged(self) -> Tensor:
        """Which learners have diverged at the end, (B,)."""
        return diverged(self.loss_tr + self.loss_te)[-1]


def train_learners(
    recipe: Recipe,
    task: Task,
    *,
    seed: int,
    penalty: Callable[[slice], Regularizer] | None = None,
    observe: Callable[[slice, int, Snapshot], None] | None = None,
) -> Trajectory:
    """Trains one learner per task and records its losses after every step.

    Args:
        recipe: How learners learn.
        task: B tasks.
        seed: Draws the initial learners: the same ones for every penalty.
        penalty: Makes the regularizer for a slice of the tasks; none if `None`.
        observe: Sees the learners of a slice after each number of steps.
    """
    ledger.record("report", task.X_te, task.Y_te)
    loss, ends, losses = recipe.loss, list[Snapshot](), list[Tensor]()

    def see(rows: slice, step: int, snapshot: Snapshot) -> None:
        points = loss(snapshot.H_tr, snapshot.Y_tr), loss(snapshot.H_te, task.Y_te[rows])
        losses.append(torch.stack([values.mean(dim=1) for values in points]))  # (2, chunk)
        if step == recipe.steps:
            ends.append(snapshot)
        if observe is not None:
            observe(rows, step, snapshot)

    for rows in (slice(i, i + CHUNK) for i in range(0, len(task), CHUNK)):
        regularizer = None if penalty is None else penalty(rows)
        generator = stream(seed, "evaluate learners", rows.start)
        recipe.train(task[rows], generator, regularizer=regularizer, observe=partial(see, rows))
    times = recipe.steps + 1
    curves = [torch.cat(losses[step::times], dim=1) for step in range(times)]  # (2, B) each
    (loss_tr, loss_te), end = torch.stack(curves, dim=1), Snapshot.join(ends)
    return Trajectory(loss_tr, loss_te, end, gap(loss, end, task.Y_te))


def usable_rows(diverged: Iterable[Tensor]) -> Tensor:
    """Returns which tasks can be compared: where under no method, (B,) each, a learner diverged."""
    # One that diverges under one method would hide what all others did. There must be two left.
    kept = ~torch.stack(list(diverged)).any(dim=0)
    if (count := int(kept.sum())) < 2:
        raise FloatingPointError(f"learners must not all diverge, got {count} that did not")
    return kept
