"""Families other than sinusoids, functions and small real tables, for a distribution shift."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor

from neural_complexity.tasks.sampling import SampledFamily, check_at_most, normal, uniform

__all__ = ["GaussianProcesses", "Polynomials", "StepFunctions", "Tables"]

JITTER = 1e-6  # relative to the variance: keeps the Cholesky factor real in double precision
TABLES = ("diabetes", "wine", "breast_cancer", "iris")  # what scikit-learn ships, no download


@dataclass(frozen=True, kw_only=True)
class GaussianProcesses(SampledFamily):
    """Tasks y = f(x) + noise, with f from a Gaussian process with a squared exponential kernel."""

    lengthscale: tuple[float, float] = (0.5, 2.0)  # the range that a task's is drawn from
    amplitude: tuple[float, float] = (0.5, 3.0)  # of f's standard deviation, likewise
    noise: float = 0.1  # its standard deviation
    inputs: tuple[float, float] = (-5.0, 5.0)  # the range of x

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lengthscale[0] > 0:
            raise ValueError(f"lengthscale must be positive, got {self.lengthscale}")

    def draw_points(self, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws x and y, (B, points, 1) each."""
        X = uniform(self.inputs, (batch, self.points, 1), generator)
        scale = uniform(self.lengthscale, (batch, 1, 1), generator)
        amplitude = uniform(self.amplitude, (batch, 1, 1), generator)
        f, noise = normal((2, batch, self.points, 1), generator)
        distance = (X - X.mT) / scale  # (B, points, points)
        K = torch.exp(-0.5 * distance.square().double())
        eye = torch.eye(self.points, dtype=K.dtype, device=K.device)
        factor: Tensor = torch.linalg.cholesky(K + JITTER * eye)
        return X, amplitude * (factor @ f.double()).to(f.dtype) + self.noise * noise


@dataclass(frozen=True, kw_only=True)
class Polynomials(SampledFamily):
    """Tasks y = sum of c_k T_k(x / scale), Chebyshev polynomials with normal coefficients."""

    degree: int = 4
    coefficient: float = 1.5  # the standard deviation of a c_k
    inputs: tuple[float, float] = (-5.0, 5.0)  # the range of x, mapped to -1 ... 1 before T_k

    def draw_points(self, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws x and y, (B, points, 1) each."""
        X = uniform(self.inputs, (batch, self.points, 1), generator)
        low, high = self.inputs
        angle = torch.acos(((2 * X - low - high) / (high - low)).clamp(-1, 1))
        orders = torch.arange(self.degree + 1, device=X.device, dtype=X.dtype)
        c = normal((batch, self.degree + 1, 1), generator)
        return X, torch.cos(angle * orders) @ (self.coefficient * c)  # T_k(cos a) = cos(k a)


@dataclass(frozen=True, kw_only=True)
class StepFunctions(SampledFamily):
    """Tasks with a level between each two jumps, jumps uniform and levels normal."""

    jumps: int = 3
    level: float = 2.0  # the standard deviation of a level
    inputs: tuple[float, float] = (-5.0, 5.0)  # the range of x and of the jumps

    def draw_points(self, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws x and y, (B, points, 1) each."""
        X = uniform(self.inputs, (batch, self.points, 1), generator)
        jumps = uniform(self.inputs, (batch, 1, self.jumps), generator)
        levels = self.level * normal((batch, self.jumps + 1, 1), generator)
        index = (jumps < X).sum(dim=-1, keepdim=True)  # (B, points, 1): the jumps below x
        return X, levels.gather(1, index)


@cache
def _load() -> tuple[Tensor, Tensor, Tensor]:
    """Returns all tables, (T, rows, columns), and how many rows and columns each has, (T,).

    Rows are shuffled, the same way always; columns have mean 0 and standard deviation 1; what a
    table does not have is zero.
    """
    tables = []
    for name in TABLES:
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        table = np.column_stack([X, y])
        table = (table - table.mean(axis=0)) / table.std(axis=0)
        tables.append(np.random.default_rng(0).permutation(table))
    rows, columns = torch.tensor([table.shape for table in tables]).T
    whole = torch.zeros(len(tables), int(rows.max()), int(columns.max()), dtype=torch.float64)
    for i, table in enumerate(tables):
        whole[i, : table.shape[0], : table.shape[1]] = torch.from_numpy(table)
    return whole, rows, columns


@dataclass(frozen=True, kw_only=True)
class Tables(SampledFamily):
    """Tasks from scikit-learn's tables: some rows, a random target column, random input columns."""

    features: int = 1  # input columns, D
    part: Literal["first", "second"] = "first"  # half of the rows: to train NC on, or to judge it

    def __post_init__(self) -> None:
        super().__post_init__()
        _, rows, columns = _load()
        check_at_most("points of a task", self.points, int(rows.min()) // 2)
        check_at_most("features", self.features, int(columns.min()) - 1)
        if self.part not in ("first", "second"):
            raise ValueError(f"part must be first or second, got {self.part}")

    def draw_points(self, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws rows, as inputs (B, points, D) and targets (B, points, 1)."""
        device = generator.device
        whole, rows, columns = (t.to(device) for t in _load())
        which = torch.randint(len(whole), (batch,), generator=generator, device=device)  # (B,)
        half = rows[which] // 2
        picked = _choose(half, self.points, whole.shape[1], generator)
        if self.part == "second":
            picked = picked + half[:, None]
        chosen = _choose(columns[which], self.features + 1, whole.shape[2], generator)
        values = whole[which[:, None, None], picked[:, :, None], chosen[:, None, :]]
        values = values.to(torch.get_default_dtype())  # (B, points, D + 1)
        return values[..., :-1], values[..., -1:]


def _choose(sizes: Tensor, count: int, most: int, generator: torch.Generator) -> Tensor:
    """Chooses `count` different indices below each of the sizes, (B,), as (B, count)."""
    keys = torch.rand(len(sizes), most, generator=generator, device=sizes.device)
    beyond = torch.arange(most, device=sizes.device) >= sizes[:, None]
    return keys.masked_fill(beyond, 2.0).argsort(dim=1)[:, :count]
