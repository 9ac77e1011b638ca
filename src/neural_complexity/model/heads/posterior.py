"""Our head: a belief about the targets, and the expected loss of h under it."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from neural_complexity.beliefs import Belief, Histogram
from neural_complexity.model.architecture import Architecture
from neural_complexity.model.attention import SetNetwork
from neural_complexity.model.heads import FOR_LABELS, Head, Sets
from neural_complexity.model.table_network import CONSTANT, TableNetwork

__all__ = ["PosteriorHead"]


class PosteriorHead(Head):
    """The network sees x alone and answers with p(y | x, S); its state is that belief.

    With `symmetric`, the network is asked about each class by itself: no class is then special, and
    there can be any number of them. So it is for tables, which may have any features, too.
    """

    name, sees_predictions = "posterior", False
    for_labels: ClassVar = {**FOR_LABELS, "symmetric": True, "vote": True}

    def __init__(self, architecture: Architecture, features: int) -> None:
        super().__init__(architecture, features)
        outputs = architecture.bins or self.loss.answers * self.targets
        if architecture.for_tables:
            self.table = TableNetwork(architecture)
        else:
            self.network = SetNetwork(features, self.targets, outputs, architecture)

    def encode(self, sets: Sets) -> Belief:
        """Returns the belief at the test points, in the targets' own units."""
        if self.architecture.for_tables:
            return self._read_table(sets)
        symmetric = self.architecture.symmetric
        T_tr = sets.T_tr.unsqueeze(-1) if symmetric else sets.T_tr
        answers = self.network(sets.X_tr, T_tr, sets.X_te)
        answers = answers.squeeze(-1) if symmetric else answers
        return self._belief(answers, sets.y_mean, sets.y_scale)

    def _belief(self, answers: Tensor, mean: Tensor, scale: Tensor) -> Belief:
        if self.architecture.bins:
            return Histogram.standard(answers, mean, scale)
        return self.loss.belief(answers, mean, scale)

    def _read_table(self, sets: Sets) -> Belief:
        """Returns the belief for a table, in whatever units its targets are."""
        (_, M, C), mean, scale = sets.T_tr.shape, sets.y_mean, sets.y_scale
        T_tr = sets.T_tr
        if not self.loss.labels:
            std, mean = torch.std_mean(sets.Y_tr, dim=1, keepdim=True, correction=0)  # (B, 1, C)
            size = torch.where(mean == 0, 1.0, mean.abs())  # the unit where targets do not vary
            scale = torch.where(std > CONSTANT * mean.abs(), std, size)
            T_tr = (sets.Y_tr - mean) / scale
        answers = self.table(sets.X_tr, T_tr, sets.X_te)
        if self.loss.labels:
            # A class without a training row is next to impossible, and must not be quite.
            seen = T_tr.any(dim=1, keepdim=True)  # (B, 1, C)
            known = answers.masked_fill(~seen, -torch.inf).log_softmax(dim=-1)
            answers = known.masked_fill(~seen, -math.log(2 * (M + 1) * C))
        return self._belief(answers, mean, scale)

    def losses(self, state: Belief, H_tr: Tensor, H_te: Tensor) -> Tensor:  # noqa: ARG002
        """Computes the expected loss under the belief, (B, N)."""
        return self.loss.expected(H_te, state)
