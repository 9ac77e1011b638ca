"""Our head: a belief about the targets, and the expected loss of h under it."""

from typing import ClassVar

from torch import Tensor

from neural_complexity.losses import Belief
from neural_complexity.model.architecture import Architecture
from neural_complexity.model.attention import SetNetwork
from neural_complexity.model.heads import FOR_LABELS, Head, Sets

__all__ = ["PosteriorHead"]


class PosteriorHead(Head):
    """The network sees x alone and answers with p(y | x, S); its state is that belief.

    With `symmetric`, the network is asked about each class by itself: no class is then special, and
    there can be any number of them.
    """

    name, sees_predictions = "posterior", False
    for_labels: ClassVar = {**FOR_LABELS, "symmetric": True, "vote": True}

    def __init__(self, architecture: Architecture, features: int) -> None:
        super().__init__(architecture, features)
        outputs = self.loss.answers * self.targets
        self.network = SetNetwork(features, self.targets, outputs, architecture)

    def encode(self, sets: Sets) -> Belief:
        """Returns the belief at the test points, in the targets' own units."""
        symmetric = self.architecture.symmetric
        T_tr = sets.T_tr.unsqueeze(-1) if symmetric else sets.T_tr
        answers = self.network(sets.X_tr, T_tr, sets.X_te)
        answers = answers.squeeze(-1) if symmetric else answers
        return self.loss.belief(answers, sets.y_mean, sets.y_scale)

    def losses(self, state: Belief, H_tr: Tensor, H_te: Tensor) -> Tensor:  # noqa: ARG002
        """Computes the expected loss under the belief, (B, N)."""
        return self.loss.expected(H_te, state)
