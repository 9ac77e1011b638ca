"""What families of tasks share: ranges, and cutting drawn points into two sets."""

import torch
from torch import Tensor

from neural_complexity.task import Task

__all__ = ["check_range", "check_sizes", "choose", "split", "uniform"]


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


def choose(sizes: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Chooses different whole numbers below each of many sizes, in random order.

    Floyd's algorithm: time and memory grow with the numbers chosen, not with the sizes, so a few
    out of thousands cost no more than a few out of ten.

    Args:
        sizes: What the numbers must be below, (...), each at least `count`.
        count: How many numbers to choose.
        generator: The source of randomness.

    Returns:
        The numbers, (..., count), every ordered choice as likely as every other.
    """
    size = (2, *sizes.shape, count)
    draws, order = torch.rand(size, generator=generator, dtype=torch.float64, device=sizes.device)
    chosen = sizes.new_empty(*sizes.shape, count)
    for i in range(count):
        last = sizes - count + i
        number = (draws[..., i] * (last + 1)).long()
        taken = (chosen[..., :i] == number[..., None]).any(dim=-1)
        chosen[..., i] = torch.where(taken, last, number)
    return chosen.gather(-1, order.argsort(dim=-1))


def split(X: Tensor, Y: Tensor, train_points: int) -> Task:
    """Cuts points in no order, (B, M + N, ...), into training and test sets."""
    M = train_points
    return Task(X[:, :M], Y[:, :M], X[:, M:], Y[:, M:])
