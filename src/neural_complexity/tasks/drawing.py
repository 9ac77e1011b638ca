"""What families of tasks share: ranges, and cutting drawn points into two sets."""

import torch
from torch import Tensor

from neural_complexity.task import Task

__all__ = ["check_range", "check_sizes", "split", "uniform"]


def check_sizes(**sizes: int) -> None:
    """Checks that named numbers of things are at least 1.

    Raises:
        ValueError: If one is not.
    """
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def check_range(**ranges: tuple[float, float]) -> None:
    """Checks that named ranges go from low to high.

    Raises:
        ValueError: If one does not.
    """
    for name, (low, high) in ranges.items():
        if not low <= high:
            raise ValueError(f"{name} must be a range from low to high, got ({low}, {high})")


def uniform(
    bounds: tuple[float, float], size: tuple[int, ...], generator: torch.Generator
) -> Tensor:
    """Draws uniformly from a range.

    Raises:
        ValueError: If there is nothing to draw.
    """
    if size[0] < 1:
        raise ValueError(f"batch must be at least 1, got {size[0]}")
    low, high = bounds
    return low + (high - low) * torch.rand(*size, generator=generator, device=generator.device)


def split(X: Tensor, Y: Tensor, train_points: int) -> Task:
    """Cuts points in no order, (B, M + N, ...), into training and test sets."""
    M = train_points
    return Task(X[:, :M], Y[:, :M], X[:, M:], Y[:, M:])
