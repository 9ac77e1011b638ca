"""What NC may see of a learner, and the generalization gap it should predict."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from neural_complexity.losses import PointLoss
from neural_complexity.points import join
from neural_complexity.task import PointSets, Task

__all__ = ["Snapshot", "gap", "point_gaps", "take_snapshot"]


@dataclass(frozen=True)
class Snapshot(PointSets):
    """What NC may see of B learners. There is no Y_te here, so test labels cannot leak into NC."""

    X_tr: Tensor  # (B, M, D)
    Y_tr: Tensor  # (B, M, C)
    H_tr: Tensor  # (B, M, C)
    X_te: Tensor  # (B, N, D)
    H_te: Tensor  # (B, N, C)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Returns the five tensors in the order of `NeuralComplexity.predict`."""
        return self.X_tr, self.Y_tr, self.H_tr, self.X_te, self.H_te

    def part(self, train: Tensor, test: Tensor) -> "Snapshot":
        """Returns the learners on some training and some test points, given by position."""
        tr, te = (slice(None), train), (slice(None), test)
        return Snapshot(self.X_tr[tr], self.Y_tr[tr], self.H_tr[tr], self.X_te[te], self.H_te[te])

    def finite(self) -> Tensor:
        """Returns which learners' predictions are all finite, (B,)."""
        return torch.cat([self.H_tr, self.H_te], dim=1).isfinite().flatten(1).all(dim=1)

    def detach(self) -> "Snapshot":
        """Cuts the predictions from the learners that made them."""
        return replace(self, H_tr=self.H_tr.detach(), H_te=self.H_te.detach())


def take_snapshot(h: Callable[[Tensor], Tensor], task: Task, *, joined: bool = False) -> Snapshot:
    """Records B learners on their B tasks, as they are now, attached to their parameters.

    Args:
        h: The learners; maps inputs (B, points, D) to predictions (B, points, C).
        task: The tasks. The test targets are not looked at.
        joined: Whether to ask about both sets in one call, which is faster where h is no more than
            a function of each point: a learner may use batch statistics.
    """
    X_tr, X_te = task.X_tr, task.X_te
    if joined:
        H_tr, H_te = h(join([X_tr, X_te], dim=1)).split([X_tr.shape[1], X_te.shape[1]], dim=1)
    else:
        H_tr, H_te = h(X_tr), h(X_te)
    return Snapshot(X_tr, task.Y_tr, H_tr, X_te, H_te)


def point_gaps(loss: PointLoss, snapshot: Snapshot, Y_te: Tensor) -> Tensor:
    """Computes each test point's loss minus the learner's training loss, (B, N)."""
    loss_tr = loss(snapshot.H_tr, snapshot.Y_tr).mean(dim=1, keepdim=True)  # (B, 1)
    return loss(snapshot.H_te, Y_te) - loss_tr


def gap(loss: PointLoss, snapshot: Snapshot, Y_te: Tensor) -> Tensor:
    """Computes the generalization gap of each learner: test loss minus training loss, Eq. (2).

    Args:
        loss: The loss per point.
        snapshot: The learners' predictions on both sets.
        Y_te: Test targets, (B, N, C).

    Returns:
        The gap, (B,). Positive means the learner overfits.

    Example:
        >>> from neural_complexity.losses import squared_error
        >>> zeros, ones = torch.zeros(1, 2, 1), torch.ones(1, 3, 1)
        >>> gap(squared_error, Snapshot(zeros, zeros, zeros, ones, ones), 3 * ones)
        tensor([4.])
    """
    return point_gaps(loss, snapshot, Y_te).mean(dim=1)
