"""Task learning, Algorithm 1: the only inner loop."""

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from neural_complexity import ledger
from neural_complexity.learners.batched import BatchedLearner, PlacedLearner
from neural_complexity.losses import PointLoss, squared_error
from neural_complexity.snapshot import Snapshot, take_snapshot
from neural_complexity.task import Task

__all__ = [
    "Batches",
    "Learner",
    "Learning",
    "Objective",
    "Observer",
    "Regularizer",
    "Visitor",
    "evaluate",
    "fit",
    "sgd",
    "unroll",
]


class Learner(Protocol):
    """B learners: maps inputs (B, points, D) to predictions (B, points, C)."""

    def __call__(self, X: Tensor) -> Tensor:
        """Predicts with each learner on its own inputs."""

    def parameters(self) -> Iterator[Tensor]:
        """Returns what training changes, each with a leading axis of length B."""


class Batches(Protocol):
    """Minibatches of B tasks too large to be seen at once; a pure function of the step."""

    def __len__(self) -> int:
        """Returns the number of tasks, B."""

    def __call__(self, step: int) -> Task:
        """Returns the points that all learners see at a step."""


# The paper's; all parameters in one call.
sgd = partial(SGD, foreach=True)

Regularizer = Callable[[Learner, Snapshot], Tensor]  # one penalty per task, (B,)
Objective = Callable[[BatchedLearner, Task], Tensor]  # what a step descends, per task, (B,)
Observer = Callable[[int, Snapshot], None]  # updates done so far, the learners as they are then
Visitor = Callable[[int, BatchedLearner], None]  # likewise, with the learners themselves
Gradients = Sequence[Tensor | None]  # none for what a step does not use


@dataclass(frozen=True, kw_only=True)
class Learning:
    """How learners learn by gradient descent.

    Args:
        loss: The loss per point.
        steps: The number of updates.
        lr: The learning rate.
        optimizer: Makes the optimizer from the parameters and `lr`; must work element by element.
        objective: Takes the place of the mean loss of the training points (mixup, say).
        sharpness: The radius of sharpness-aware minimization: the gradient is taken where the
            objective is largest within it, to first order, at the cost of a second one.
    """

    loss: PointLoss = squared_error
    steps: int = 16
    lr: float = 0.01
    optimizer: Callable[..., Optimizer] = sgd
    objective: Objective | None = None
    sharpness: float = 0.0

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps must not be negative, got {self.steps}")
        if not self.lr > 0:
            raise ValueError(f"lr must be positive, got {self.lr}")
        if not self.sharpness >= 0:
            raise ValueError(f"sharpness must not be negative, got {self.sharpness}")

    def value(
        self,
        h: BatchedLearner,
        task: Task,
        regularizer: Regularizer | None,
        joined: bool,
        wanted: bool,
    ) -> tuple[Tensor, Snapshot | None]:
        """Computes what a step descends, (B,), and where it is wanted the snapshot it came from."""
        if not wanted and regularizer is None:
            objective = self.objective or partial(_mean_loss, self.loss)
            return objective(h, task), None
        snapshot = take_snapshot(h, task, joined=joined)
        if self.objective is None:
            value = self.loss(snapshot.H_tr, task.Y_tr).mean(dim=1)
        else:
            value = self.objective(h, task)
        return value if regularizer is None else value + regularizer(h, snapshot), snapshot


