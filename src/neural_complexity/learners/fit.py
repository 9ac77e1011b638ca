"""Task learning, Algorithm 1: the only inner loop."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from neural_complexity.learners.batched import BatchedLearner, PlacedLearner
from neural_complexity.losses import Loss
from neural_complexity.snapshot import Snapshot, take_snapshot
from neural_complexity.task import Task

__all__ = ["Learner", "Observer", "Regularizer", "evaluate", "fit", "sgd", "unroll"]


class Learner(Protocol):
    """B learners: maps inputs (B, points, D) to predictions (B, points, C)."""

    def __call__(self, X: Tensor) -> Tensor:
        """Predicts with each learner on its own inputs."""
        ...

    def parameters(self) -> Iterator[Tensor]:
        """Gives what training changes, each with a leading axis of length B."""
        ...


# The paper's; all parameters in one call.
sgd = partial(SGD, foreach=True)

Regularizer = Callable[[Learner, Snapshot], Tensor]  # one penalty per task, (B,)
Observer = Callable[[int, Snapshot], None]  # updates done so far, the learners as they are then


def fit(
    h: BatchedLearner,
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
        regularizer: Adds one penalty per task; its own weight is its own business. It sees the
            learners as they train, with their noise.
        observe: Sees the learners before each update and once more after the last, `steps + 1`
            times, as `evaluate` does: without noise or gradient.
    """
    parameters = list(h.parameters())
    descent = optimizer(parameters, lr=lr)
    for step in range(steps):
        wanted = regularizer is not None or (observe is not None and not h.has_modes)
        objective, snapshot = _objective(h, task, loss, regularizer, wanted)
        if observe is not None:
            # Learners without modes train as they are evaluated: one forward pass serves both.
            observe(
                step, evaluate(h, task) if h.has_modes or snapshot is None else snapshot.detach()
            )
        # Tasks are independent, so summing gives each learner its own gradient; NC stays fixed.
        # Handed over as they are: `backward` would copy them first, into the parameters' layout.
        gradients = torch.autograd.grad(objective.sum(), parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        descent.step()
    if observe is not None:
        observe(steps, evaluate(h, task))


def unroll(
    h: PlacedLearner,
    task: Task,
    *,
    loss: Loss,
    steps: int,
    lr: float,
    regularizer: Regularizer | None = None,
) -> PlacedLearner:
    """Trains like `fit` by plain gradient descent, but so that gradients flow through training.

    The result is differentiable in the parameters it starts from and in whatever the regularizer
    depends on, to any order.

    Args:
        h: The learners as they start; they stay as they are.
        task: Their tasks; the test targets are not looked at.
        loss: The loss per point.
        steps: The number of updates.
        lr: The learning rate.
        regularizer: Adds one penalty per task.

    Returns:
        The learners as they end.
    """
    for _ in range(steps):
        objective, _ = _objective(h, task, loss, regularizer, regularizer is not None)
        parameters = list(h.parameters())
        gradients = torch.autograd.grad(objective.sum(), parameters, create_graph=True)
        h = h.moved([p - lr * g for p, g in zip(parameters, gradients, strict=True)])
    return h


def _objective(
    h: Learner, task: Task, loss: Loss, regularizer: Regularizer | None, wanted: bool
) -> tuple[Tensor, Snapshot | None]:
    """Computes what a step descends, (B,), and the snapshot it came from, where it is wanted."""
    if not wanted:
        return loss(h(task.X_tr), task.Y_tr).mean(dim=1), None
    snapshot = take_snapshot(h, task)
    objective = loss(snapshot.H_tr, task.Y_tr).mean(dim=1)
    if regularizer is not None:
        objective = objective + regularizer(h, snapshot)
    return objective, snapshot


@torch.no_grad()
def evaluate(h: BatchedLearner, task: Task) -> Snapshot:
    """Takes a snapshot of learners with noise layers off and running statistics fixed.

    Args:
        h: The learners; their mode is as before afterwards.
        task: Their tasks. The test targets are not looked at.
    """
    mode = h.training
    h.eval()
    snapshot = take_snapshot(h, task)
    h.train(mode)
    return snapshot
