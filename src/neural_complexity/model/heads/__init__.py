"""What every head of NC does; heads are one file each, and a new file here is a new head."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar

from torch import Tensor, nn

from neural_complexity.beliefs import Belief
from neural_complexity.losses import LOSSES
from neural_complexity.model.architecture import Architecture
from neural_complexity.model.attention import SetNetwork

__all__ = ["FOR_LABELS", "HEADS", "Context", "Head", "Sets"]

FOR_LABELS = {"bilinear": True, "metric": True, "rounds": 3}  # works for both heads


@dataclass(frozen=True)
class Sets:
    """The part of NC's input that does not depend on h."""

    X_tr: Tensor  # (B, M, D), standardized, or embeddings of images
    T_tr: Tensor  # (B, M, C), encoded targets, standardized unless they are labels
    X_te: Tensor  # (B, N, D)
    Y_tr: Tensor  # (B, M, C), or labels, (B, M), as given
    y_mean: Tensor  # (C,)
    y_scale: Tensor  # (C,)


@dataclass(frozen=True)
class Context:
    """Everything about B tasks that NC needs to predict the losses of any h on them."""

    Y_tr: Tensor  # (B, M, C), or labels, (B, M)
    state: Any  # of the head
    X_tr: Tensor | None = None  # the training inputs, if h must still be asked about them


class Head(nn.Module, ABC):
    """Predicts the loss of h at each test point; `features` are those of an embedded input."""

    name: ClassVar[str]
    sees_predictions: ClassVar[bool]  # whether `losses` depends on predictions at training points
    for_labels: ClassVar[Mapping[str, Any]]  # the architecture that works for labels
    network: SetNetwork

    @abstractmethod
    def __init__(self, architecture: Architecture, features: int) -> None:
        super().__init__()
        a, self.architecture, self.loss = architecture, architecture, LOSSES[architecture.loss]
        if a.pool_first and not self.sees_predictions:
            why = "which answers per point"
            raise ValueError(f"pool_first must be off for the posterior head, {why}")
        if a.vote and not self.loss.labels:
            raise ValueError("vote must be off for real targets, which have no classes")
        if a.loss_conditioning and not (self.sees_predictions and self.loss.labels):
            raise ValueError("loss_conditioning must be off but for the direct head on labels")
        self.targets = 1 if a.symmetric else a.outputs  # that the network is asked about at a time

    @abstractmethod
    def encode(self, sets: Sets) -> Any:
        """Returns all that does not depend on h; unless the head `sees_predictions`, a belief."""

    @abstractmethod
    def losses(self, state: Any, H_tr: Tensor, H_te: Tensor) -> Tensor:
        """Predicts the loss of each test point, (B, N), for H_tr, (B, M, C), and H_te."""

    def belief(self, state: Any) -> Belief | None:
        """Returns p(y | x, S) at the test points, if the state is one."""
        return None if self.sees_predictions else state

    def supervise(self, state: Any, Y_te: Tensor) -> Tensor | None:
        """Computes a loss by which the state learns from test targets, a scalar, if it can."""
        belief = self.belief(state)
        return None if belief is None else self.loss.supervise(belief, Y_te)


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

HEADS: dict[str, type[Head]] = {head.name: head for head in Head.__subclasses__()}
