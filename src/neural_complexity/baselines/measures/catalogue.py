"""Complexity measures by name (a placeholder for those to come)."""

from collections.abc import Callable

import torch
from torch import Tensor

from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.losses import cross_entropy
from neural_complexity.regularizers.penalties import NORMS
from neural_complexity.task import Task

__all__ = ["MEASURES", "Measure"]

Measure = Callable[[BatchedLearner, BatchedLearner, Task], Tensor]  # one value per model, (B,)


@torch.no_grad()
def frobenius_norm(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the Euclidean norm of all parameters, (B,)."""
    return NORMS["L2"](list(h.parameters())).sqrt()


@torch.no_grad()
def training_cross_entropy(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the mean cross-entropy on the training points, (B,)."""
    return cross_entropy(h(task.X_tr), task.Y_tr).mean(dim=1)


MEASURES: dict[str, Measure] = {
    "Frobenius norm": frobenius_norm,
    "cross-entropy": training_cross_entropy,
}
