"""Task learning, Algorithm 1: the only inner loop, recipes for it, and the losses on the way."""

import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from neural_complexity import ledger
from neural_complexity.learners.batched import BatchedLearner, PlacedLearner, stack
from neural_complexity.losses import PointLoss, squared_error
from neural_complexity.points import values
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap, take_snapshot
from neural_complexity.task import Task

__all__ = ["CHUNK", "Batches", "Learner", "Objective", "Recipe", "Regularizer", "Trajectory"]
__all__ += ["diverged", "evaluate", "fit", "train_learners", "unroll", "usable_rows"]
__all__ += ["warmup_cosine"]

# Tasks treated at a time: bounds memory. The initial learners are drawn chunk by chunk.
CHUNK = 1024
DIVERGED = 10.0  # losses this many times above where they began, or ever not finite

sgd = partial(SGD, foreach=True)  # the paper's; all parameters in one call
Learner = nn.Module | PlacedLearner  # B: inputs (B, points, D) to predictions (B, points, C)
Batches = Callable[[int], Task]  # a step to the points of B large tasks that learners see then
Data = Task | Batches
Regularizer = Callable[[Learner, Snapshot], Tensor]  # one penalty per task, (B,)
Objective = Callable[[BatchedLearner, Task], Tensor]  # what a step descends, per task, (B,)
Observer = Callable[[int, Snapshot], None]  # updates done so far, the learners as they are then
Visitor = Callable[[int, BatchedLearner], None]  # likewise, with the learners themselves
Penalty = Regularizer | None
Gradients = Sequence[Tensor | None]  # none for what a step does not use
Schedule = Callable[[int], float]  # updates done so far to a factor of the penalty


def warmup_cosine(progress: float, *, warmup: float, decay: bool) -> float:
    """Returns the learning rate's factor: up linearly, then constant or down along a cosine.

    `progress` is how much of training is done, from 0 to 1; `warmup` is the part that goes up.
    """
    if progress < warmup:
        return (progress / warmup) * 0.96 + 0.04
    if not decay:
        return 1.0
    return 0.5 * (1.0 + math.cos(math.pi * (progress - warmup) / (1.0 - warmup)))


