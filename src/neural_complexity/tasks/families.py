"""Families of tasks that are functions of one input: sinusoids and others."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.task import Task

__all__ = ["GaussianProcesses", "Polynomials", "SampledFamily", "Sinusoids", "StepFunctions"]
__all__ += ["check_sizes", "choose"]

JITTER = 1e-6  # relative to the variance: keeps the Cholesky factor real in double precision
Range = tuple[float, float]


def check_sizes(most: float = math.inf, /, **sizes: int) -> None:
    """Raises a ValueError if one of named sizes is below 1 or too large."""
    for name, size in sizes.items():
        if not 1 <= size <= most:
            bound = "at least 1" if size < 1 else f"at most {most}"
            raise ValueError(f"{name} must be {bound}, got {size}")


def choose(sizes: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Chooses `count` different indices below each of many sizes, (...), as (..., count)."""
    # Floyd's algorithm: time and memory grow with the indices chosen, not with the sizes.
    size = (2, *sizes.shape, count)
    draws, order = torch.rand(size, generator=generator, dtype=torch.float64, device=sizes.device)
    chosen = sizes.new_empty(*sizes.shape, count)
    for i in range(count):
        last = sizes - count + i
        index = (draws[..., i] * (last + 1)).long()
        taken = (chosen[..., :i] == index[..., None]).any(dim=-1)
        chosen[..., i] = torch.where(taken, last, index)
    return chosen.gather(-1, order.argsort(dim=-1))


def _uniform(bounds: Range, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    low, high = bounds
    return low + (high - low) * torch.rand(size, generator=generator, device=generator.device)


@dataclass(frozen=True, kw_only=True)
class SampledFamily(ABC):
    """A family that draws all points of a task at once."""

    train_points: int = 10  # of a task, M
    test_points: int = 15  # of a task, N

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int):
                check_sizes(**{name: value})
            elif isinstance(value, float) and not value >= 0:
                raise ValueError(f"{name} must not be negative, got {value}")
            elif isinstance(value, tuple) and not value[0] <= value[1]:
                raise ValueError(f"{name} must be a range from low to high, got {value}")

    def sample(self, batch: int, generator: torch.Generator) -> Task:
        """Draws `batch` tasks, with X_tr (B, M, D) and X_te (B, N, D)."""
        check_sizes(batch=batch)
        M = self.train_points
        X, Y = self._draw(batch, M + self.test_points, generator)
        return Task(X[:, :M], Y[:, :M], X[:, M:], Y[:, M:])

    @abstractmethod
    def _draw(self, B: int, P: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws inputs, (B, P, D), and targets, (B, P, C), of P = M + N points, M first."""


@dataclass(frozen=True, kw_only=True)
class Sinusoids(SampledFamily):
    """Tasks x -> A sin(x + b) (section 4.1): uniform ranges of amplitude A, phase b and input x."""

    amplitude: Range = (0.1, 5.0)
    phase: Range = (0.0, math.pi)
    inputs: Range = (-5.0, 5.0)

    def _draw(self, B: int, P: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        A, b = (_uniform(bounds, (B, 1, 1), generator) for bounds in (self.amplitude, self.phase))
        sizes = self.train_points, P - self.train_points  # drawn one after the other
        X = torch.cat([_uniform(self.inputs, (B, n, 1), generator) for n in sizes], dim=1)
        return X, A * torch.sin(X + b)


@dataclass(frozen=True, kw_only=True)
class GaussianProcesses(SampledFamily):
    """Tasks y = f(x) + noise, with f from a Gaussian process with a squared exponential kernel."""

    lengthscale: Range = (0.5, 2.0)  # the range that a task's is drawn from
    amplitude: Range = (0.5, 3.0)  # of f's standard deviation, likewise
    noise: float = 0.1  # its standard deviation
    inputs: Range = (-5.0, 5.0)  # the range of x

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lengthscale[0] > 0:
            raise ValueError(f"lengthscale must be positive, got {self.lengthscale}")

    def _draw(self, B: int, P: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        X = _uniform(self.inputs, (B, P, 1), generator)
        scale = _uniform(self.lengthscale, (B, 1, 1), generator)
        amplitude = _uniform(self.amplitude, (B, 1, 1), generator)
        f, noise = torch.randn(2, B, P, 1, generator=generator, device=X.device)
        K = torch.exp(-0.5 * ((X - X.mT) / scale).square().double())  # (B, P, P)
        eye = torch.eye(P, dtype=K.dtype, device=K.device)
        factor: Tensor = torch.linalg.cholesky(K + JITTER * eye)
        return X, amplitude * (factor @ f.double()).to(f.dtype) + self.noise * noise


@dataclass(frozen=True, kw_only=True)
class Polynomials(SampledFamily):
    """Tasks y = sum of c_k T_k(x / scale), Chebyshev polynomials with normal coefficients."""

    degree: int = 4
    coefficient: float = 1.5  # the standard deviation of a c_k
    inputs: Range = (-5.0, 5.0)  # the range of x, mapped to -1 ... 1 before T_k

    def _draw(self, B: int, P: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        X = _uniform(self.inputs, (B, P, 1), generator)
        low, high = self.inputs
        angle = torch.acos(((2 * X - low - high) / (high - low)).clamp(-1, 1))
        orders = torch.arange(self.degree + 1, device=X.device, dtype=X.dtype)
        c = torch.randn(B, self.degree + 1, 1, generator=generator, device=X.device)
        return X, torch.cos(angle * orders) @ (self.coefficient * c)  # T_k(cos a) = cos(k a)


@dataclass(frozen=True, kw_only=True)
class StepFunctions(SampledFamily):
    """Tasks with a level between each two jumps, jumps uniform and levels normal."""

    jumps: int = 3
    level: float = 2.0  # the standard deviation of a level
    inputs: Range = (-5.0, 5.0)  # the range of x and of the jumps

    def _draw(self, B: int, P: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        X = _uniform(self.inputs, (B, P, 1), generator)
        jumps = _uniform(self.inputs, (B, 1, self.jumps), generator)
        levels = torch.randn(B, self.jumps + 1, 1, generator=generator, device=X.device)
        below = (jumps < X).sum(dim=-1, keepdim=True)  # (B, P, 1)
        return X, self.level * levels.gather(1, below)
