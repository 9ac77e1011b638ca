"""Draws from Gaussian processes: smooth functions without a formula."""

from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.tasks.sampling import SampledFamily, uniform

__all__ = ["GaussianProcesses"]

JITTER = 1e-6  # relative to the variance: keeps the Cholesky factor real in double precision


@dataclass(frozen=True, kw_only=True)
class GaussianProcesses(SampledFamily):
    """Tasks y = f(x) + noise, with f from a Gaussian process with a squared exponential kernel.

    Args:
        train_points: Training points per task, M.
        test_points: Test points per task, N.
        lengthscale: The range of the kernel's length scale, drawn per task.
        amplitude: The range of the standard deviation of f, drawn per task.
        noise: The standard deviation of the noise.
        inputs: The range of x.
    """

    lengthscale: tuple[float, float] = (0.5, 2.0)
    amplitude: tuple[float, float] = (0.5, 3.0)
    noise: float = 0.1
    inputs: tuple[float, float] = (-5.0, 5.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lengthscale[0] > 0:
            raise ValueError(f"lengthscale must be positive, got {self.lengthscale}")
        if not self.noise >= 0:
            raise ValueError(f"noise must not be negative, got {self.noise}")

    def draw_points(self, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws x and y, (B, points, 1) each."""
        X = uniform(self.inputs, (batch, self.points, 1), generator)
        scale = uniform(self.lengthscale, (batch, 1, 1), generator)
        amplitude = uniform(self.amplitude, (batch, 1, 1), generator)
        size = (2, batch, self.points, 1)
        f, noise = torch.randn(size, generator=generator, device=generator.device)
        distance = (X - X.mT) / scale  # (B, points, points)
        K = torch.exp(-0.5 * distance.square().double())
        eye = torch.eye(self.points, dtype=K.dtype, device=K.device)
        factor: Tensor = torch.linalg.cholesky(K + JITTER * eye)
        return X, amplitude * (factor @ f.double()).to(f.dtype) + self.noise * noise
