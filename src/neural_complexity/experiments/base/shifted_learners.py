"""Learners of sinusoids and digits: some to calibrate on, others under distribution shift."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from neural_complexity.experiments.base.comparison import sinusoid_recipe
from neural_complexity.learners.fit import Recipe, train_learners
from neural_complexity.learners.networks import mlp
from neural_complexity.losses import cross_entropy
from neural_complexity.model.judgement import measure
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.reliability.calibration import SPREAD, Calibration
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task, TaskFamily
from neural_complexity.tasks import families
from neural_complexity.tasks.splits import ArrayStore, Splits, own_digits

__all__ = ["CALIBRATED", "DigitLearners", "SinusoidLearners", "calibration_of"]

PART = 512  # learners trained at a time: bounds memory
# How far inputs of sinusoids are moved; times as many steps; the share of wrong training labels.
MOVED, LONGER, WRONG = 5.0, 16, 0.3
CALIBRATED, LONG = "like those calibrated on", f"{LONGER} times the steps"
FAMILIES: dict[str, TaskFamily] = {
    "Gaussian processes": families.GaussianProcesses(),
    "step functions": families.StepFunctions(),
    "polynomials": families.Polynomials(),
}

Learners = tuple[Snapshot, Tensor]  # with their test targets


@dataclass(frozen=True)
class Domain(ABC):
    """Learners by kind, of which the first are those to calibrate on, and NCs that judge them."""

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]

    seed: int
    device: str
    shifted: int  # learners of each kind but the first
    calibrated: int  # learners of the first
    networks: Mapping[str, NeuralComplexity]  # by head

    @abstractmethod
    def learners(self, kind: str, tasks: int, generator: torch.Generator) -> Learners:
        """Returns learners of one kind and their test targets."""

    def measure(self, kind: str) -> dict[str, Tensor]:
        """Compares what each NC predicts of learners of a kind with what is true."""
        total = self.calibrated if kind == CALIBRATED else self.shifted
        found: dict[str, list[Tensor]] = {}
        for first in range(0, total, PART):
            generator = stream(self.seed, "evaluation tasks", self.name, kind, first)
            learners = self.learners(kind, min(PART, total - first), generator)
            for head, nc in self.networks.items():
                for field, tensor in measure(nc, [learners]).tensors().items():
                    found.setdefault(f"{head}/{field}", []).append(tensor)
        return {key: torch.cat(parts) for key, parts in found.items()}

    def train(self, recipe: Recipe, task: Task, generator: torch.Generator) -> Learners:
        """Returns them when they are trained, each from initial weights of its own."""
        task, seed = task.to(self.device), int(torch.randint(2**31, (), generator=generator))
        return train_learners(recipe, task, seed=seed).end.detach(), task.Y_te


def calibration_of(head: str, tensors: Mapping[str, Tensor]) -> Calibration:
    """Returns what `Domain.measure` found for the NC with one head."""
    fields = ("predicted", "true", "spread", "features")
    predicted, true, spread, features = (tensors[f"{head}/{field}"] for field in fields)
    names = (SPREAD, *map(str, range(1, features.shape[1])))  # nobody asks for the others
    return Calibration(predicted, true, spread, features, names, sizes=((1, 1), (1, 1)))


@dataclass(frozen=True)
class SinusoidLearners(Domain):
    """Learners of sinusoids as NC knows them, and of other data."""

    name = "sinusoids"
    kinds = (CALIBRATED, LONG, "inputs moved", "test inputs from one end", *FAMILIES)

    def learners(self, kind: str, tasks: int, generator: torch.Generator) -> Learners:
        """Returns learners of one kind and their test targets."""
        task = FAMILIES.get(kind, families.Sinusoids()).sample(tasks, generator)
        steps = sinusoid_recipe().steps * (LONGER if kind == LONG else 1)
        s, Y_te = self.train(sinusoid_recipe(steps=steps), task, generator)
        if kind == "inputs moved":
            s = Snapshot(s.X_tr + MOVED, s.Y_tr, s.H_tr, s.X_te + MOVED, s.H_te)
        if kind == "test inputs from one end":
            end = s.X_te.argsort(dim=1)[:, s.X_te.shape[1] // 2 :]  # (B, N / 2, 1)
            X_te, H_te, Y_te = (t.gather(1, end) for t in (s.X_te, s.H_te, Y_te))
            s = Snapshot(s.X_tr, s.Y_tr, s.H_tr, X_te, H_te)
        return s, Y_te


@dataclass(frozen=True)
class DigitLearners(Domain):
    """Small networks on few of the digits that NC has not seen, and on changed ones."""

    name = "digits"
    kinds = (CALIBRATED, LONG, "pixels inverted", "wrong training labels")

    M: int
    N: int
    steps: int

    def __post_init__(self) -> None:
        for nc in self.networks.values():
            if not nc.labels or math.prod(nc.shape) != 64 or not (nc.symmetric or nc.outputs == 10):
                got = f"{nc.outputs} outputs, {nc.loss.name} and inputs {nc.shape}"
                need = "nc must be for 10 classes of digits with 64 pixels"
                raise ValueError(f"{need}, got one for {got}")

    def learners(self, kind: str, tasks: int, generator: torch.Generator) -> Learners:
        """Returns learners of one kind and their test targets."""
        _, _, X, y = own_digits()
        (nc,) = self.networks.values()
        values = torch.from_numpy(X).to(torch.get_default_dtype()).view(-1, *nc.shape)
        values = 1 - values if kind == "pixels inverted" else values
        store = ArrayStore(values, torch.from_numpy(y), tuple(range(10)))
        sizes = {"train": self.M, "test": self.N, "M": self.M, "N": self.N}
        task = Splits(store, torch.arange(len(y)), **sizes).sample(tasks, generator).loaded()
        if kind == "wrong training labels":
            Y_tr, size = task.Y_tr, task.Y_tr.shape
            other = torch.randint(1, 10, size, generator=generator)
            wrong = torch.rand(size, generator=generator) < WRONG
            Y_tr = torch.where(wrong, (Y_tr + other) % 10, Y_tr)
            task = Task(task.X_tr, Y_tr, task.X_te, task.Y_te)
        steps = self.steps * (LONGER if kind == LONG else 1)
        recipe = Recipe(make=_network, loss=cross_entropy, steps=steps, lr=0.5)
        return self.train(recipe, task, generator)


def _network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), mlp(64, (32,), 10))
