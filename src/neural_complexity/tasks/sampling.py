"""What families of tasks share: sizes and ranges that are checked, and ways to draw."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from neural_complexity.task import Task

__all__ = ["SampledFamily", "check_at_most", "check_sizes", "choose", "normal", "uniform"]


@dataclass(frozen=True, kw_only=True)
class SampledFamily(ABC):
    """A family that draws all points of a task at once."""

    train_points: int = 10  # of a task, M
    test_points: int = 15  # of a task, N

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if isinstance(value, int):
                check_sizes(**{name: value})
            elif isinstance(value, float) and not value >= 0:
                raise ValueError(f"{name} must not be negative, got {value}")
            elif isinstance(value, tuple) and not value[0] <= value[1]:
                raise ValueError(f"{name} must be a range from low to high, got {value}")

    def sample(self, batch: int, generator: torch.Generator) -> Task:
        """Draws `batch` tasks, with X_tr (B, M, D) and X_te (B, N, D)."""
        check_sizes(batch=batch)
        X, Y = self.draw_points(batch, generator)
        M = self.train_points
        return Task(X[:, :M], Y[:, :M], X[:, M:], Y[:, M:])

    @property
    def points(self) -> int:
        """Points per task, M + N."""
        return self.train_points + self.test_points

    @abstractmethod
    def draw_points(self, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws inputs, (B, M + N, D), and targets, (B, M + N, C); training points come first."""


def check_sizes(**sizes: int) -> None:
    """Raises a ValueError if one of named sizes is below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def check_at_most(name: str, size: int, most: int) -> None:
    """Raises a ValueError if a size is too large."""
    if size > most:
        raise ValueError(f"{name} must be at most {most}, got {size}")


def uniform(
    bounds: tuple[float, float], size: tuple[int, ...], generator: torch.Generator
) -> Tensor:
    """Draws uniformly from a range."""
    low, high = bounds
    return low + (high - low) * torch.rand(size, generator=generator, device=generator.device)


def normal(size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws standard normal numbers."""
    return torch.randn(size, generator=generator, device=generator.device)


def choose(sizes: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Chooses `count` different indices below each of many sizes, (...), as (..., count).

    Every ordered choice is as likely as every other. By Floyd's algorithm time and memory grow with
    the indices chosen, not with the sizes.
    """
    size = (2, *sizes.shape, count)
    draws, order = torch.rand(size, generator=generator, dtype=torch.float64, device=sizes.device)
    chosen = sizes.new_empty(*sizes.shape, count)
    for i in range(count):
        last = sizes - count + i
        index = (draws[..., i] * (last + 1)).long()
        taken = (chosen[..., :i] == index[..., None]).any(dim=-1)
        chosen[..., i] = torch.where(taken, last, index)
    return chosen.gather(-1, order.argsort(dim=-1))
