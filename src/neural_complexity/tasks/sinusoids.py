"""The sinusoid family of section 4.1."""

import math
from dataclasses import dataclass

import torch

from neural_complexity.task import Task
from neural_complexity.tasks.sampling import check_range, check_sizes, uniform

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
        check_sizes(train_points=self.train_points, test_points=self.test_points)
        check_range(amplitude=self.amplitude, phase=self.phase, inputs=self.inputs)

    def sample(self, batch: int, generator: torch.Generator) -> Task:
        """Draws `batch` tasks.

        Args:
            batch: The number of tasks, B.
            generator: The source of randomness.

        Returns:
            Tasks with X_tr (B, M, 1) and X_te (B, N, 1).
        """
        A = uniform(self.amplitude, (batch, 1, 1), generator)
        b = uniform(self.phase, (batch, 1, 1), generator)
        X_tr = uniform(self.inputs, (batch, self.train_points, 1), generator)
        X_te = uniform(self.inputs, (batch, self.test_points, 1), generator)
        return Task(X_tr, A * torch.sin(X_tr + b), X_te, A * torch.sin(X_te + b))
