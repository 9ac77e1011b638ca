"""Polynomials: smooth, and large at the ends."""

from dataclasses import dataclass

import torch

from neural_complexity.task import Task
from neural_complexity.tasks.sampling import check_range, check_sizes, split, uniform

__all__ = ["Polynomials"]


@dataclass(frozen=True, kw_only=True)
class Polynomials:
    """Tasks y = sum of c_k T_k(x / scale), Chebyshev polynomials with normal coefficients.

    Args:
        train_points: Training points per task, M.
        test_points: Test points per task, N.
        degree: The highest degree.
        coefficient: The standard deviation of a coefficient.
        inputs: The range of x, mapped to -1 ... 1 before T_k.
    """

    train_points: int = 10
    test_points: int = 15
    degree: int = 4
    coefficient: float = 1.5
    inputs: tuple[float, float] = (-5.0, 5.0)

    def __post_init__(self) -> None:
        check_sizes(
            train_points=self.train_points, test_points=self.test_points, degree=self.degree
        )
        check_range(inputs=self.inputs)
        if not self.coefficient > 0:
            raise ValueError(f"coefficient must be positive, got {self.coefficient}")

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
        low, high = self.inputs
        angle = torch.acos(((2 * X - low - high) / (high - low)).clamp(-1, 1))
        orders = torch.arange(self.degree + 1, device=X.device, dtype=X.dtype)
        size = (batch, self.degree + 1, 1)
        c = torch.randn(size, generator=generator, device=generator.device)
        Y = torch.cos(angle * orders) @ (self.coefficient * c)  # T_k(cos a) = cos(k a)
        return split(X, Y, self.train_points)
