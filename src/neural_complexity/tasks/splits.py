"""Task splitting: one large dataset as any number of tasks."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from neural_complexity.points import indexed
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.sampling import check_sizes

__all__ = ["Labelled", "Minibatches", "Rounds", "Splits"]


class Labelled(Protocol):
    """A store of inputs, by index, with their targets."""

    @property
    def labels(self) -> Tensor:
        """The label of every input, (P,), or its real targets, (P, C)."""
        ...

    def __call__(self, indices: Tensor, /) -> Tensor:
        """Returns the inputs of indices of any shape, (...), as (..., D), on their device."""
        ...


@dataclass(frozen=True, eq=False)
class Splits:
    """Tasks that split one dataset at random into a training and a validation set (section 2).

    The two are disjoint, and their inputs are `Points` of the dataset. `split` returns whole ones,
    which learners learn from; `sample` returns a few points of one, which is what NC sees at a
    time.

    Args:
        store: The inputs and their targets.
        pool: The indices of the inputs that may be used, (P,).
        train: Training points of a split, m.
        test: Its validation points, m'.
        M: Training points that NC sees at a time.
        N: Validation points that NC sees at a time.
    """

    store: Labelled
    pool: Tensor = field(repr=False)
    _: KW_ONLY
    train: int = 40_000
    test: int = 10_000
    M: int = 128
    N: int = 128

    def __post_init__(self) -> None:
        check_sizes(train=self.train, test=self.test, M=self.M, N=self.N)
        if self.train + self.test > len(self.pool):
            raise ValueError(
                f"train + test must be at most the {len(self.pool)} inputs there are, got "
                f"{self.train} + {self.test}"
            )
        if self.train < self.M or self.test < self.N:
            raise ValueError(
                f"M and N must be at most train and test, {self.train} and {self.test}, got "
                f"{self.M} and {self.N}"
            )
        labels = self.store.labels[self.pool]
        if (labels == labels[0]).all():
            kind = "of two classes at least" if labels.ndim == 1 else "two different ones at least"
            raise ValueError(f"targets must be {kind}, got {labels[0].tolist()} alone")

    def split(self, batch: int, generator: torch.Generator, *, train: int | None = None) -> Task:
        """Draws whole splits, (B, m) and (B, m') points.

        Args:
            batch: How many, B.
            generator: The source of randomness.
            train: Training points, if not as many as usual; at most as many.
        """
        m = self.train if train is None else train
        if not 1 <= m <= self.train:
            raise ValueError(f"train must be from 1 to {self.train}, got {m}")
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
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        keys = torch.rand(batch, len(self.pool), generator=generator, device=generator.device)
        chosen = self.pool.to(keys.device)[keys.topk(m + n, dim=1).indices]  # (B, m + n)
        return self.task(chosen[:, :m], chosen[:, m:])


class Minibatches:
    """Points of B large tasks, step by step: each set in random order, over and over.

    Args:
        task: The tasks.
        M: Training points of a step; all of them if there are fewer.
        N: Test points of a step, likewise.
        seed: Decides the order; the draws are made on the CPU, so that devices agree.
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

    Args:
        shape: Rows and points, (B, P).
        size: Points of a step; all of them if there are fewer.
        generator: Returns the source of randomness of a round.
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
