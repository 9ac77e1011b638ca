"""The sinusoid family of section 4.1."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.tasks.sampling import SampledFamily, uniform

__all__ = ["Sinusoids"]


@dataclass(frozen=True, kw_only=True)
class Sinusoids(SampledFamily):
    """Tasks x -> A sin(x + b), with A, b and x uniform.

    Args:
        train_points: Training points per task, M.
        test_points: Test points per task, N.
        amplitude: The range of A.
        phase: The range of b.
        inputs: The range of x.
    """

    amplitude: tuple[float, float] = (0.1, 5.0)
    phase: tuple[float, float] = (0.0, math.pi)
    inputs: tuple[float, float] = (-5.0, 5.0)

    def draw_points(self, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws x and y, (B, points, 1) each."""
        A = uniform(self.amplitude, (batch, 1, 1), generator)
        b = uniform(self.phase, (batch, 1, 1), generator)
        sizes = (self.train_points, self.test_points)  # drawn one after the other
        X = torch.cat([uniform(self.inputs, (batch, n, 1), generator) for n in sizes], dim=1)
        return X, A * torch.sin(X + b)
