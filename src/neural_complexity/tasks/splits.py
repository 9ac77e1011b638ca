"""Real datasets as any number of tasks: splits of one, also a user's own, and small tables."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pandas.api.types import infer_dtype
from sklearn import datasets
from sklearn.model_selection import train_test_split
from torch import Tensor

from neural_complexity.convert.arrays_in import inputs, pair, targets
from neural_complexity.points import indexed
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.families import SampledFamily, check_sizes
from neural_complexity.tasks.images import SingleDataset

__all__ = ["ArrayStore", "Minibatches", "Rounds", "Splits", "Tables", "own_digits", "split_tasks"]

SEEN = 64  # points of each set that NC sees at a time
FEWEST = 20  # points, of which tasks can still be made
MANY = 100  # whole numbers more varied than this are rather counts or amounts than labels
Kind = Literal["classification", "regression"] | None
Size = int | None
Generators = Callable[[int], torch.Generator]  # one for each round
LABELS = ("string", "integer", "boolean", "floating")  # kinds that NC's file can hold
TABLES = ("diabetes", "wine", "breast_cancer", "iris")  # what scikit-learn ships, no download


@dataclass(frozen=True, eq=False, repr=False)
class ArrayStore:
    """Inputs in memory, by index, with labels or real targets."""

    X: Tensor  # (P, D) or (P, channels, height, width)
    labels: Tensor  # (P,), int64, or real targets, (P, C)
    classes: tuple[Any, ...] = ()  # what the labels 0, 1, ... were called; nothing for real targets

    @property
    def outputs(self) -> int:
        """Classes, or outputs of a real target."""
        return len(self.classes) or self.labels.shape[1]

    def __call__(self, indices: Tensor) -> Tensor:
        """Returns the inputs of indices (...), as (..., D), on their device."""
        return self.X.to(indices.device)[indices]

    def __len__(self) -> int:
        return len(self.X)

    def __repr__(self) -> str:
        sizes = "x".join(map(str, self.X.shape[1:]))
        return f"ArrayStore({len(self)} points of {sizes}, outputs={self.outputs})"


@dataclass(frozen=True, eq=False)
class Splits:
    """Tasks that split one dataset at random, into training and validation sets (section 2)."""

    store: ArrayStore | SingleDataset
    pool: Tensor = field(repr=False)  # the indices of the inputs that may be used, (P,)
    _: KW_ONLY
    train: int = 40_000  # training points of a split, m
    test: int = 10_000  # its validation points, m'
    M: int = 128  # training points that NC sees at a time
    N: int = 128  # validation points that NC sees at a time

    def __post_init__(self) -> None:
        check_sizes(train=self.train, test=self.test)
        check_sizes(len(self.pool), **{"train + test": self.train + self.test})
        check_sizes(self.train, M=self.M)
        check_sizes(self.test, N=self.N)
        labels = self.store.labels[self.pool]
        if (labels == labels[0]).all():
            kind = "of two classes at least" if labels.ndim == 1 else "two different ones at least"
            raise ValueError(f"targets must be {kind}, got {labels[0].tolist()} alone")

    def split(self, batch: int, generator: torch.Generator, *, train: int | None = None) -> Task:
        """Draws whole splits, (B, m) and (B, m'), which learners learn from; m may be less."""
        m = self.train if train is None else train
        check_sizes(self.train, train=m)
        return self._cut(batch, m, self.test, generator)

    def sample(self, batch: int, generator: torch.Generator) -> Task:
        """Draws M and N points of splits, which is what NC sees at a time."""
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
    """M training and N test points of B large tasks, step by step, all if there are fewer."""

    def __init__(self, task: Task, *, M: int, N: int, seed: int) -> None:
        check_sizes(M=M, N=N)
        self.task = task
        self._train = Rounds(task.Y_tr.shape[:2], M, lambda i: stream(seed, "train order", i))
        self._test = Rounds(task.Y_te.shape[:2], N, lambda i: stream(seed, "test order", i))

    def __call__(self, step: int) -> Task:
        """Returns the points of a step, (B, M) and (B, N)."""
        task = self.task
        row = torch.arange(len(task), device=task.Y_tr.device)[:, None]
        tr, te = (part(step).to(row.device) for part in (self._train, self._test))
        return Task(task.X_tr[row, tr], task.Y_tr[row, tr], task.X_te[row, te], task.Y_te[row, te])


class Rounds:
    """Places of points, such that each round over the steps meets each of (B, P) points once."""

    def __init__(self, shape: torch.Size, size: int, generator: Generators) -> None:
        self.shape, self.size, self.generator = shape, min(size, shape[1]), generator
        self.steps = shape[1] // self.size  # of a round; a rest that fills no step is left out
        self.round, self.order = -1, torch.empty(0)

    def __call__(self, step: int) -> Tensor:
        """Returns the places of a step, (B, size)."""
        now, place = divmod(step, self.steps)
        if now != self.round:
            self.round = now  # drawn on the CPU, so that devices agree
            self.order = torch.rand(self.shape, generator=self.generator(now)).argsort(dim=1)
        return self.order[:, place * self.size : (place + 1) * self.size]


def split_tasks(
    X: object, y: object = None, *, kind: Kind = None, train: Size = None, test: Size = None
) -> Splits:
    """Returns the tasks of splitting one dataset at random (section 2), for `meta_learn`.

    Args:
        X: Inputs, (P, D) or images (P, channels, height, width): an array, a tensor, lists or a
            data frame; or a `Dataset` or `DataLoader` of pairs, and then no y.
        y: Targets. Whole numbers, truth values and names are labels; numbers with a point are real
            targets, (P,) or (P, C).
        kind: Which of the two, where the type of y does not tell.
        train: Training points of a split; three quarters if `None`.
        test: Its validation points; the others if `None`.

    Raises:
        TypeError: If X or y holds no numbers.
        ValueError: If there are too few points, all targets are the same, or a value is missing or
            infinite.

    Example:
        >>> split_tasks(np.eye(40), ["yes", "no"] * 20).train
        30
    """
    X, y = pair("X", X, y)
    if y is None:
        raise TypeError("y must be given, unless X is a Dataset or DataLoader of pairs, got none")
    points = inputs("X", X)
    P = len(points)
    if P < FEWEST:
        raise ValueError(f"X must have at least {FEWEST} points to be split, got {P}")
    if kind not in (None, "classification", "regression"):
        raise ValueError(f"kind must be classification, regression or None, got {kind}")
    if isinstance(y, Tensor):
        y = y.detach().cpu()
        y = y.double() if y.is_floating_point() else y  # NumPy does not know all types
    values = pd.Series(np.asarray(y).reshape(-1)).infer_objects()
    found = infer_dtype(values)
    if kind is None and found == "integer" and values.nunique() > MANY:
        wanted = f"must be given where y has more than {MANY} different whole numbers"
        raise ValueError(f'kind {wanted}: "classification" or "regression"')
    if kind == "regression" or (kind is None and found == "floating"):
        store = ArrayStore(points, targets("y", y, labels=False, points=P))
    elif found not in LABELS:
        raise TypeError(f"y must hold names, or numbers, or truth values as labels, got {found}")
    elif values.hasnans:
        raise ValueError("y must have no missing values as labels, got some")
    else:
        indices, classes = pd.factorize(values, sort=True)
        labels = targets("y", indices, labels=True, points=P)
        store = ArrayStore(points, labels, tuple(classes.tolist()))
    test = max(1, P - (3 * P + 3) // 4 if train is None else P - train) if test is None else test
    train = P - test if train is None else train
    seen = {"M": min(SEEN, max(1, train)), "N": min(SEEN, max(1, test))}
    return Splits(store, torch.arange(P), train=train, test=test, **seen)


def own_digits() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Returns X_tr, (1437, 64), y_tr, X_te, y_te of digits; the shipped NC has not seen X_te."""
    X, y = datasets.load_digits(return_X_y=True)
    X_tr, X_te, y_tr, y_te = train_test_split(X / 16, y, test_size=360, random_state=0)
    return X_tr, y_tr, X_te, y_te


@cache
def _load() -> tuple[Tensor, Tensor, Tensor]:
    """Returns all tables, (T, rows, columns), and how many rows and columns each has, (T,)."""
    # Rows are shuffled, the same way always; columns standardized; what a table lacks is zero.
    tables = []
    for name in TABLES:
        table = np.column_stack(getattr(datasets, f"load_{name}")(return_X_y=True))
        table = (table - table.mean(axis=0)) / table.std(axis=0)
        tables.append(np.random.default_rng(0).permutation(table))
    rows, columns = torch.tensor([table.shape for table in tables]).T
    whole = torch.zeros(len(tables), int(rows.max()), int(columns.max()), dtype=torch.float64)
    for own, table in zip(whole, tables, strict=True):
        own[: table.shape[0], : table.shape[1]] = torch.from_numpy(table)
    return whole, rows, columns


@dataclass(frozen=True, kw_only=True)
class Tables(SampledFamily):
    """Tasks from scikit-learn's tables: some rows, a random target column, random input columns."""

    features: int = 1  # input columns, D
    part: Literal["first", "second"] = "first"  # half of the rows: to train NC on, or to judge it

    def __post_init__(self) -> None:
        super().__post_init__()
        _, rows, columns = _load()
        points = {"points of a task": self.train_points + self.test_points}
        check_sizes(int(rows.min()) // 2, **points)
        check_sizes(int(columns.min()) - 1, features=self.features)
        if self.part not in ("first", "second"):
            raise ValueError(f"part must be first or second, got {self.part}")

    def _draw(self, B: int, P: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        device = generator.device
        whole, rows, columns = (t.to(device) for t in _load())

        def pick(sizes: Tensor, count: int, most: int) -> Tensor:  # (B, count) below sizes, (B,)
            keys = torch.rand(B, most, generator=generator, device=device)
            beyond = torch.arange(most, device=device) >= sizes[:, None]
            return keys.masked_fill(beyond, 2.0).argsort(dim=1)[:, :count]

        which = torch.randint(len(whole), (B,), generator=generator, device=device)  # (B,)
        half = rows[which] // 2
        picked = pick(half, P, whole.shape[1]) + (half[:, None] if self.part == "second" else 0)
        chosen = pick(columns[which], self.features + 1, whole.shape[2])
        values = whole[which[:, None, None], picked[:, :, None], chosen[:, None, :]]
        values = values.to(torch.get_default_dtype())  # (B, P, D + 1)
        return values[..., :-1], values[..., -1:]
