"""Polynomials: smooth, and large at the ends."""

from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.tasks.sampling import SampledFamily, uniform

__all__ = ["Polynomials"]


@dataclass(frozen=True, kw_only=True)
class Polynomials(SampledFamily):
    """Tasks y = sum of c_k T_k(x / scale), Chebyshev polynomials with normal coefficients.

    Args:
        train_points: Training points per task, M.
        test_points: Test points per task, N.
        degree: The highest degree.
        coefficient: The standard deviation of a coefficient.
        inputs: The range of x, mapped to -1 ... 1 before T_k.
    """

    degree: int = 4
    coefficient: float = 1.5
    inputs: tuple[float, float] = (-5.0, 5.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.coefficient > 0:
            raise ValueError(f"coefficient must be positive, got {self.coefficient}")

    def draw_points(self, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws x and y, (B, points, 1) each."""
        X = uniform(self.inputs, (batch, self.points, 1), generator)
        low, high = self.inputs
        angle = torch.acos(((2 * X - low - high) / (high - low)).clamp(-1, 1))
        orders = torch.arange(self.degree + 1, device=X.device, dtype=X.dtype)
        size = (batch, self.degree + 1, 1)
        c = torch.randn(size, generator=generator, device=generator.device)
        return X, torch.cos(angle * orders) @ (self.coefficient * c)  # T_k(cos a) = cos(k a)
