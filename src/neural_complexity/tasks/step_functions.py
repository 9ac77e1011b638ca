"""Step functions: constant, but for a few jumps."""

from dataclasses import dataclass

import torch

from neural_complexity.task import Task
from neural_complexity.tasks.sampling import check_range, check_sizes, split, uniform

__all__ = ["StepFunctions"]


@dataclass(frozen=True, kw_only=True)
class StepFunctions:
    """Tasks with a level between each two jumps, jumps uniform and levels normal.

    Args:
        train_points: Training points per task, M.
        test_points: Test points per task, N.
        jumps: Jumps per task.
        level: The standard deviation of a level.
        inputs: The range of x and of the jumps.
    """

    train_points: int = 10
    test_points: int = 15
    jumps: int = 3
    level: float = 2.0
    inputs: tuple[float, float] = (-5.0, 5.0)

    def __post_init__(self) -> None:
        check_sizes(train_points=self.train_points, test_points=self.test_points, jumps=self.jumps)
        check_range(inputs=self.inputs)
        if not self.level > 0:
            raise ValueError(f"level must be positive, got {self.level}")

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
        jumps = uniform(self.inputs, (batch, 1, self.jumps), generator)
        size = (batch, self.jumps + 1, 1)
        levels = self.level * torch.randn(size, generator=generator, device=generator.device)
        index = (jumps < X).sum(dim=-1, keepdim=True)  # (B, M + N, 1): the jumps below x
        return split(X, levels.gather(1, index), self.train_points)
