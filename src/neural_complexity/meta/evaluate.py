"""Old names of `learners.trajectory`, and NC's gaps of many learners, until all have moved."""

from collections.abc import Iterable

import torch
from torch import Tensor

from neural_complexity.learners.trajectory import CHUNK, Trajectory, train_learners, usable_rows
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.snapshot import Snapshot

__all__ = ["CHUNK", "Trajectory", "follow", "predict_gaps", "usable_tasks"]

follow = train_learners


def usable_tasks(finite: Iterable[Tensor]) -> Tensor:
    """Returns which tasks can be compared between methods, (B,)."""
    return usable_rows(~kept for kept in finite)


@torch.no_grad()
def predict_gaps(nc: NeuralComplexity, snapshot: Snapshot) -> Tensor:
    """Returns the predicted gaps of many learners, (B,); NaN for those that are not finite."""
    predicted = snapshot.H_te.new_full((len(snapshot),), torch.nan)
    fine = (snapshot.H_tr.flatten(1).sum(dim=1) + snapshot.H_te.flatten(1).sum(dim=1)).isfinite()
    for rows in fine.nonzero().squeeze(1).split(CHUNK) if fine.any() else ():
        predicted[rows] = nc.predict(*snapshot[rows].tensors())
    return predicted
