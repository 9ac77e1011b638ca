"""Losses per point, and the expected loss under a belief about the target."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import log_softmax, softplus

from neural_complexity.beliefs import Belief, Categorical, Gaussian, Histogram

__all__ = ["LOSSES", "LabelLoss", "Loss", "PinballLoss", "PointLoss", "RealLoss"]
__all__ += ["absolute_error", "cross_entropy", "smoothed_cross_entropy", "squared_error"]
__all__ += ["zero_one"]

PointLoss = Callable[[Tensor, Tensor], Tensor]  # of predictions and targets; one value per point


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


class SquaredError(RealLoss):
    """The squared error (h - y)^2, averaged over outputs."""

    name = "squared_error"

    def __call__(self, H: Tensor, Y: Tensor) -> Tensor:
        return _errors(H, Y).square().mean(dim=-1)

    def expected(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes E (h - y)^2 = (h - mean)^2 + variance per point."""
        belief = _of_numbers(belief)
        return ((H - belief.mean).square() + belief.variance).mean(dim=-1)

    def variance(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes Var (h - y)^2; 4 variance (h - mean)^2 + 2 variance^2 of a Gaussian."""
        belief = _of_numbers(belief)
        if isinstance(belief, Histogram):
            p, off, w = belief.probabilities, (H - belief.centres).square(), belief.widths.square()
            fourth = (p * (off.square() + off * w / 2 + w.square() / 80)).sum(dim=-1)
            second: Tensor = (p * (off + w / 12)).sum(dim=-1)
            return (fourth - second.square()).clamp(min=0)
        v = belief.variance
        each = 4 * v * (H - belief.mean).square() + 2 * v.square()  # (B, N, C)
        return each.mean(dim=-1) / H.shape[-1]


class PinballLoss(RealLoss):
    """The loss of a quantile, factor * max(q (y - h), (q - 1) (y - h)), averaged over outputs.

    Args:
        quantile: q, between 0 and 1; the best prediction is this quantile of the target.
        factor: With q = 1/2 and 2, this is the absolute error.
    """

    name = "pinball"

    def __init__(self, quantile: float, factor: float = 1.0) -> None:
        if not 0 < quantile < 1:
            raise ValueError(f"quantile must be between 0 and 1, got {quantile}")
        self.quantile, self.factor = quantile, factor

    def __call__(self, H: Tensor, Y: Tensor) -> Tensor:
        """Computes the loss of predictions H, (B, N, C), for targets Y, as (B, N)."""
        above = -_errors(H, Y)
        each = torch.maximum(self.quantile * above, (self.quantile - 1) * above)
        return self.factor * each.mean(dim=-1)

    def expected(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes q (mean - h) + E max(h - y, 0) per point."""
        belief = _of_numbers(belief)
        below, _ = belief.shortfall(H)
        return self.factor * (self.quantile * (belief.mean - H) + below).mean(dim=-1)

    def variance(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes the variance from the mean squares on both sides of h; outputs are apart."""
        belief, q = _of_numbers(belief), self.quantile
        first, below = belief.shortfall(H)
        above = (belief.variance + (H - belief.mean).square() - below).clamp(min=0)
        means = q * (belief.mean - H) + first  # (B, N, C)
        each = (q**2 * above + (1 - q) ** 2 * below - means.square()).clamp(min=0)
        return self.factor**2 * each.mean(dim=-1) / H.shape[-1]

    def unit(self, scale: Tensor) -> Tensor:
        """Returns the size of a loss, a scalar: that of y, not of its square."""
        return scale.mean()


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


def _errors(H: Tensor, Y: Tensor) -> Tensor:
    if H.shape != Y.shape:
        shapes = f"{tuple(H.shape)} against {tuple(Y.shape)}"
        raise ValueError(f"predictions must have the shape of the targets, got {shapes}")
    return H - Y


def _of_numbers(belief: Belief) -> Gaussian | Histogram:
    assert isinstance(belief, Gaussian | Histogram), "numbers need a belief about real targets"
    return belief


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


squared_error, absolute_error = SquaredError(), PinballLoss(0.5, factor=2.0)
cross_entropy, zero_one = CrossEntropy(), ZeroOne()


def smoothed_cross_entropy(smoothing: float) -> PointLoss:
    """Returns the loss for labels mixed with a share of the uniform one (Szegedy et al. 2016)."""
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing must be from 0 to 1, got {smoothing}")
    return partial(cross_entropy, smoothing=smoothing)


# What NC can be made for, by name.
LOSSES: dict[str, Loss] = {loss.name: loss for loss in (squared_error, cross_entropy)}
