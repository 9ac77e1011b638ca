"""What every head of NC does."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from neural_complexity.losses import Belief
from neural_complexity.model.architecture import Architecture
from neural_complexity.model.set_network import SetNetwork

__all__ = ["Head", "Sets"]


@dataclass(frozen=True)
class Sets:
    """The part of NC's input that does not depend on h."""

    X_tr: Tensor  # (B, M, D), standardized, or embeddings of images
    T_tr: Tensor  # (B, M, C), encoded targets, standardized unless they are labels
    X_te: Tensor  # (B, N, D)
    Y_tr: Tensor  # (B, M, C), or labels, (B, M), as given
    y_mean: Tensor  # (C,)
    y_scale: Tensor  # (C,)


class Head(nn.Module, ABC):
    """Predicts the loss of h at each test point.

    Args:
        architecture: NC's sizes and switches.
        features: Features of an embedded input.
    """

    name: ClassVar[str]
    sees_predictions: ClassVar[bool]  # whether `losses` depends on predictions at training points
    for_labels: ClassVar[Mapping[str, Any]]  # the architecture that works for labels

    network: SetNetwork

    @abstractmethod
    def __init__(self, architecture: Architecture, features: int) -> None:
        super().__init__()
        self.symmetric, self.loss = architecture.symmetric, architecture.the_loss

    @abstractmethod
    def encode(self, sets: Sets) -> Any:
        """Returns a state: all that does not depend on h, in a form of the head's own."""

    @abstractmethod
    def losses(self, state: Any, H_tr: Tensor, H_te: Tensor) -> Tensor:
        """Predicts the loss of each test point, (B, N).

        Args:
            state: From `encode`.
            H_tr: Predictions at the training points, (B, M, C), if the head sees them.
            H_te: Predictions at the test points, (B, N, C).
        """

    def supervise(self, state: Any, Y_te: Tensor) -> Tensor | None:
        """Computes a loss by which the state learns from test targets, a scalar, if it can."""
        belief = self.belief(state)
        return None if belief is None else belief.supervise(Y_te)

    def belief(self, state: Any) -> Belief | None:  # noqa: ARG002
        """Returns p(y | x, S) at the test points, if the head has a belief."""
        return None

    @abstractmethod
    def select(self, state: Any, change: Callable[[Tensor], Tensor]) -> Any:
        """Returns the state of other test points: `change` maps (B, N, ...) to (B, n, ...)."""

    @abstractmethod
    def join(self, states: Sequence[Any]) -> Any:
        """Concatenates states of the same tasks along their test points."""
