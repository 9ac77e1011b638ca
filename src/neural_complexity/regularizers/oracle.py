"""The best penalty there is: the true gap, for scoring others against it."""

from torch import Tensor

from neural_complexity.learners.fit import Learner, Regularizer
from neural_complexity.losses import PointLoss
from neural_complexity.snapshot import Snapshot, gap

__all__ = ["oracle_penalty"]


def oracle_penalty(loss: PointLoss, Y_te: Tensor) -> Regularizer:
    """Returns the true gap to test targets, (B, N, C), so that learners descend their test loss.

    No gap predictor can do better at weight 1 (the paper's "optimal regularizer"), and no learner
    may use it: it looks at the test targets.
    """

    def penalty(_: Learner, snapshot: Snapshot) -> Tensor:
        return gap(loss, snapshot, Y_te)

    return penalty
