"""Step functions: constant, but for a few jumps."""

from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.tasks.sampling import SampledFamily, uniform

__all__ = ["StepFunctions"]


@dataclass(frozen=True, kw_only=True)
class StepFunctions(SampledFamily):
    """Tasks with a level between each two jumps, jumps uniform and levels normal.

    Args:
        train_points: Training points per task, M.
        test_points: Test points per task, N.
        jumps: Jumps per task.
        level: The standard deviation of a level.
        inputs: The range of x and of the jumps.
    """

    jumps: int = 3
    level: float = 2.0
    inputs: tuple[float, float] = (-5.0, 5.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.level > 0:
            raise ValueError(f"level must be positive, got {self.level}")

    def draw_points(self, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws x and y, (B, points, 1) each."""
        X = uniform(self.inputs, (batch, self.points, 1), generator)
        jumps = uniform(self.inputs, (batch, 1, self.jumps), generator)
        size = (batch, self.jumps + 1, 1)
        levels = self.level * torch.randn(size, generator=generator, device=generator.device)
        index = (jumps < X).sum(dim=-1, keepdim=True)  # (B, points, 1): the jumps below x
        return X, levels.gather(1, index)
