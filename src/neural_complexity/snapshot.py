"""What NC may see of a learner, and the generalization gap it should predict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.losses import PointLoss
from neural_complexity.points import join
from neural_complexity.task import Task, check_sets

__all__ = ["Snapshot", "gap", "point_gaps", "take_snapshot"]


@dataclass(frozen=True)
class Snapshot:
    """What NC may see of B learners. There is no Y_te here, so test labels cannot leak into NC."""

    X_tr: Tensor  # (B, M, D)
    Y_tr: Tensor  # (B, M, C)
    H_tr: Tensor  # (B, M, C)
    X_te: Tensor  # (B, N, D)
    H_te: Tensor  # (B, N, C)

    def __post_init__(self) -> None:
        check_sets(X_tr=self.X_tr, Y_tr=self.Y_tr, H_tr=self.H_tr, X_te=self.X_te, H_te=self.H_te)

    def __len__(self) -> int:
        return self.X_tr.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> "Snapshot":
        return Snapshot(*(tensor[rows] for tensor in self.tensors()))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Returns the five tensors in the order of `NeuralComplexity.predict`."""
        return self.X_tr, self.Y_tr, self.H_tr, self.X_te, self.H_te

    def named(self) -> dict[str, Tensor]:
        """Returns the five tensors by name."""
        return dict(zip(("X_tr", "Y_tr", "H_tr", "X_te", "H_te"), self.tensors(), strict=True))

    def part(self, train: Tensor, test: Tensor) -> "Snapshot":
        """Returns the learners on some training and some test points, given by position."""
        return Snapshot(
            self.X_tr[:, train],
            self.Y_tr[:, train],
            self.H_tr[:, train],
            self.X_te[:, test],
            self.H_te[:, test],
        )

    def finite(self) -> Tensor:
        """Returns which learners' predictions are all finite, (B,)."""
        fine = [H.isfinite().flatten(1).all(dim=1) for H in (self.H_tr, self.H_te)]
        return fine[0] & fine[1]

    @staticmethod
    def join(snapshots: Sequence["Snapshot"]) -> "Snapshot":
        """Concatenates learners on sets of the same sizes."""
        columns = zip(*(snapshot.tensors() for snapshot in snapshots), strict=True)
        return Snapshot(*map(join, columns))

    def to(self, device: torch.device | str) -> "Snapshot":
        """Moves the tensors to a device."""
        return Snapshot(*(tensor.to(device) for tensor in self.tensors()))

    def detach(self) -> "Snapshot":
        """Cuts the predictions from the learners that made them."""
        return Snapshot(self.X_tr, self.Y_tr, self.H_tr.detach(), self.X_te, self.H_te.detach())


def take_snapshot(h: Callable[[Tensor], Tensor], task: Task, *, joined: bool = False) -> Snapshot:
    """Records B learners on their B tasks, as they are now.

    Args:
        h: The learners; maps inputs (B, points, D) to predictions (B, points, C).
        task: The tasks. The test targets are not looked at.
        joined: Whether to ask about both sets in one call, which is faster where h is no more than
            a function of each point: a learner may use batch statistics.

    Returns:
        The snapshot, still attached to the learners' parameters.
    """
    if joined:
        M, N = task.X_tr.shape[1], task.X_te.shape[1]
        H_tr, H_te = h(join([task.X_tr, task.X_te], dim=1)).split([M, N], dim=1)
    else:
        H_tr, H_te = h(task.X_tr), h(task.X_te)
    return Snapshot(task.X_tr, task.Y_tr, H_tr, task.X_te, H_te)


def point_gaps(loss: PointLoss, snapshot: Snapshot, Y_te: Tensor) -> Tensor:
    """Computes each test point's loss minus the learner's training loss.

    Args:
        loss: The loss per point.
        snapshot: The learners' predictions on both sets.
        Y_te: Test targets, (B, N, C).

    Returns:
        One value per test point, (B, N), whose mean over points is the gap.
    """
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
