"""Our head: a belief about the targets, and the expected loss of h under it."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from torch import Tensor

from neural_complexity.losses import Belief
from neural_complexity.model.architecture import Architecture
from neural_complexity.model.heads.base import Head, Sets
from neural_complexity.model.set_network import SetNetwork

__all__ = ["PosteriorHead"]


class PosteriorHead(Head):
    """The network sees x alone and answers with p(y | x, S); its state is that belief.

    With `symmetric`, the network is asked about each class by itself: no class is then special, and
    there can be any number of them.
    """

    name = "posterior"
    sees_predictions = False
    for_labels: ClassVar = {
        "symmetric": True,
        "bilinear": True,
        "metric": True,
        "rounds": 3,
        "vote": True,
    }

    def __init__(self, architecture: Architecture, features: int) -> None:
        super().__init__(architecture, features)
        a = architecture
        if a.pool_first:
            raise ValueError(
                "pool_first must be off for the posterior head, which answers per point"
            )
        if a.vote and not self.loss.labels:
            raise ValueError("vote must be off but for the posterior head on labels")
        if a.loss_conditioning:
            raise ValueError("loss_conditioning must be off but for the direct head on labels")
        self.network = SetNetwork(features, a.targets, self.loss.answers * a.targets, a)

    def encode(self, sets: Sets) -> Belief:
        """Returns the belief at the test points, in the targets' own units."""
        T_tr = sets.T_tr.unsqueeze(-1) if self.symmetric else sets.T_tr
        answers = self.network(sets.X_tr, T_tr, sets.X_te)
        answers = answers.squeeze(-1) if self.symmetric else answers
        return self.loss.belief(answers, sets.y_mean, sets.y_scale)

    def losses(self, state: Belief, H_tr: Tensor, H_te: Tensor) -> Tensor:  # noqa: ARG002
        """Computes the expected loss under the belief, (B, N)."""
        return self.loss.expected(H_te, state)

    def belief(self, state: Belief) -> Belief:
        """Returns the state itself."""
        return state

    def select(self, state: Belief, change: Callable[[Tensor], Tensor]) -> Belief:
        """Returns the belief at other test points."""
        return state.apply(change)

    def join(self, states: Sequence[Belief]) -> Belief:
        """Concatenates beliefs."""
        return states[0].join(states)
