"""Beliefs about targets: distributions to draw from, and to expect losses under."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, softmax

from neural_complexity.points import TensorFields

__all__ = ["Belief", "Categorical", "Gaussian", "Histogram", "tilt_odds"]

SURE = 1e-4  # no probability that is tilted is surer than this
WIDEST = 8.0  # standard deviations from the mean at which a histogram ends


@dataclass(frozen=True)
class Belief(TensorFields, ABC):
    """A distribution of the target at each test point; its fields are tensors (B, N, C)."""

    @property
    def prediction(self) -> Tensor:
        """What to predict, (B, N, C), if the belief is all there is: the first field."""
        first: Tensor = next(iter(vars(self).values()))
        return first

    def draw(self, H: Tensor, tilts: Tensor, u: Tensor) -> Tensor:
        """Draws targets of the first task, (draws, n), where a model's predictions H, (n, C), are.

        Args:
            H: Logits, or outputs.
            tilts: What is added, in each draw, to the log-odds that the model is wrong, or to the
                logarithm of its squared error, (draws,).
            u: Uniform random numbers, (2, draws, n).
        """
        h, y = H.double(), self.sample(u).T
        return (h + (y - h) * (tilts / 2).exp()).T

    @abstractmethod
    def sample(self, u: Tensor) -> Tensor:
        """Draws targets of the first task, (draws, n), by numbers from 0 to 1, (2, draws, n)."""


def tilt_odds(wrong: Tensor, tilts: Tensor) -> Tensor:
    """Returns probabilities (n,) whose log-odds are moved by tilts (G,), (n, G)."""
    odds = wrong.clamp(SURE, 1 - SURE).logit()
    return (odds.unsqueeze(-1) + tilts.to(odds)).sigmoid()


@dataclass(frozen=True)
class Gaussian(Belief):
    """An independent normal distribution per point and output."""

    mean: Tensor  # (B, N, C)
    variance: Tensor  # (B, N, C)

    def sample(self, u: Tensor) -> Tensor:
        """Draws the first output, (draws, n)."""
        mean, variance = (t[0, :, 0].double() for t in (self.mean, self.variance))
        return mean.addcmul(variance.sqrt(), torch.special.ndtri(u[0]))

    def shortfall(self, H: Tensor) -> tuple[Tensor, Tensor]:
        """Returns mean and mean square of max(h - y, 0) for predictions H, (B, N, C) each."""
        scale = self.variance.sqrt().clamp(min=torch.finfo(H.dtype).tiny)
        z = (H - self.mean) / scale
        below, density = torch.special.ndtr(z), (-z.square() / 2).exp() / math.sqrt(2 * math.pi)
        first, second = z * below + density, (z.square() + 1) * below + z * density
        return scale * first, scale.square() * second.clamp(min=0)


@dataclass(frozen=True)
class Categorical(Belief):
    """A probability for each class, given as unnormalised logarithms."""

    logits: Tensor  # (B, N, C)

    @property
    def probabilities(self) -> Tensor:
        """The probability of each class, (B, N, C)."""
        return softmax(self.logits, dim=-1)

    def draw(self, H: Tensor, tilts: Tensor, u: Tensor) -> Tensor:
        """Draws whether a model's answer is right, and if not, which one is, (draws, n)."""
        p = self.probabilities[0].double()  # (n, C)
        own = H.argmax(dim=1)
        wrong = tilt_odds(1 - p.gather(1, own.unsqueeze(1)).squeeze(1), tilts).T  # (draws, n)
        others = p.scatter(1, own.unsqueeze(1), 0.0).cumsum(dim=1)  # (n, C)
        asked = (u[1].T * others[:, -1:]).contiguous()
        other = torch.searchsorted(others, asked, right=True).T.clamp(max=p.shape[1] - 1)
        return torch.where(u[0] < wrong, other, own)

    def sample(self, u: Tensor) -> Tensor:
        """Draws labels, (draws, n)."""
        reached = self.probabilities[0].double().cumsum(dim=1)
        found = torch.searchsorted(reached, u[0].T.contiguous()).T
        return found.clamp(max=reached.shape[1] - 1)


@dataclass(frozen=True)
class Histogram(Belief):
    """A probability for each interval of one output, within which the target is uniform."""

    logits: Tensor  # (B, N, bins)
    edges: Tensor  # (B, N, bins + 1), ascending

    @classmethod
    def standard(cls, answers: Tensor, mean: Tensor, scale: Tensor) -> "Histogram":
        """Returns the belief of answers, (B, N, bins): intervals are narrow around the mean.

        Mean and scale are (C,) or (B, 1, C), with one output.
        """
        edges = cls.standard_edges(answers.shape[-1]).to(answers)
        return cls(answers, (edges * scale + mean).expand(*answers.shape[:-1], -1))

    @staticmethod
    def standard_edges(bins: int) -> Tensor:
        """Returns the edges of intervals in standard units, (bins + 1,)."""
        edges = torch.linspace(-3, 3, bins + 1, dtype=torch.float64).sinh()
        return WIDEST * edges / edges[-1]

    @property
    def prediction(self) -> Tensor:
        """The mean, (B, N, 1)."""
        return self.mean

    @property
    def probabilities(self) -> Tensor:
        """The probability of each interval, (B, N, bins)."""
        return softmax(self.logits, dim=-1)

    @property
    def centres(self) -> Tensor:
        """The middle of each interval, (B, N, bins)."""
        return (self.edges[..., 1:] + self.edges[..., :-1]) / 2

    @property
    def widths(self) -> Tensor:
        """The length of each interval, (B, N, bins)."""
        return self.edges.diff(dim=-1)

    @property
    def mean(self) -> Tensor:
        """The mean, (B, N, 1)."""
        return (self.probabilities * self.centres).sum(dim=-1, keepdim=True)

    @property
    def variance(self) -> Tensor:
        """The variance, (B, N, 1)."""
        spread = (self.centres - self.mean).square() + self.widths.square() / 12
        return (self.probabilities * spread).sum(dim=-1, keepdim=True)

    def sample(self, u: Tensor) -> Tensor:
        """Draws targets, (draws, n)."""
        reached = self.probabilities[0].double().cumsum(dim=1)
        found = torch.searchsorted(reached, u[0].T.contiguous()).clamp(max=reached.shape[1] - 1)
        low, width = (t[0].double().gather(1, found) for t in (self.edges[..., :-1], self.widths))
        return (low + u[1].T * width).T

    def shortfall(self, H: Tensor) -> tuple[Tensor, Tensor]:
        """Returns mean and mean square of max(h - y, 0) for predictions H, (B, N, 1) each."""
        low, high = self.edges[..., :-1], self.edges[..., 1:]
        # Of a uniform y: that h is above the ends of its interval, and the part that is below h.
        most, least = (H - low).clamp(min=0), (H - high).clamp(min=0)
        share = self.probabilities * (most - least) / self.widths
        squares = most.square() + most * least + least.square()
        both = ((most + least) / 2, squares / 3)
        first, second = ((share * each).sum(dim=-1, keepdim=True) for each in both)
        return first, second

    def surprise(self, Y: Tensor) -> Tensor:
        """Computes -log p of the intervals that targets (B, N, 1) are in; (B, N)."""
        inner = self.edges[..., 1:-1].contiguous()
        found = torch.searchsorted(inner, Y.contiguous())  # (B, N, 1)
        return -log_softmax(self.logits, dim=-1).gather(-1, found).squeeze(-1)
