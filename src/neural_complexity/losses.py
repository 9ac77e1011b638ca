"""Losses per point, beliefs about targets, and the expected loss under a belief."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import log_softmax, softmax, softplus

from neural_complexity.points import TensorFields

__all__ = ["LOSSES", "LabelLoss", "Loss", "RealLoss", "cross_entropy", "squared_error", "zero_one"]
__all__ += ["Belief", "Categorical", "Gaussian", "Histogram", "PointLoss"]
__all__ += ["smoothed_cross_entropy", "tilt_odds"]

SURE = 1e-4  # no probability that is tilted is surer than this
PointLoss = Callable[[Tensor, Tensor], Tensor]  # of predictions and targets; one value per point


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


WIDEST = 8.0  # standard deviations from the mean at which a histogram ends


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

    def surprise(self, Y: Tensor) -> Tensor:
        """Computes -log p of the intervals that targets (B, N, 1) are in; (B, N)."""
        inner = self.edges[..., 1:-1].contiguous()
        found = torch.searchsorted(inner, Y.contiguous())  # (B, N, 1)
        return -log_softmax(self.logits, dim=-1).gather(-1, found).squeeze(-1)


class Loss(ABC):
    """L(h, z) for every point, and what it is on average when the target is only believed."""

    name: ClassVar[str]
    labels: ClassVar[bool] = False  # whether targets are labels, (B, N), instead of numbers
    seen: ClassVar[int] = 1  # numbers per output that `features` returns
    answers: ClassVar[int] = 2  # numbers per output that `belief` takes

    @abstractmethod
    def __call__(self, H: Tensor, Y: Tensor) -> Tensor:
        """Computes the loss of predictions H, (B, N, C), for targets Y, as (B, N)."""

    @abstractmethod
    def expected(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes the expected loss of predictions H, (B, N, C), under a belief, as (B, N)."""

    @abstractmethod
    def variance(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes the variance of that loss under the belief, as (B, N)."""

    def belief(self, answers: Tensor, mean: Tensor, scale: Tensor) -> Belief:
        """Returns the belief that answers, (B, N, answers * C), in standard units, stand for."""
        if self.labels:
            return Categorical(answers)
        center, spread = answers.chunk(2, dim=-1)  # (B, N, C)
        # Start certain rather than vague: a large variance hides the error of the mean.
        variance = softplus(spread - 3.0)
        return Gaussian(center * scale + mean, variance * scale.square())

    def supervise(self, belief: Belief, Y: Tensor) -> Tensor:
        """Computes the loss, a scalar, by which a belief learns from targets."""
        if self.labels:
            return cross_entropy(belief.prediction, Y).mean()
        if isinstance(belief, Histogram):
            return belief.surprise(Y).mean()
        return functional.huber_loss(belief.prediction, Y)

    def encode(self, Y: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
        """Returns targets as numbers, (B, M, C): labels as ones and zeros."""
        if not self.labels:
            return Y
        # Not `one_hot`: a graph of it would be for one number of classes.
        return (Y.unsqueeze(-1) == torch.arange(classes, device=Y.device)).to(dtype)

    def features(self, H: Tensor) -> Tensor:
        """Returns what a network sees of predictions (B, N, C), (B, N, C, seen)."""
        if not self.labels:
            return H.unsqueeze(-1)
        # Probabilities tell likely classes apart, their logarithms the others.
        surprise = -log_softmax(H, dim=-1)
        return torch.stack([(-surprise).exp(), surprise.log1p()], dim=-1)

    def constant(self, share: Tensor, smoothing: float) -> Tensor:
        """Returns the prediction that mean encoded targets, (..., C), amount to."""
        # A class that does not occur keeps a probability.
        return (share + smoothing).log() if self.labels else share

    def positive(self, answer: Tensor) -> Tensor:
        """Maps a network's answer to a loss, which is never negative."""
        if self.labels:
            # Squareplus: most labels cost next to nothing, where the gradient of softplus vanishes.
            return 0.5 * (answer + (answer.square() + 4).sqrt())
        return softplus(answer)

    def unit(self, scale: Tensor) -> Tensor:
        """Returns the size of a loss, a scalar, for targets of a scale (C,); 1 for labels."""
        return scale.new_ones(()) if self.labels else scale.square().mean()


class RealLoss(Loss):
    """A loss of real targets, (B, N, C), believed to be Gaussian."""


class LabelLoss(Loss):
    """A loss of logits, (B, N, C), for labels 0 ... C - 1, int64 (B, N)."""

    labels, seen, answers = True, 2, 1


_NUMBERS = "a squared error needs a belief about real targets"


class SquaredError(RealLoss):
    """The squared error (h - y)^2, averaged over outputs."""

    name = "squared_error"

    def __call__(self, H: Tensor, Y: Tensor) -> Tensor:
        if H.shape != Y.shape:
            shapes = f"{tuple(H.shape)} against {tuple(Y.shape)}"
            raise ValueError(f"predictions must have the shape of the targets, got {shapes}")
        return (H - Y).square().mean(dim=-1)

    def expected(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes E (h - y)^2 = (h - mean)^2 + variance per point."""
        assert isinstance(belief, Gaussian | Histogram), _NUMBERS
        return ((H - belief.mean).square() + belief.variance).mean(dim=-1)

    def variance(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes Var (h - y)^2; 4 variance (h - mean)^2 + 2 variance^2 of a Gaussian."""
        assert isinstance(belief, Gaussian | Histogram), _NUMBERS
        if isinstance(belief, Histogram):
            p, off, w = belief.probabilities, (H - belief.centres).square(), belief.widths.square()
            fourth = (p * (off.square() + off * w / 2 + w.square() / 80)).sum(dim=-1)
            second: Tensor = (p * (off + w / 12)).sum(dim=-1)
            return (fourth - second.square()).clamp(min=0)
        v = belief.variance
        each = 4 * v * (H - belief.mean).square() + 2 * v.square()  # (B, N, C)
        return each.mean(dim=-1) / H.shape[-1]


class CrossEntropy(LabelLoss):
    """The cross-entropy -log p_h(y) of logits and labels."""

    name = "cross_entropy"

    def __call__(self, H: Tensor, Y: Tensor, smoothing: float = 0.0) -> Tensor:
        _check_labels(H, Y)
        H = H.movedim(-1, 1)  # (B, C, N)
        return functional.cross_entropy(H, Y, reduction="none", label_smoothing=smoothing)

    def expected(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes -sum_c p(c) log p_h(c) per point."""
        return -(_probabilities(H, belief) * log_softmax(H, dim=-1)).sum(dim=-1)

    def variance(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes Var -log p_h(y) per point."""
        p, losses = _probabilities(H, belief), -log_softmax(H, dim=-1)  # (B, N, C)
        error = losses - (p * losses).sum(dim=-1, keepdim=True)
        return (p * error.square()).sum(dim=-1)


class ZeroOne(LabelLoss):
    """1 where the class of the largest logit is wrong, else 0. Has no gradient to train by."""

    name = "zero_one"

    def __call__(self, H: Tensor, Y: Tensor) -> Tensor:
        _check_labels(H, Y)
        return (H.argmax(dim=-1) != Y).to(H.dtype)

    def expected(self, H: Tensor, belief: Belief) -> Tensor:
        chosen = H.argmax(dim=-1, keepdim=True)  # (B, N, 1)
        return 1 - _probabilities(H, belief).gather(-1, chosen).squeeze(-1)

    def variance(self, H: Tensor, belief: Belief) -> Tensor:
        wrong = self.expected(H, belief)
        return wrong * (1 - wrong)


def _check_labels(H: Tensor, Y: Tensor) -> None:
    if H.shape[:-1] != Y.shape or Y.dtype != torch.int64:
        wanted = "whole numbers of type torch.int64, one for each row of logits"
        got = f"{tuple(Y.shape)} {Y.dtype} for logits {tuple(H.shape)}"
        raise ValueError(f"labels must be {wanted}, got {got}")
    if torch.compiler.is_compiling():
        return  # a graph cannot depend on values
    low, high = torch.aminmax(Y)
    if low < 0 or high >= H.shape[-1]:
        raise ValueError(f"labels must be from 0 to {H.shape[-1] - 1}, got {low} to {high}")


def _probabilities(H: Tensor, belief: Belief) -> Tensor:
    assert isinstance(belief, Categorical), "logits need a belief about labels"
    p, C = belief.probabilities, H.shape[-1]
    if p.shape[-1] != C:
        wanted = f"of the {p.shape[-1]} classes that are believed in"
        raise ValueError(f"logits must be {wanted}, got {C}")
    return p


squared_error, cross_entropy, zero_one = SquaredError(), CrossEntropy(), ZeroOne()


def smoothed_cross_entropy(smoothing: float) -> PointLoss:
    """Returns the loss for labels mixed with a share of the uniform one (Szegedy et al. 2016)."""
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing must be from 0 to 1, got {smoothing}")
    return partial(cross_entropy, smoothing=smoothing)


# What NC can be made for, by name.
LOSSES: dict[str, Loss] = {loss.name: loss for loss in (squared_error, cross_entropy)}
