"""A zoo: networks over a grid of hyper-parameters, all trained to the same training loss."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn

from neural_complexity.experiments.base.config import POSITIVE, AtLeast, Between, Checked
from neural_complexity.experiments.base.table_models import as_numbers
from neural_complexity.learners.networks import mlp
from neural_complexity.losses import cross_entropy
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap
from neural_complexity.task import Task
from neural_complexity.tasks.image_datasets import DATASETS, load
from neural_complexity.tasks.real_tables import load_table
from neural_complexity.tasks.splits import Splits

__all__ = ["Grid", "Group", "NoisySplits", "Sizes", "ZooData", "expected_gap", "load_data"]
__all__ += ["mislabel"]

TABLE_PARTS = (0.4, 0.3)  # of the rows of a table: to train on, and to test; the rest teaches NC
TOGETHER = ("width", "depth", "dropout", "batch")  # what models that are trained at once share

Amounts = Annotated[tuple[float, ...], AtLeast(0)]
Counts = Annotated[tuple[int, ...], AtLeast(1)]


@dataclass(frozen=True, kw_only=True)
class Grid(Checked):
    """Values of hyper-parameters; there is a model for each combination of them."""

    width: Counts = (32, 128)  # Hidden units of a layer.
    depth: Counts = (1, 3)  # Hidden layers.
    batch: Counts = (32, 128)  # Training points of a step.
    lr: Annotated[tuple[float, ...], POSITIVE] = (0.04, 0.12)  # The learning rate of SGD.
    weight_decay: Amounts = (0.0, 0.0005)  # Times half the squared norm of the parameters.
    dropout: Annotated[tuple[float, ...], Between(0, 1, open_end=True)] = (0.0, 0.1)
    augmentation: Amounts = (0.0, 0.3)  # The standard deviation of noise on standardized inputs.
    label_noise: Annotated[tuple[float, ...], Between(0, 1)] = (0.0, 0.05)
    """The share of points, for training and for test, with a label drawn at random."""

    def groups(self) -> "list[Group]":
        """Returns all models, those together that are trained at once."""
        names = [*TOGETHER, *(name for name in asdict(self) if name not in TOGETHER)]
        rows = torch.tensor(list(product(*(getattr(self, name) for name in names)))).double()
        together = math.prod(len(getattr(self, name)) for name in names[len(TOGETHER) :])
        return [
            Group(dict(zip(names, some.unbind(dim=1), strict=True)))
            for some in rows.split(together)
        ]


@dataclass(frozen=True)
class Group:
    """B models of one architecture and batch size."""

    columns: Mapping[str, Tensor]  # hyper-parameters by name, (B,) each

    def __len__(self) -> int:
        return len(self.columns["lr"])

    def __getitem__(self, rows: Tensor) -> "Group":
        return Group({name: column[rows] for name, column in self.columns.items()})

    def shared(self, name: str) -> float:
        """Returns a hyper-parameter that is the same for all."""
        return self.columns[name][0].item()

    @property
    def name(self) -> str:
        """What its models share."""
        return ", ".join(f"{name} {self.shared(name):g}" for name in TOGETHER)

    @property
    def architecture(self) -> str:
        """What decides which parameters they have."""
        return ", ".join(f"{name} {self.shared(name):g}" for name in ("width", "depth"))

    def make(self, data: "ZooData") -> nn.Module:
        """Builds one of the networks."""
        hidden, dropout = (
            [int(self.shared("width"))] * int(self.shared("depth")),
            self.shared("dropout"),
        )
        noise = (lambda _: nn.Dropout(dropout)) if dropout else None
        return mlp(data.X.shape[1], hidden, data.classes, noise=noise)


@dataclass(frozen=True, kw_only=True)
class Sizes(Checked):
    """Points of each dataset, at most; smaller ones are shared out."""

    train: Annotated[int, AtLeast(10)] = 5000  # To train the zoo on.
    test: Annotated[int, AtLeast(10)] = 2000  # To measure its gaps on.
    others: Annotated[int, AtLeast(20)] = 10_000  # To meta-train NC on.


@dataclass(frozen=True, eq=False)
class ZooData:
    """A dataset in three parts: to train the zoo on, to measure its gaps on, to teach NC."""

    name: str
    X: Tensor  # (P, D), standardized; the three parts one after another
    y: Tensor  # (P,)
    shape: tuple[int, ...]  # of a point as NC sees it: of an image, or (D,)
    train: int
    test: int

    def __call__(self, indices: Tensor) -> Tensor:
        """Returns points as NC sees them, (...) to (..., *shape)."""
        points: Tensor = self.X[indices].unflatten(-1, self.shape)
        return points

    @property
    def classes(self) -> int:
        """How many there are."""
        return int(self.y.max()) + 1

    @property
    def training(self) -> tuple[Tensor, Tensor]:
        """The points that the zoo is trained on, (train, D), and their true labels."""
        return self.X[: self.train], self.y[: self.train]

    def task(self, Y_tr: Tensor) -> Task:
        """Returns the task of B models, whose training labels (B, train) may be their own."""
        B, tr, te = len(Y_tr), slice(0, self.train), slice(self.train, self.train + self.test)
        X_tr, X_te, Y_te = (t.expand(B, *t.shape) for t in (self.X[tr], self.X[te], self.y[te]))
        return Task(X_tr, Y_tr, X_te, Y_te)

    def others(self) -> tuple[Tensor, Tensor]:
        """Returns the points as NC sees them, and labels, that no model of the zoo has to do with.

        NC is meta-trained on these.
        """
        rest = torch.arange(self.train + self.test, len(self.X))
        return self(rest), self.y[rest]

    def labelled_others(self, B: int) -> tuple[Tensor, Tensor]:
        """Returns the same as B models see them, (B, others, D), and their labels, (B, others)."""
        X, y = (t[self.train + self.test :] for t in (self.X, self.y))
        return X.expand(B, *X.shape), y.expand(B, *y.shape)


def load_data(name: str, sizes: Sizes, folder: str = "", *, seed: int) -> ZooData:
    """Loads a dataset of images, or a table with labels, by name, and shares its points out."""
    drawing = stream(seed, "points of the zoo", name)
    if name in DATASETS:
        images = load(name, folder or None)
        train, test = (
            own[torch.randperm(len(own), generator=drawing)]
            for own in (images.train_indices, images.test_indices)
        )
        m = min(sizes.train, len(train) // 2)
        n, rest = min(sizes.test, len(test)), min(sizes.others, len(train) - m)
        order = torch.cat([train[:m], test[:n], train[m : m + rest]])
        X, y = images(order), images.labels[order]
        return ZooData(name, X.flatten(1), y, tuple(X.shape[1:]), m, n)
    table = load_table(name)
    order = torch.randperm(len(table.y), generator=drawing)
    parts = zip((sizes.train, sizes.test), TABLE_PARTS, strict=True)
    m, n = (min(most, round(share * len(order))) for most, share in parts)
    X = torch.from_numpy(as_numbers(table.X)).to(torch.get_default_dtype())[order]
    y = torch.from_numpy(np.unique(table.y.to_numpy().astype(str), return_inverse=True)[1])[order]
    known = X[:m].nan_to_num()
    scale = known.std(dim=0)
    X = ((X - known.mean(dim=0)) / torch.where(scale > 0, scale, 1.0)).nan_to_num()
    return ZooData(name, X, y, tuple(X.shape[1:]), m, n)


def mislabel(group: Group, data: ZooData, *, seed: int) -> Tensor:
    """Returns the training labels of each model, (B, train): a share of them drawn at random.

    Models with the same share have the same labels, and with less noise part of its wrong ones.
    """
    drawing, y = stream(seed, "label noise", data.name), data.training[1]
    return _mislabel(y[None], group.columns["label_noise"], data.classes, drawing)


def _mislabel(Y: Tensor, noise: Tensor, classes: int, generator: torch.Generator) -> Tensor:
    """Draws a share of labels at random, (B, M) and (B,); one draw for all if there is one row."""
    chosen = torch.rand(Y.shape, generator=generator) < noise[:, None]
    return torch.where(chosen, torch.randint(classes, Y.shape, generator=generator), Y)


def expected_gap(group: Group, snapshot: Snapshot, Y_te: Tensor, classes: int) -> Tensor:
    """Returns the gap of each model where test labels are as noisy as its training labels, (B,).

    It is the mean over this noise: labels that are drawn would add luck.
    """
    noise = group.columns["label_noise"].to(snapshot.H_te)
    drawn = [gap(cross_entropy, snapshot, torch.full_like(Y_te, c)) for c in range(classes)]
    true = gap(cross_entropy, snapshot, Y_te)
    return (1 - noise) * true + noise * torch.stack(drawn).mean(dim=0)


@dataclass(frozen=True, eq=False, kw_only=True)
class NoisySplits(Splits):
    """Splits whose labels, for training and for test, are as noisy as those of a zoo."""

    shares: Amounts  # of labels drawn at random, for one task after another

    def task(self, train: Tensor, test: Tensor) -> Task:
        """Returns the tasks of training and test indices, (B, m) and (B, n)."""
        task = super().task(train, test)
        share = torch.tensor(self.shares)[torch.arange(len(task)) % len(self.shares)]
        # Other points, other noise: NC cannot learn which labels are wrong by heart.
        drawing = stream(int(train.sum()), "label noise of a split")
        classes = int(self.store.labels.max()) + 1
        Y_tr, Y_te = (_mislabel(Y, share, classes, drawing) for Y in (task.Y_tr, task.Y_te))
        return replace(task, Y_tr=Y_tr, Y_te=Y_te)
