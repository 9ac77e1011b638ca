"""The gap and NC over a plane of parameters."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from neural_complexity.learners.batched import PlacedLearner
from neural_complexity.learners.surface import Measure
from neural_complexity.model.complexity import NeuralComplexity
from neural_complexity.snapshot import gap, take_snapshot
from neural_complexity.task import Task

__all__ = ["gap_measure"]


def gap_measure(nc: NeuralComplexity, task: Task) -> Measure:
    """Makes what `surface` measures: losses, the gap, and what NC says of it.

    Args:
        nc: The gap predictor; asked about the test inputs of the task.
        task: The one task that the learner was trained on.

    Returns:
        Maps K learners to "train loss", "test loss", "gap", "NC" (the predicted gap) and
        "regularized loss" (train loss + NC, Eq. (4) at weight 1), (K,) each.

    Raises:
        TypeError: If the task is not of NC's own type.
        ValueError: If it is not one task, does not fit NC or is not finite.
    """
    if len(task) != 1:
        raise ValueError(f"task must be one task, got {len(task)}")
    nc.check(X_tr=task.X_tr, Y_tr=task.Y_tr, X_te=task.X_te)
    with torch.no_grad():
        context = nc.encode(task.X_tr, task.Y_tr, task.X_te)  # once for the whole plane

    def measure(copies: PlacedLearner) -> dict[str, Tensor]:
        K = len(next(copies.parameters()))
        tasks: Task = _expanded(task, K)
        snapshot = take_snapshot(copies, tasks)
        loss_tr = nc.loss(snapshot.H_tr, tasks.Y_tr).mean(dim=1)  # (K,)
        true_gap = gap(nc.loss, snapshot, tasks.Y_te)
        points = nc.points(_expanded(context, K), snapshot.H_tr, snapshot.H_te)  # (K, N)
        predicted_gap = points.mean(dim=1)
        return {
            "train loss": loss_tr,
            "test loss": loss_tr + true_gap,
            "gap": true_gap,
            "NC": predicted_gap,
            "regularized loss": loss_tr + predicted_gap,
        }

    return measure


def _expanded(tree: Any, K: int) -> Any:
    """Gives all tensors of a tree of dataclasses, (1, ...), as (K, ...) without copying them."""
    if isinstance(tree, Tensor):
        return tree.expand(K, *tree.shape[1:])
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{f.name: _expanded(getattr(tree, f.name), K) for f in fields(tree)})
    return tree
