"""The gap and NC over a plane of parameters."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from neural_complexity.learners.batched import Measure, PlacedLearner
from neural_complexity.losses import PointLoss
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.snapshot import gap, take_snapshot
from neural_complexity.task import Task

__all__ = ["gap_measure"]


def gap_measure(
    networks: dict[str, NeuralComplexity], task: Task, loss: PointLoss, classes: int | None = None
) -> Measure:
    """Returns what `surface` measures of K learners of one task, (K,) each.

    That is "train loss", "test loss" and "gap", and for each NC "NC, name" (the gap that it
    predicts) and "regularized loss, name" (train loss + NC, Eq. (4) at weight 1).
    """
    if len(task) != 1:
        raise ValueError(f"task must be one task, got {len(task)}")
    task = task.loaded()
    contexts = {}  # once for the whole plane
    for name, nc in networks.items():
        nc.check(classes=classes, X_tr=task.X_tr, Y_tr=task.Y_tr, X_te=task.X_te)
        with torch.no_grad():
            contexts[name] = nc.encode(task.X_tr, task.Y_tr, task.X_te, classes=classes)

    def measure(copies: PlacedLearner) -> dict[str, Tensor]:
        K = len(next(copies.parameters()))
        tasks: Task = _expanded(task, K)
        snapshot = take_snapshot(copies, tasks)
        loss_tr = loss(snapshot.H_tr, tasks.Y_tr).mean(dim=1)  # (K,)
        true_gap = gap(loss, snapshot, tasks.Y_te)
        values = {"train loss": loss_tr, "test loss": loss_tr + true_gap, "gap": true_gap}
        for name, nc in networks.items():
            context = _expanded(contexts[name], K)
            predicted_gap = nc.points(context, snapshot.H_tr, snapshot.H_te).mean(dim=1)
            values[f"NC, {name}"] = predicted_gap
            values[f"regularized loss, {name}"] = loss_tr + predicted_gap
        return values

    return measure


def _expanded(tree: Any, K: int) -> Any:
    """Returns all tensors of a tree of dataclasses, (1, ...), as (K, ...) without copying them."""
    if isinstance(tree, Tensor):  # what has one axis is of no task: centres and scales
        return tree.expand(K, *tree.shape[1:]) if tree.ndim > 1 else tree
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{f.name: _expanded(getattr(tree, f.name), K) for f in fields(tree)})
    return tree
