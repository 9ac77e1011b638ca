"""Families of functions other than sinusoids, to see how NC takes a distribution shift."""

from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.tasks.sampling import SampledFamily, normal, uniform

__all__ = ["GaussianProcesses", "Polynomials", "StepFunctions"]

JITTER = 1e-6  # relative to the variance: keeps the Cholesky factor real in double precision


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
