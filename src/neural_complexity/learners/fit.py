"""Task learning, Algorithm 1: the only inner loop."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Optimizer

from neural_complexity.losses import Loss
from neural_complexity.snapshot import Snapshot, take_snapshot
from neural_complexity.task import Task

__all__ = ["Learner", "Observer", "Regularizer", "fit", "sgd"]


class Learner(Protocol):
    """B learners: maps inputs (B, points, D) to predictions (B, points, C)."""

    def __call__(self, X: Tensor) -> Tensor:
        """Predicts with each learner on its own inputs."""
        ...

    def parameters(self) -> Iterator[Parameter]:
        """Gives what training changes, each with a leading axis of length B."""
        ...


# The paper's; all parameters in one call.
sgd = partial(SGD, foreach=True)

Regularizer = Callable[[Learner, Snapshot], Tensor]  # one penalty per task, (B,)
Observer = Callable[[int, Snapshot], None]  # updates done so far, the learners as they are then


def fit(
    h: Learner,
    task: Task,
    *,
    loss: Loss,
    steps: int,
    lr: float,
    optimizer: Callable[..., Optimizer] = sgd,
    regularizer: Regularizer | None = None,
    observe: Observer | None = None,
) -> None:
    """Trains B learners on their B tasks by gradient descent, in place (Algorithm 1).

    Each step descends loss_tr + regularizer(h, snapshot), Eq. (4), on the whole training set.

    Args:
        h: The learners.
        task: Their tasks; the test targets are not looked at.
        loss: The loss per point.
        steps: The number of updates.
        lr: The learning rate.
        optimizer: Makes the optimizer from the parameters and `lr`; must work element by element.
        regularizer: Adds one penalty per task; its own weight is its own business.
        observe: Sees the learners before each update and once more after the last: `steps + 1`
            times, with snapshots that carry no gradient. Layers that keep statistics of their
            inputs see the test inputs then, too.
    """
    parameters = list(h.parameters())
    descent = optimizer(parameters, lr=lr)
    for step in range(steps):
        if regularizer is None and observe is None:
            H_tr, snapshot = h(task.X_tr), None
        else:
            snapshot = take_snapshot(h, task)
            H_tr = snapshot.H_tr
        objective = loss(H_tr, task.Y_tr).mean(dim=1)  # (B,)
        if snapshot is not None and regularizer is not None:
            objective = objective + regularizer(h, snapshot)
        if snapshot is not None and observe is not None:
            observe(step, snapshot.detach())
        # Tasks are independent, so summing gives each learner its own gradient; NC stays fixed.
        # Handed over as they are: `backward` would copy them first, into the parameters' layout.
        gradients = torch.autograd.grad(objective.sum(), parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        descent.step()
    if observe is not None:
        with torch.no_grad():
            observe(steps, take_snapshot(h, task))
