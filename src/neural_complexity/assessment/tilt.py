"""How far NC's beliefs about one model may be off: what is assumed, and what labels say about it.

One number moves all beliefs about a model: its *tilt*. It is added to the log-odds that the model
is wrong at a point, or, for real targets, to the logarithm of its squared error. NC alone has a
tilt of 0, more or less; labelled points tell more about it. New points that are unlike training
points may have another tilt than those.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.beliefs import tilt_odds

__all__ = ["ASSUMED", "GRID", "Assumed", "Tilt", "likelihood_of_errors", "likelihood_of_labels"]

GRID = torch.linspace(-5, 5, 101, dtype=torch.float64)  # the tilts that are considered
FREEDOM = 4.0  # degrees of freedom of Student's distribution: some tables are far off
Many = Tensor | float  # one number, or as many as there are models, (n,)


@dataclass(frozen=True)
class Assumed:
    """How far beliefs are off, in tilts."""

    usual: float  # the scale of tilts among tables
    steady: float  # the standard deviation of a tilt from labelled points to new ones of their kind
    few: float  # what is added to it, over the square root of the training points,
    moving: float  # and what is added if the two kinds of points can always be told apart


# Of labels, and of numbers. They were chosen on tables of labels for development; those that the
# experiment `tilts` learns on synthetic tables are no better, of labels or of numbers.
ASSUMED = {True: Assumed(0.25, 0.2, 2.0, 1.0), False: Assumed(0.25, 0.2, 2.0, 1.0)}


@dataclass(frozen=True)
class Tilt:
    """The probability of each tilt of `GRID` at labelled points; see `new` for others."""

    weights: Tensor  # (G,), or (n, G) of many models; they sum to 1
    assumed: Assumed

    @classmethod
    def prior(cls, assumed: Assumed) -> "Tilt":
        """Returns what is assumed before labels are seen."""
        squared = (GRID / assumed.usual).square() / FREEDOM
        return cls((-(FREEDOM + 1) / 2 * squared.log1p()).softmax(dim=0), assumed)

    def after(self, seen: Tensor) -> "Tilt":
        """Learns from how likely each tilt makes what was seen: logarithms, (G,) or (n, G)."""
        return Tilt((self.weights.log() + seen).softmax(dim=-1), self.assumed)

    def new(self, training_points: Many, auc: Many | None = None) -> "Tilt":
        """Returns the tilt at new points, which are told from training points with such an AUC."""
        points, known = (
            torch.as_tensor(given, dtype=torch.float64)
            for given in (training_points, 0.5 if auc is None else auc)
        )
        own, apart = self.assumed, (2 * known - 1).clamp(min=0)
        variance = own.steady**2 + own.few**2 / points + (own.moving * apart).square()
        moves = -0.5 * (GRID.unsqueeze(1) - GRID).square() / variance[..., None, None]
        there = moves.softmax(dim=-2) @ self.weights.unsqueeze(-1)
        return Tilt(there.squeeze(-1), own)

    def mean(self, values: Tensor) -> Tensor:
        """Returns the mean of values at each tilt, (..., G) to (...)."""
        return values @ self.weights.to(values)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draws tilts, (count,)."""
        drawn = torch.multinomial(self.weights, count, replacement=True, generator=generator)
        return GRID[drawn]


def likelihood_of_labels(wrong: Tensor, was_wrong: Tensor) -> Tensor:
    """Returns how likely each tilt makes it that a model is wrong where it was: logarithms, (G,).

    Args:
        wrong: NC's belief that it is wrong at labelled points, (n,).
        was_wrong: Ones and zeros, (n,).
    """
    p = tilt_odds(wrong.double(), GRID)  # (n, G)
    return torch.where(was_wrong.bool().unsqueeze(1), p, 1 - p).log().sum(dim=0)


def likelihood_of_errors(expected: Tensor, squared: Tensor) -> Tensor:
    """Does the same for squared errors, and what NC expected of them, (n,) each.

    As if the logarithm of their mean, over that of what was expected, were Gaussian.
    """
    tiny, n = torch.finfo(torch.float64).tiny, len(squared)
    mean = squared.double().mean().clamp(min=tiny)
    told = expected.double().mean().clamp(min=tiny)
    # Squares of Gaussian errors vary by twice their mean's square; those with outliers by more.
    variance = (squared.double() / mean).var(correction=0).clamp(min=2.0) / n
    seen = (mean / told).log().clamp(GRID[0], GRID[-1])
    return -0.5 * (GRID - seen).square() / variance
