"""Scoring NC on held-out tasks: how well it predicts the gap, and how much it helps."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.learners.fit import Regularizer
from neural_complexity.learners.recipe import Recipe
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap
from neural_complexity.task import Task

__all__ = ["CHUNK", "Trajectory", "follow", "predict_gaps", "usable_tasks"]

# Tasks treated at a time: bounds memory. The initial learners are drawn chunk by chunk.
CHUNK = 1024


@dataclass(frozen=True)
class Trajectory:
    """What happened to B learners, step by step, and where they ended."""

    loss_tr: Tensor  # (steps + 1, B)
    loss_te: Tensor  # (steps + 1, B)
    end: Snapshot
    gap: Tensor  # (B,), at the end

    def __getitem__(self, rows: Tensor) -> "Trajectory":
        return Trajectory(
            self.loss_tr[:, rows], self.loss_te[:, rows], self.end[rows], self.gap[rows]
        )

    @property
    def finite(self) -> Tensor:
        """Tells which learners never diverged, (B,)."""
        return (self.loss_tr + self.loss_te).sum(dim=0).isfinite()


def follow(
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
        task: B held-out tasks.
        seed: Draws the initial learners: the same ones for every penalty.
        penalty: Makes the regularizer for a slice of the tasks; none if `None`.
        observe: Sees the learners of a slice after each number of steps.

    Returns:
        Losses of the same h that the snapshot shows: those after the last update.
    """
    chunks = [slice(i, i + CHUNK) for i in range(0, len(task), CHUNK)]
    parts = [_follow(recipe, task[rows], seed, rows, penalty, observe) for rows in chunks]
    return Trajectory(
        torch.cat([p.loss_tr for p in parts], dim=1),
        torch.cat([p.loss_te for p in parts], dim=1),
        Snapshot(
            *(torch.cat(sets) for sets in zip(*(p.end.tensors() for p in parts), strict=True))
        ),
        torch.cat([p.gap for p in parts]),
    )


def _follow(
    recipe: Recipe,
    task: Task,
    seed: int,
    rows: slice,
    penalty: Callable[[slice], Regularizer] | None,
    observe: Callable[[slice, int, Snapshot], None] | None,
) -> Trajectory:
    loss, snapshots = recipe.loss, []
    curves: list[tuple[Tensor, Tensor]] = []

    def record(step: int, snapshot: Snapshot) -> None:
        curves.append(
            (
                loss(snapshot.H_tr, task.Y_tr).mean(dim=1),
                loss(snapshot.H_te, task.Y_te).mean(dim=1),
            )
        )
        if step == recipe.steps:
            snapshots.append(snapshot)
        if observe is not None:
            observe(rows, step, snapshot)

    recipe.train(
        task,
        stream(seed, "evaluate learners", rows.start),
        regularizer=None if penalty is None else penalty(rows),
        observe=record,
    )
    end = snapshots[0]
    loss_tr, loss_te = (torch.stack(c) for c in zip(*curves, strict=True))  # (steps + 1, B)
    return Trajectory(loss_tr, loss_te, end, gap(loss, end, task.Y_te))


def usable_tasks(finite: Iterable[Tensor]) -> Tensor:
    """Tells which tasks can be compared between methods, (B,).

    One learner that diverges under one method would hide what all others did: its task is left out
    of all methods.

    Args:
        finite: For each method, which learners never diverged, (B,).

    Raises:
        FloatingPointError: If there are not two such tasks.
    """
    kept = torch.stack(list(finite)).all(dim=0)
    if kept.sum() < 2:
        raise FloatingPointError(
            f"learners must not all diverge, got {int(kept.sum())} that did not"
        )
    return kept


@torch.no_grad()
def predict_gaps(nc: NeuralComplexity, snapshot: Snapshot) -> Tensor:
    """Predicts the gap of many learners, a bounded number at a time.

    Returns:
        Predicted gaps, (B,); NaN for learners whose predictions are not finite.
    """
    predicted = snapshot.H_te.new_full((len(snapshot),), torch.nan)
    fine = (snapshot.H_tr.flatten(1).sum(dim=1) + snapshot.H_te.flatten(1).sum(dim=1)).isfinite()
    for rows in fine.nonzero().squeeze(1).split(CHUNK) if fine.any() else ():
        predicted[rows] = nc.predict(*snapshot[rows].tensors())
    return predicted