@dataclass(frozen=True, kw_only=True)
class Learning:
    """How learners learn by gradient descent; see `Recipe`."""

    loss: PointLoss = squared_error
    steps: int = 16
    lr: float = 0.01
    optimizer: Callable[..., Optimizer] = sgd
    objective: Objective | None = None
    sharpness: float = 0.0
    warmup: float = 0.0
    decay: bool = False
    augment: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ValueError(f"lr must be positive, got {self.lr}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup must be from 0 to less than 1, got {self.warmup}")
        for name in ("steps", "sharpness"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")

    def rate(self, step: int) -> float:
        """Returns what the learning rate is multiplied by after so many updates."""
        return warmup_cosine(step / max(1, self.steps), warmup=self.warmup, decay=self.decay)

    def augmented(self, task: Task, regularizer: Regularizer | None) -> Task:
        """Returns what a step learns from; a regularizer sees points as they are."""
        if self.augment is None:
            return task
        if regularizer is not None:
            raise ValueError("augment must be None with a regularizer, got both")
        # Nobody looks at test points here: of those that are looked up by index, one will do.
        X_te, Y_te = values(task.X_te[:, :1]), task.Y_te[:, :1]
        return Task(self.augment(values(task.X_tr)), task.Y_tr, X_te, Y_te)


def fit(
    h: BatchedLearner,
    task: Data,
    learning: Learning | None = None,
    *,
    regularizer: Regularizer | None = None,
    schedule: Schedule | None = None,
    observe: Observer | None = None,
    visit: Visitor | None = None,
    visits: Container[int] = (),
    **fields: Any,
) -> None:
    """Trains B learners on their B tasks by gradient descent, in place (Algorithm 1).

    Each step descends loss_tr + regularizer(h, snapshot), Eq. (4), on all points or a minibatch.

    Args:
        h: The learners.
        task: Their tasks, or minibatches of them; the test targets are not looked at.
        learning: How they learn.
        regularizer: Adds one penalty per task; sees the learners as they train, with their noise.
        schedule: Maps the number of updates done so far to the factor of the penalty.
        observe: Sees a snapshot before each update and after the last, without noise or gradient.
        visit: Sees the learners themselves at some of these times, in evaluation mode.
        visits: After how many updates.
        fields: Of `Learning` (`loss`, `steps`, `lr` ...), beside or in the place of `learning`.
    """
    learning = Learning(**fields) if learning is None else replace(learning, **fields)
    parameters = list(h.parameters())
    descent = learning.optimizer(parameters, lr=learning.lr)
    rates = LambdaLR(descent, learning.rate)
    # Learners without modes train as they are evaluated: one forward pass serves both.
    alike = not h.has_modes and learning.augment is None
    shared, joined = observe is not None and alike, not isinstance(task, Task) and alike
    for step in range(learning.steps + 1):
        now = task if isinstance(task, Task) else task(step)
        last = step == learning.steps
        # Learners with modes are seen first: the pass that trains them moves running statistics.
        if observe is not None and (last or not shared):
            observe(step, evaluate(h, now))
        if visit is not None and step in visits:
            with _evaluated(h):
                visit(step, h)
        if last:
            return
        ledger.record("train", now.X_tr, now.Y_tr)
        factor = 1.0 if schedule is None else schedule(step)
        penalty, now = regularizer if factor else None, learning.augmented(now, regularizer)
        value = partial(_descended, learning, h, now, penalty, factor, joined)
        total, snapshot = value(shared)
        if observe is not None and snapshot is not None and shared:
            observe(step, snapshot.detach())
        gradients = _gradients(h, total)
        if learning.sharpness:
            gradients = _sharp(h, gradients, learning.sharpness, partial(value, False))
        # Handed over as they are: `backward` would copy them first, to the parameters' layout.
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        descent.step()
        rates.step()


@dataclass(frozen=True, kw_only=True)
class Recipe(Learning):
    """A learning algorithm: everything but the tasks and the regularizer.

    Args:
        make: Builds one freshly initialised module.
        loss: The loss per point.
        steps: The number of updates.
        lr: The learning rate.
        optimizer: Makes the optimizer from the parameters and `lr`; must work element by element.
        objective: Takes the place of the mean loss of the training points (mixup, say).
        sharpness: The radius of sharpness-aware minimization: the gradient is taken where the
            objective is largest within it, to first order, at the cost of a second one.
        warmup: The part of training in which the learning rate rises to `lr`.
        decay: Whether it then falls to zero along a cosine.
        augment: Changes training inputs, (B, M, ...), at random at each step. It draws from
            PyTorch's own generator, as noise layers do.
    """

    make: Callable[[], nn.Module]

    def train(self, task: Data, generator: torch.Generator, **options: Any) -> BatchedLearner:
        """Trains one new learner per task and returns them, in evaluation mode.

        The generator draws the initial parameters, and the noise of layers that have some; the
        options are those of `fit`: `regularizer`, `schedule`, `observe`, `visit` and `visits`.
        """
        first = task if isinstance(task, Task) else task(0)
        device = first.X_tr.device
        h = stack(self.make, len(first), generator).to(device)
        seed = int(torch.randint(2**62, (), generator=generator))
        elsewhere = [] if device.type == "cpu" else [device]
        # Noise layers draw from the global generators; so that learners depend on `generator`
        # alone, these are seeded for the time being.
        with torch.random.fork_rng(elsewhere, device_type=device.type if elsewhere else "cuda"):
            start = torch.manual_seed if elsewhere else torch.default_generator.manual_seed
            start(seed)
            fit(h, task, self, **options)
        h.eval()
        return h


def _descended(
    how: Learning, h: Any, task: Task, penalty: Penalty, factor: float, joined: bool, wanted: bool
) -> tuple[Tensor, Snapshot | None]:
    """Computes what a step descends, (B,), and where there is need or it is wanted a snapshot."""
    snapshot = take_snapshot(h, task, joined=joined) if wanted or penalty is not None else None
    if how.objective is not None:
        value = how.objective(h, task)
    else:
        H_tr = h(task.X_tr) if snapshot is None else snapshot.H_tr
        value = how.loss(H_tr, task.Y_tr).mean(dim=1)
    if penalty is not None and snapshot is not None:
        value = value + factor * penalty(h, snapshot)
    return value, snapshot


def _gradients(h: BatchedLearner, total: Tensor) -> Gradients:
    """Returns the gradient of what each learner descends, (B,), for all its parameters."""
    # Tasks are independent, so summing gives each learner its own gradient; NC stays fixed.
    return torch.autograd.grad(total.sum(), list(h.parameters()), allow_unused=True)


@torch.no_grad()
def _sharp(h: BatchedLearner, uphill: Gradients, radius: float, descended: Any) -> Gradients:
    """Returns the gradients a step of length `radius` uphill, for each learner by itself."""
    parameters = list(h.parameters())
    squares = [g.square().flatten(1).sum(dim=1) for g in uphill if g is not None]
    factor = radius / torch.stack(squares).sum(dim=0).sqrt().clamp(min=1e-12)  # (B,)
    before = [(t, t.clone()) for t in (*parameters, *h.buffers())]
    for parameter, gradient in zip(parameters, uphill, strict=True):
        if gradient is not None:
            parameter.add_(gradient * factor.view(-1, *[1] * (gradient.ndim - 1)))
    with torch.enable_grad():
        gradients = _gradients(h, descended()[0])
    # Subtracting the moves again would round; and running statistics are those of the learners
    # as they are, not uphill.
    for tensor, own in before:
        tensor.copy_(own)
    return gradients


def evaluate(h: BatchedLearner, task: Task) -> Snapshot:
    """Takes a snapshot of learners with noise layers off and running statistics fixed."""
    with _evaluated(h):
        return take_snapshot(h, task)


@contextmanager
def _evaluated(h: BatchedLearner) -> Iterator[None]:
    mode = h.training
    h.eval()
    with torch.no_grad():
        yield
    h.train(mode)


def unroll(
    h: PlacedLearner, task: Task, learning: Learning, *, steps: int, regularizer: Penalty = None
) -> PlacedLearner:
    """Trains like `fit` by plain gradient descent, differentiable in start and regularizer."""
    for _ in range(steps):
        value, _ = _descended(learning, h, task, regularizer, 1.0, False, False)
        parameters = list(h.parameters())
        gradients = torch.autograd.grad(value.sum(), parameters, create_graph=True)
        h = h.moved([p - learning.lr * g for p, g in zip(parameters, gradients, strict=True)])
    return h


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
        losses.append(torch.stack([each.mean(dim=1) for each in points]))  # (2, chunk)
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
