"""How far NC's beliefs about one model may be off: what is assumed, and what labels say about it.

One number moves all beliefs about a model: its *tilt*. It is added to the log-odds that the model
is wrong at a point, or, for real targets, to the logarithm of its squared error. NC alone has a
tilt of 0, more or less; labelled points tell more about it. New points that are unlike training
points may have another tilt than those.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.losses import tilt_odds

__all__ = ["GRID", "Tilt"]

GRID = torch.linspace(-5, 5, 101, dtype=torch.float64)  # the tilts that are considered
# Chosen on the tables for development, where 95 % intervals are to hold that often.
USUAL = 0.25  # the scale of tilts among tables, of
FREEDOM = 4.0  # degrees of freedom of Student's distribution: some are far off
STEADY = 0.2  # the standard deviation of a tilt from labelled points to new ones of their kind,
FEW = 2.0  # what is added to it, over the square root of the training points,
MOVING = 1.0  # and what is added if the two kinds of points can always be told apart


@dataclass(frozen=True)
class Tilt:
    """The probability of each tilt of `GRID` at labelled points; see `new` for others."""

    weights: Tensor  # (G,), sums to 1

    @classmethod
    def prior(cls) -> "Tilt":
        """Returns what is assumed before labels are seen."""
        squared = (GRID / USUAL).square() / FREEDOM
        return cls((-(FREEDOM + 1) / 2 * squared.log1p()).softmax(dim=0))

    def after_labels(self, wrong: Tensor, was_wrong: Tensor) -> "Tilt":
        """Learns from labelled points: NC's belief that a model is wrong there, and whether it was.

        Args:
            wrong: Probabilities, (n,).
            was_wrong: Ones and zeros, (n,).
        """
        p = tilt_odds(wrong.double(), GRID)  # (n, G)
        seen = torch.where(was_wrong.bool().unsqueeze(1), p, 1 - p).log()
        return Tilt((self.weights.log() + seen.sum(dim=0)).softmax(dim=0))

    def after_errors(self, expected: Tensor, squared: Tensor) -> "Tilt":
        """Learns from squared errors at labelled points, and from what NC expected, (n,) each."""
        ratio = (squared / expected.clamp(min=torch.finfo(expected.dtype).tiny)).double()
        # As if errors were Gaussian, but one of them never says more than a few ordinary ones.
        ratio = ratio.clamp(max=10.0).unsqueeze(1)
        seen = -0.5 * (GRID + ratio * (-GRID).exp())
        return Tilt((self.weights.log() + seen.sum(dim=0)).softmax(dim=0))

    def new(self, training_points: int, auc: float | None = None) -> "Tilt":
        """Returns the tilt at new points, which are told from training points with such an AUC."""
        apart = 0.0 if auc is None else max(0.0, 2 * auc - 1)
        width = (STEADY**2 + FEW**2 / training_points + (MOVING * apart) ** 2) ** 0.5
        moves = -0.5 * ((GRID.unsqueeze(1) - GRID) / width).square()
        return Tilt(moves.softmax(dim=0) @ self.weights)

    def mean(self, values: Tensor) -> Tensor:
        """Returns the mean of values at each tilt, (..., G) to (...)."""
        return values @ self.weights.to(values)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draws tilts, (count,)."""
        drawn = torch.multinomial(self.weights, count, replacement=True, generator=generator)
        return GRID[drawn]
