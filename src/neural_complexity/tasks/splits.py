"""Task splitting: one large dataset as any number of tasks."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from neural_complexity.points import indexed
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.sampling import check_at_most, check_sizes

__all__ = ["Minibatches", "Rounds", "Splits"]


class Labelled(Protocol):
    """A store of inputs, by index, with their targets."""

    @property
    def labels(self) -> Tensor:
        """The label of every input, (P,), or its real targets, (P, C)."""

    def __call__(self, indices: Tensor, /) -> Tensor:
        """Returns the inputs of indices of any shape, (...), as (..., D), on their device."""


@dataclass(frozen=True, eq=False)
class Splits:
    """Tasks that split one dataset at random into a training and a validation set (section 2).

    The two are disjoint `Points` of the dataset. `split` returns whole ones, which learners learn
    from; `sample` returns a few points of one, which is what NC sees at a time.
    """

    store: Labelled
    pool: Tensor = field(repr=False)  # the indices of the inputs that may be used, (P,)
    _: KW_ONLY
    train: int = 40_000  # training points of a split, m
    test: int = 10_000  # its validation points, m'
    M: int = 128  # training points that NC sees at a time
    N: int = 128  # validation points that NC sees at a time

    def __post_init__(self) -> None:
        check_sizes(train=self.train, test=self.test, M=self.M, N=self.N)
        check_at_most("train + test", self.train + self.test, len(self.pool))
        check_at_most("M", self.M, self.train)
        check_at_most("N", self.N, self.test)
        labels = self.store.labels[self.pool]
        if (labels == labels[0]).all():
            kind = "of two classes at least" if labels.ndim == 1 else "two different ones at least"
            raise ValueError(f"targets must be {kind}, got {labels[0].tolist()} alone")

    def split(self, batch: int, generator: torch.Generator, *, train: int | None = None) -> Task:
        """Draws `batch` whole splits, (B, m) and (B, m') points, or fewer than m: `train`."""
        m = self.train if train is None else train
        check_sizes(train=m)
        check_at_most("train", m, self.train)
        return self._cut(batch, m, self.test, generator)

    def sample(self, batch: int, generator: torch.Generator) -> Task:
        """Draws M and N points of splits."""
        return self._cut(batch, self.M, self.N, generator)

    def task(self, train: Tensor, test: Tensor) -> Task:
        """Returns the tasks of training and test indices, (B, m) and (B, n)."""
        labels = self.store.labels.to(train.device)
        X_tr, X_te = indexed(train, self.store), indexed(test, self.store)
        return Task(X_tr, labels[train], X_te, labels[test])

    def _cut(self, batch: int, m: int, n: int, generator: torch.Generator) -> Task:
        check_sizes(batch=batch)
        keys = torch.rand(batch, len(self.pool), generator=generator, device=generator.device)
        chosen = self.pool.to(keys.device)[keys.topk(m + n, dim=1).indices]  # (B, m + n)
        return self.task(chosen[:, :m], chosen[:, m:])


class Minibatches:
    """M training and N test points of B large tasks, step by step, all if there are fewer.

    Each set comes in random order, over and over, drawn on the CPU, so that devices agree.
    """

    def __init__(self, task: Task, *, M: int, N: int, seed: int) -> None:
        check_sizes(M=M, N=N)
        self.task, self.seed = task, seed
        self._train = Rounds(task.Y_tr.shape[:2], M, lambda i: stream(seed, "train order", i))
        self._test = Rounds(task.Y_te.shape[:2], N, lambda i: stream(seed, "test order", i))

    def __len__(self) -> int:
        return len(self.task)

    def __call__(self, step: int) -> Task:
        """Returns the points of a step, (B, M) and (B, N)."""
        task = self.task
        row = torch.arange(len(task), device=task.Y_tr.device)[:, None]
        tr, te = (part(step).to(row.device) for part in (self._train, self._test))
        return Task(task.X_tr[row, tr], task.Y_tr[row, tr], task.X_te[row, te], task.Y_te[row, te])


class Rounds:
    """Places of points, (B, size), such that each round over the steps meets each point once.

    `shape` is rows and points, (B, P), and `generator` returns a round's source of randomness.
    """

    def __init__(
        self, shape: torch.Size, size: int, generator: Callable[[int], torch.Generator]
    ) -> None:
        self.shape, self.size, self.generator = shape, min(size, shape[1]), generator
        self.steps = shape[1] // self.size  # of a round; a rest that fills no step is left out
        self.round, self.order = -1, torch.empty(0)

    def __call__(self, step: int) -> Tensor:
        """Returns the places of a step, (B, size)."""
        now, place = divmod(step, self.steps)
        if now != self.round:
            self.round = now
            self.order = torch.rand(self.shape, generator=self.generator(now)).argsort(dim=1)
        return self.order[:, place * self.size : (place + 1) * self.size]
