"""Losses per point, and their expectation and variance under a belief about the target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy as torch_cross_entropy
from torch.nn.functional import log_softmax, one_hot, softmax

__all__ = [
    "LOSSES",
    "Belief",
    "Categorical",
    "CrossEntropy",
    "Gaussian",
    "Loss",
    "PointLoss",
    "SmoothedCrossEntropy",
    "SquaredError",
    "ZeroOne",
    "cross_entropy",
    "join",
    "squared_error",
    "zero_one",
]


@dataclass(frozen=True)
class Gaussian:
    """A belief about real targets: an independent normal distribution per point and output."""

    mean: Tensor  # (B, N, C)
    variance: Tensor  # (B, N, C)

    @property
    def prediction(self) -> Tensor:
        """What to predict, (B, N, C), if the belief is all there is."""
        return self.mean

    def apply(self, change: Callable[[Tensor], Tensor]) -> "Gaussian":
        """Chooses or moves points: changes mean and variance alike."""
        return Gaussian(change(self.mean), change(self.variance))


@dataclass(frozen=True)
class Categorical:
    """A belief about labels: a probability for each class, given as unnormalised logarithms."""

    logits: Tensor  # (B, N, C)

    @property
    def prediction(self) -> Tensor:
        """What to predict, (B, N, C), if the belief is all there is."""
        return self.logits

    @property
    def probabilities(self) -> Tensor:
        """The probability of each class, (B, N, C)."""
        return softmax(self.logits, dim=-1)

    def apply(self, change: Callable[[Tensor], Tensor]) -> "Categorical":
        """Chooses or moves points: changes the logits."""
        return Categorical(change(self.logits))


Belief = Gaussian | Categorical


def join(beliefs: Sequence[Belief]) -> Belief:
    """Puts beliefs of one kind about the points of the same tasks one after another."""
    if isinstance(beliefs[0], Categorical):
        return Categorical(torch.cat([b.logits for b in beliefs if isinstance(b, Categorical)], 1))
    whole = [b for b in beliefs if isinstance(b, Gaussian)]
    return Gaussian(
        torch.cat([b.mean for b in whole], dim=1), torch.cat([b.variance for b in whole], dim=1)
    )


PointLoss = Callable[[Tensor, Tensor], Tensor]  # of predictions and targets; one value per point


class Loss(Protocol):
    """L(h, z) for every point, and what it is on average when the target is only believed."""

    name: str

    def __call__(self, H: Tensor, Y: Tensor) -> Tensor:
        """Computes the loss of predictions H, (B, N, C), for targets Y, as (B, N)."""
        ...

    def expected(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes the expected loss of predictions H, (B, N, C), under a belief, as (B, N)."""
        ...

    def variance(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes the variance of that loss under the belief, as (B, N)."""
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

    def expected(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes E (h - y)^2 = (h - mean)^2 + variance per point.

        Args:
            H: Predictions, (B, N, C).
            belief: The distribution of y.

        Returns:
            One value per point, (B, N).
        """
        assert isinstance(belief, Gaussian), "a squared error needs a belief about real targets"
        return ((H - belief.mean).square() + belief.variance).mean(dim=-1)

    def variance(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes Var (h - y)^2 = 4 variance (h - mean)^2 + 2 variance^2 per point.

        Args:
            H: Predictions, (B, N, C).
            belief: The distribution of y, whose outputs are independent.

        Returns:
            One value per point, (B, N).
        """
        assert isinstance(belief, Gaussian), "a squared error needs a belief about real targets"
        v = belief.variance
        each = 4 * v * (H - belief.mean).square() + 2 * v.square()  # (B, N, C)
        return each.mean(dim=-1) / H.shape[-1]


class CrossEntropy:
    """The cross-entropy of logits and labels."""

    name = "cross_entropy"

    def __call__(self, H: Tensor, Y: Tensor) -> Tensor:
        """Computes -log p_h(y) per point.

        Args:
            H: Logits, (B, N, C).
            Y: Labels, whole numbers from 0 to C - 1, (B, N).

        Returns:
            One value per point, (B, N).

        Raises:
            ValueError: If the shapes do not fit.
        """
        _check_labels(H, Y)
        return torch_cross_entropy(H.movedim(-1, 1), Y, reduction="none")

    def expected(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes E -log p_h(y) = -sum_c p(c) log p_h(c) per point.

        Args:
            H: Logits, (B, N, C).
            belief: The distribution of y, over as many classes.

        Returns:
            One value per point, (B, N).
        """
        return -(_probabilities(H, belief) * log_softmax(H, dim=-1)).sum(dim=-1)

    def variance(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes Var -log p_h(y) = sum_c p(c) (log p_h(c) - E log p_h(y))^2 per point.

        Args:
            H: Logits, (B, N, C).
            belief: The distribution of y, over as many classes.

        Returns:
            One value per point, (B, N).
        """
        losses = -log_softmax(H, dim=-1)  # (B, N, C)
        error = losses - self.expected(H, belief).unsqueeze(-1)
        return (_probabilities(H, belief) * error.square()).sum(dim=-1)


@dataclass(frozen=True)
class SmoothedCrossEntropy:
    """The cross-entropy of logits and labels that are mixed with the uniform distribution.

    Args:
        smoothing: The share of the uniform distribution, from 0 to 1 (Szegedy et al., 2016).
    """

    smoothing: float
    name = "smoothed_cross_entropy"

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing <= 1:
            raise ValueError(f"smoothing must be from 0 to 1, got {self.smoothing}")

    def __call__(self, H: Tensor, Y: Tensor) -> Tensor:
        """Computes -(1 - smoothing) log p_h(y) - smoothing mean_c log p_h(c) per point.

        Args:
            H: Logits, (B, N, C).
            Y: Labels, whole numbers from 0 to C - 1, (B, N).

        Returns:
            One value per point, (B, N).

        Raises:
            ValueError: If the shapes do not fit.
        """
        _check_labels(H, Y)
        return torch_cross_entropy(
            H.movedim(-1, 1), Y, reduction="none", label_smoothing=self.smoothing
        )

    def expected(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes the same with log p_h(y) in expectation, per point.

        Args:
            H: Logits, (B, N, C).
            belief: The distribution of y, over as many classes.

        Returns:
            One value per point, (B, N).
        """
        probabilities = _probabilities(H, belief)
        smoothed = torch.lerp(
            probabilities,
            torch.full_like(probabilities, 1 / H.shape[-1]),
            self.smoothing,
        )  # (B, N, C)
        return -(smoothed * log_softmax(H, dim=-1)).sum(dim=-1)

    def variance(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes (1 - smoothing)^2 Var -log p_h(y) per point: the rest does not depend on y.

        Args:
            H: Logits, (B, N, C).
            belief: The distribution of y, over as many classes.

        Returns:
            One value per point, (B, N).
        """
        return (1 - self.smoothing) ** 2 * cross_entropy.variance(H, belief)


class ZeroOne:
    """The share of wrong labels; one minus it is the accuracy. Has no gradient to train by."""

    name = "zero_one"

    def __call__(self, H: Tensor, Y: Tensor) -> Tensor:
        """Tells per point whether the class of the largest logit is wrong.

        Args:
            H: Logits, (B, N, C).
            Y: Labels, (B, N).

        Returns:
            1 where it is wrong, else 0, (B, N).
        """
        _check_labels(H, Y)
        return (H.argmax(dim=-1) != Y).to(H.dtype)

    def expected(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes the probability that the class of the largest logit is wrong, (B, N).

        Args:
            H: Logits, (B, N, C).
            belief: The distribution of y, over as many classes.
        """
        chosen = one_hot(H.argmax(dim=-1), H.shape[-1]).to(H.dtype)  # (B, N, C)
        return 1 - (chosen * _probabilities(H, belief)).sum(dim=-1)

    def variance(self, H: Tensor, belief: Belief) -> Tensor:
        """Computes the variance of being wrong, p (1 - p), (B, N).

        Args:
            H: Logits, (B, N, C).
            belief: The distribution of y, over as many classes.
        """
        wrong = self.expected(H, belief)
        return wrong * (1 - wrong)


def _check_labels(H: Tensor, Y: Tensor) -> None:
    if H.shape[:-1] != Y.shape or Y.dtype != torch.int64:
        raise ValueError(
            "labels must be whole numbers of type torch.int64, one for each row of logits, got "
            f"{tuple(Y.shape)} {Y.dtype} for logits {tuple(H.shape)}"
        )
    if torch.compiler.is_compiling():
        return  # a graph cannot depend on values
    low, high = torch.aminmax(Y)
    if low < 0 or high >= H.shape[-1]:
        raise ValueError(
            f"labels must be from 0 to {H.shape[-1] - 1}, got {int(low)} to {int(high)}"
        )


def _probabilities(H: Tensor, belief: Belief) -> Tensor:
    assert isinstance(belief, Categorical), "logits need a belief about labels"
    probabilities = belief.probabilities
    if probabilities.shape[-1] != H.shape[-1]:
        raise ValueError(
            f"logits must be of the {probabilities.shape[-1]} classes that are believed in, got "
            f"{H.shape[-1]}"
        )
    return probabilities


squared_error, cross_entropy, zero_one = SquaredError(), CrossEntropy(), ZeroOne()

# What learners can be trained by, by name.
LOSSES: dict[str, Loss] = {loss.name: loss for loss in (squared_error, cross_entropy)}
