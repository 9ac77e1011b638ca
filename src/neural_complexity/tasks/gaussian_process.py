"""Draws from Gaussian processes: smooth functions without a formula."""

from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.task import Task
from neural_complexity.tasks.sampling import check_range, check_sizes, split, uniform

__all__ = ["GaussianProcesses"]

JITTER = 1e-6  # relative to the variance: keeps the Cholesky factor real in double precision


@dataclass(frozen=True, kw_only=True)
class GaussianProcesses:
    """Tasks y = f(x) + noise, with f from a Gaussian process with a squared exponential kernel.

    Args:
        train_points: Training points per task, M.
        test_points: Test points per task, N.
        lengthscale: The range of the kernel's length scale, drawn per task.
        amplitude: The range of the standard deviation of f, drawn per task.
        noise: The standard deviation of the noise.
        inputs: The range of x.
    """

    train_points: int = 10
    test_points: int = 15
    lengthscale: tuple[float, float] = (0.5, 2.0)
    amplitude: tuple[float, float] = (0.5, 3.0)
    noise: float = 0.1
    inputs: tuple[float, float] = (-5.0, 5.0)

    def __post_init__(self) -> None:
        check_sizes(train_points=self.train_points, test_points=self.test_points)
        check_range(lengthscale=self.lengthscale, amplitude=self.amplitude, inputs=self.inputs)
        if not self.lengthscale[0] > 0:
            raise ValueError(f"lengthscale must be positive, got {self.lengthscale}")
        if not self.noise >= 0:
            raise ValueError(f"noise must not be negative, got {self.noise}")

    def sample(self, batch: int, generator: torch.Generator) -> Task:
        """Draws `batch` tasks.

        Args:
            batch: The number of tasks, B.
            generator: The source of randomness.

        Returns:
            Tasks with X_tr (B, M, 1) and X_te (B, N, 1).
        """
        points = self.train_points + self.test_points
        X = uniform(self.inputs, (batch, points, 1), generator)
        scale = uniform(self.lengthscale, (batch, 1, 1), generator)
        amplitude = uniform(self.amplitude, (batch, 1, 1), generator)
        size = (batch, points, 1)
        f, noise = torch.randn(2, *size, generator=generator, device=generator.device)
        distance = (X - X.mT) / scale  # (B, M + N, M + N)
        K = torch.exp(-0.5 * distance.square().double())
        eye = torch.eye(points, dtype=K.dtype, device=K.device)
        factor: Tensor = torch.linalg.cholesky(K + JITTER * eye)
        Y = amplitude * (factor @ f.double()).to(f.dtype) + self.noise * noise
        return split(X, Y, self.train_points)
