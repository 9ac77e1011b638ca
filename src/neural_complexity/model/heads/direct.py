"""The paper's head: the network sees h and answers by itself."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from neural_complexity.model.architecture import Architecture
from neural_complexity.model.attention import SetNetwork
from neural_complexity.model.heads import FOR_LABELS, Head, Sets

__all__ = ["DirectHead"]

# How much farther apart points are at first than layers would place them: attention is then neither
# the same on all labels, which teaches nothing about the distance, nor on one of them alone.
SHARP = 6.0


class DirectHead(Head):
    """The network sees (x, h(x)) and answers with a loss, or a gap, per test point.

    With `symmetric`, the network is asked about each class by itself, as if it were the only one,
    and its answers are added up. With `vote`, it also sees the attention on each label.
    """

    name, sees_predictions = "direct", True
    for_labels: ClassVar = {**FOR_LABELS, "loss_conditioning": True, "self_layers": 1}

    def __init__(self, architecture: Architecture, features: int) -> None:
        super().__init__(architecture, features)
        a, seen = architecture, (self.loss.seen + architecture.vote) * self.targets
        targets = self.targets + a.loss_conditioning
        # What h says must not decide which inputs are alike.
        own = replace(a, vote=False)  # the network sees votes, and does not answer with them
        self.network = SetNetwork(features + seen, targets, 1, own, compared=features)
        if a.vote:
            *_, last = self.network.metric_layers.parameters()
            last.data.mul_(SHARP)

    def encode(self, sets: Sets) -> Sets:
        """Returns the sets: without h there is nothing to do."""
        return sets

    def losses(self, state: Sets, H_tr: Tensor, H_te: Tensor) -> Tensor:
        """Asks the network, (B, N)."""
        C, (B, N) = state.T_tr.shape[-1], H_te.shape[:2]
        if (got := H_te.shape[-1]) != C:
            raise ValueError(f"logits must be of the {C} classes that were encoded, got {got}")
        a, X_tr, T_tr, X_te = self.architecture, state.X_tr, state.T_tr, state.X_te
        losses_tr = self.loss(H_tr, state.Y_tr)  # (B, M)
        known = [] if not a.vote else [T_tr, self.network.votes(X_tr, T_tr, X_te).softmax(dim=-1)]
        T_tr = T_tr.unsqueeze(-1) if a.symmetric else T_tr  # (B, M, [C,] targets)
        if a.loss_conditioning:
            seen = losses_tr.log1p().view(*losses_tr.shape, *[1] * (T_tr.ndim - 2))
            T_tr = torch.cat([T_tr, seen.expand(*T_tr.shape[:-1], 1)], dim=-1)
        if not self.loss.labels:
            H_tr, H_te = ((H - state.y_mean) / state.y_scale for H in (H_tr, H_te))
        S_tr, S_te = self.loss.features(H_tr), self.loss.features(H_te)  # (B, M, C, seen)
        if known:  # what each class costs h, as likely as it is
            pairs = zip((S_tr, S_te), (H_tr, H_te), known, strict=True)
            S_tr, S_te = (
                torch.cat([S, (-p * log_softmax(H, dim=-1)).unsqueeze(-1)], dim=-1)
                for S, H, p in pairs
            )
        if a.symmetric:  # as if there were BC tasks
            X_tr, X_te = (X.unsqueeze(1).expand(-1, C, -1, -1).flatten(0, 1) for X in (X_tr, X_te))
            S_tr, T_tr, S_te = (S.transpose(1, 2).flatten(0, 1) for S in (S_tr, T_tr, S_te))
        F_tr = torch.cat([X_tr, S_tr.flatten(2)], dim=-1)  # (B, M, D + C seen)
        F_te = torch.cat([X_te, S_te.flatten(2)], dim=-1)  # (B, N, D + C seen)
        answer: Tensor = self.network(F_tr, T_tr, F_te).squeeze(-1)
        answer = answer.view(B, C, N).sum(dim=1) if a.symmetric else answer
        unit = self.loss.unit(state.y_scale)
        if not a.observed_loss:
            return answer * unit + losses_tr.mean(dim=1, keepdim=True)
        # A loss is never negative: without this, learners run off to where NC promises one.
        return self.loss.positive(answer) * unit
