"""Calibrations and errors drawn from known distributions."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from neural_complexity.reliability.calibration import Calibration

DRAWS = 10_000


def calibration(n: int = 200, k: int = 3, seed: int = 0) -> Calibration:
    generator = torch.Generator().manual_seed(seed)
    predicted, noise = torch.randn(2, n, generator=generator)
    spread = torch.rand(n, generator=generator) + 0.1
    features = torch.randn(n, k, generator=generator)
    names = tuple(f"feature {i}" for i in range(k))
    return Calibration(
        predicted, predicted + spread * noise, spread, features, names, ((10, 10), (20, 20))
    )


def tolerance(p: float, draws: int = DRAWS) -> float:
    """Four standard deviations of a share of so many draws: one in 30,000 correct tests fails."""
    return 4 * math.sqrt(p * (1 - p) / draws)


def heavy_tails(*shape: int) -> Tensor:
    """Errors of Cauchy's distribution, shifted: they have no mean."""
    return torch.empty(shape).cauchy_() + 0.5


def ties(*shape: int) -> Tensor:
    """Errors that are whole numbers, most of them 0 or 1."""
    return torch.empty(shape).exponential_().floor()


KINDS: dict[str, Callable[..., Tensor]] = {
    "normal": torch.randn,
    "heavy tails": heavy_tails,
    "ties": ties,
}
