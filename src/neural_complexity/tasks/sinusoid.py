"""The sinusoid family of section 4.1."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.task import Task

__all__ = ["Sinusoids"]


@dataclass(frozen=True, kw_only=True)
class Sinusoids:
    """Tasks x -> A sin(x + b), with A, b and x uniform.

    Args:
        train_points: Training points per task, M.
        test_points: Test points per task, N.
        amplitude: The range of A.
        phase: The range of b.
        inputs: The range of x.
    """

    train_points: int = 10
    test_points: int = 15
    amplitude: tuple[float, float] = (0.1, 5.0)
    phase: tuple[float, float] = (0.0, math.pi)
    inputs: tuple[float, float] = (-5.0, 5.0)

    def __post_init__(self) -> None:
        for name in ("train_points", "test_points"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("amplitude", "phase", "inputs"):
            low, high = getattr(self, name)
            if not low <= high:
                raise ValueError(f"{name} must be a range from low to high, got ({low}, {high})")

    def sample(self, batch: int, generator: torch.Generator) -> Task:
        """Draws `batch` tasks.

        Args:
            batch: The number of tasks, B.
            generator: The source of randomness.

        Returns:
            Tasks with X_tr (B, M, 1) and X_te (B, N, 1).
        """
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")

        def uniform(bounds: tuple[float, float], points: int) -> Tensor:
            low, high = bounds
            unit = torch.rand(batch, points, 1, generator=generator, device=generator.device)
            return low + (high - low) * unit

        A, b = uniform(self.amplitude, 1), uniform(self.phase, 1)  # (B, 1, 1)
        X_tr = uniform(self.inputs, self.train_points)
        X_te = uniform(self.inputs, self.test_points)
        return Task(X_tr, A * torch.sin(X_tr + b), X_te, A * torch.sin(X_te + b))
