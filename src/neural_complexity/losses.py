"""Losses per point, and their expectation under a belief about the target."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

__all__ = ["LOSSES", "Gaussian", "Loss", "SquaredError", "squared_error"]


@dataclass(frozen=True)
class Gaussian:
    """A belief about real targets: an independent normal distribution per point and output."""

    mean: Tensor  # (B, N, C)
    variance: Tensor  # (B, N, C)


class Loss(Protocol):
    """L(h, z) for every point, and what it is on average when the target is only believed."""

    name: str

    def __call__(self, H: Tensor, Y: Tensor) -> Tensor:
        """Computes the loss of predictions H, (B, N, C), for targets Y, as (B, N)."""
        ...

    def expected(self, H: Tensor, belief: Gaussian) -> Tensor:
        """Computes the expected loss of predictions H, (B, N, C), under a belief, as (B, N)."""
        ...


class SquaredError:
    """The squared error, averaged over outputs."""

    name = "squared_error"

    def __call__(self, H: Tensor, Y: Tensor) -> Tensor:
        """Computes (h - y)^2 per point.

        Args:
            H: Predictions, (B, N, C).
            Y: Targets, (B, N, C).

        Returns:
            One value per point, (B, N).

        Raises:
            ValueError: If the shapes differ.
        """
        if H.shape != Y.shape:
            raise ValueError(
                f"predictions must have the shape of the targets, got {tuple(H.shape)} against "
                f"{tuple(Y.shape)}"
            )
        return (H - Y).square().mean(dim=-1)

    def expected(self, H: Tensor, belief: Gaussian) -> Tensor:
        """Computes E (h - y)^2 = (h - mean)^2 + variance per point.

        Args:
            H: Predictions, (B, N, C).
            belief: The distribution of y.

        Returns:
            One value per point, (B, N).
        """
        return ((H - belief.mean).square() + belief.variance).mean(dim=-1)


squared_error = SquaredError()

LOSSES: dict[str, Loss] = {squared_error.name: squared_error}