def fit(
    h: BatchedLearner,
    task: Task | Batches,
    learning: Learning | None = None,
    *,
    regularizer: Regularizer | None = None,
    schedule: Callable[[float], float] | None = None,
    observe: Observer | None = None,
    visit: Visitor | None = None,
    visits: Container[int] = (),
    **fields: Any,
) -> None:
    """Trains B learners on their B tasks by gradient descent, in place (Algorithm 1).

    Each step descends loss_tr + regularizer(h, snapshot), Eq. (4), on the whole training set or on
    a minibatch.

    Args:
        h: The learners.
        task: Their tasks, or minibatches of them; the test targets are not looked at.
        learning: How they learn.
        regularizer: Adds one penalty per task; sees the learners as they train, with their noise.
        schedule: Maps the part of training that is done, 0 to 1, to the factor of the penalty.
        observe: Sees a snapshot before each update and after the last, without noise or gradient.
        visit: Sees the learners themselves at some of these times, in evaluation mode.
        visits: After how many updates.
        fields: Of `Learning` (`loss`, `steps`, `lr` ...), instead of or in addition to `learning`.
    """
    learning = Learning(**fields) if learning is None else replace(learning, **fields)
    batch = _whole(task) if isinstance(task, Task) else task
    parameters = list(h.parameters())
    descent = learning.optimizer(parameters, lr=learning.lr)
    # Learners without modes train as they are evaluated: one forward pass serves both.
    shared = observe is not None and not h.has_modes
    joined = not isinstance(task, Task) and not h.has_modes
    for step in range(learning.steps):
        now = batch(step)
        ledger.record("train", now.X_tr, now.Y_tr)
        if visit is not None and step in visits:
            _call(visit, step, h)
        factor = 1.0 if schedule is None else schedule(step / learning.steps)
        value = partial(learning.value, h, now, _scaled(regularizer, factor), joined)
        # Others are seen first: the pass that trains them moves their running statistics.
        if observe is not None and not shared:
            observe(step, evaluate(h, now))
        total, snapshot = value(shared)
        if observe is not None and shared and snapshot is not None:
            observe(step, snapshot.detach())
        gradients = _gradients(total, parameters)
        if learning.sharpness:
            gradients = _sharp(h, gradients, learning.sharpness, partial(value, False))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        descent.step()
    if observe is not None:
        observe(learning.steps, evaluate(h, batch(learning.steps)))
    if visit is not None and learning.steps in visits:
        _call(visit, learning.steps, h)


def _whole(task: Task) -> Callable[[int], Task]:
    return lambda _: task


def _gradients(objective: Tensor, parameters: Sequence[Tensor]) -> Gradients:
    """Returns the gradients of an objective, (B,), of each learner by itself."""
    # Tasks are independent, so summing gives each learner its own gradient; NC stays fixed.
    # Handed over as they are: `backward` would copy them first, to the parameters' layout.
    return torch.autograd.grad(objective.sum(), parameters, allow_unused=True)


def _mean_loss(loss: PointLoss, h: Learner, task: Task) -> Tensor:
    return loss(h(task.X_tr), task.Y_tr).mean(dim=1)


def _scaled(regularizer: Regularizer | None, factor: float) -> Regularizer | None:
    if regularizer is None or not factor:
        return None
    return regularizer if factor == 1 else lambda h, snapshot: factor * regularizer(h, snapshot)


def _sharp(
    h: BatchedLearner,
    gradients: Gradients,
    radius: float,
    value: Callable[[], tuple[Tensor, Snapshot | None]],
) -> Gradients:
    """Returns the gradients a step of length `radius` uphill, for each learner by itself."""
    parameters, buffers = list(h.parameters()), list(h.buffers())
    squares = [g.square().flatten(1).sum(dim=1) for g in gradients if g is not None]
    length = torch.stack(squares).sum(dim=0).sqrt()  # (B,)
    factor = radius / length.clamp(min=1e-12)
    with torch.no_grad():
        before = [t.clone() for t in (*parameters, *buffers)]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter.add_(gradient * factor.view(-1, *[1] * (gradient.ndim - 1)))
    gradients = _gradients(value()[0], parameters)
    with torch.no_grad():
        # Subtracting the moves again would round; and running statistics are those of the learners
        # as they are, not uphill.
        for tensor, own in zip((*parameters, *buffers), before, strict=True):
            tensor.copy_(own)
    return gradients


@torch.no_grad()
def _call(visit: Visitor, step: int, h: BatchedLearner) -> None:
    mode = h.training
    h.eval()
    visit(step, h)
    h.train(mode)


def unroll(
    h: PlacedLearner,
    task: Task,
    *,
    loss: PointLoss,
    steps: int,
    lr: float,
    regularizer: Regularizer | None = None,
) -> PlacedLearner:
    """Trains like `fit` by plain gradient descent, but so that gradients flow through training.

    Returns:
        The learners as they end, differentiable in the parameters they start from and in whatever
        the regularizer depends on, to any order.
    """
    for _ in range(steps):
        if regularizer is None:
            objective = _mean_loss(loss, h, task)
        else:
            snapshot = take_snapshot(h, task)
            objective = loss(snapshot.H_tr, task.Y_tr).mean(dim=1) + regularizer(h, snapshot)
        parameters = list(h.parameters())
        gradients = torch.autograd.grad(objective.sum(), parameters, create_graph=True)
        h = h.moved([p - lr * g for p, g in zip(parameters, gradients, strict=True)])
    return h


@torch.no_grad()
def evaluate(h: BatchedLearner, task: Task) -> Snapshot:
    """Takes a snapshot of learners with noise layers off and running statistics fixed."""
    mode = h.training
    h.eval()
    snapshot = take_snapshot(h, task)
    h.train(mode)
    return snapshot
