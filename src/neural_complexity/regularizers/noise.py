"""Layers that add noise while a learner trains, and none when it is evaluated."""

import torch
from torch import Tensor, nn

from neural_complexity.learners.batched import BatchedLearner, PlacedLearner
from neural_complexity.learners.fit import Learner, Regularizer
from neural_complexity.snapshot import Snapshot

__all__ = ["VariationalDropout", "variational_penalty"]

# Kingma, Salimans and Welling (2015), Eq. (14): a cubic approximation for alpha <= 1.
CUBIC = (1.16145124, -1.50204118, 0.58629921)
RHO = "dropout_rho"


class VariationalDropout(nn.Module):
    """Multiplies by noise from N(1, alpha), with an alpha = sigmoid(rho) per unit that is learned.

    Its penalty, `variational_penalty`, belongs to it: without it alpha shrinks to nothing.

    Args:
        units: The number of units, E.
        alpha: Where the variance of the noise starts, below 1.
    """

    def __init__(self, units: int, *, alpha: float = 0.5) -> None:
        super().__init__()
        if not 0 < alpha < 1:
            raise ValueError(f"alpha must be between 0 and 1, got {alpha}")
        self.register_parameter(RHO, nn.Parameter(torch.full((units,), alpha).logit()))

    def forward(self, X: Tensor) -> Tensor:
        """Adds noise to (..., E) in training, nothing in evaluation."""
        if not self.training:
            return X
        alpha: Tensor = getattr(self, RHO).sigmoid()
        return X * (1 + alpha.sqrt() * torch.randn_like(X))


def variational_penalty(*, weight: float = 1.0) -> Regularizer:
    """Returns the penalty weight * KL(posterior | prior) / M of learners with `VariationalDropout`.

    With the squared error as -log p(y | x) of a normal y with variance 1/2 this is the bound of
    Kingma et al. (2015), per training point, up to a constant.
    """

    def penalty(h: Learner, snapshot: Snapshot) -> Tensor:
        named = h.state() if isinstance(h, BatchedLearner | PlacedLearner) else {}
        found = [value for name, value in named.items() if name.split(".")[-1] == RHO]
        if not found:
            raise ValueError("learners must have VariationalDropout layers, got none")
        alpha = torch.cat(found, dim=1).sigmoid()  # (B, units of all layers)
        c1, c2, c3 = CUBIC
        minus_KL = 0.5 * alpha.log() + alpha * (c1 + alpha * (c2 + alpha * c3))
        return -weight * minus_KL.sum(dim=1) / snapshot.X_tr.shape[1]

    return penalty
