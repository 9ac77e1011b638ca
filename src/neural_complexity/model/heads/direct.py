"""The paper's head: the network sees h and answers by itself."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from neural_complexity.model.architecture import Architecture
from neural_complexity.model.heads.base import Head, Sets
from neural_complexity.model.set_network import SetNetwork

__all__ = ["DirectHead"]


class DirectHead(Head):
    """The network sees (x, h(x)) and answers with a loss, or a gap, per test point.

    With `symmetric`, the network is asked about each class by itself, as if it were the only one,
    and its answers are added up.
    """

    name = "direct"
    sees_predictions = True
    for_labels: ClassVar = {
        "bilinear": True,
        "loss_conditioning": True,
        "self_layers": 1,
        "metric": True,
        "rounds": 3,
    }

    def __init__(self, architecture: Architecture, features: int) -> None:
        super().__init__(architecture, features)
        a = architecture
        if a.vote:
            raise ValueError("vote must be off but for the posterior head on labels")
        if a.loss_conditioning and not self.loss.labels:
            raise ValueError("loss_conditioning must be off but for the direct head on labels")
        self.loss_conditioning, self.observed_loss = a.loss_conditioning, a.observed_loss
        self.network = SetNetwork(
            features + self.loss.seen * a.targets,
            a.targets + a.loss_conditioning,
            1,
            a,
            metric_features=features,  # what h says must not decide which inputs are alike
        )

    def encode(self, sets: Sets) -> Sets:
        """Returns the sets: without h there is nothing to do."""
        return sets

    def losses(self, state: Sets, H_tr: Tensor, H_te: Tensor) -> Tensor:
        """Asks the network, (B, N)."""
        if H_te.shape[-1] != state.T_tr.shape[-1]:
            raise ValueError(
                f"logits must be of the {state.T_tr.shape[-1]} classes that were encoded, got "
                f"{H_te.shape[-1]}"
            )
        losses_tr = self.loss(H_tr, state.Y_tr)  # (B, M)
        answer = self._ask(state, losses_tr, H_tr, H_te)
        unit = self.loss.unit(state.y_scale)
        if not self.observed_loss:
            return answer * unit + losses_tr.mean(dim=1, keepdim=True)
        # A loss is never negative: without this, learners run off to where NC promises one.
        return self.loss.positive(answer) * unit

    def select(self, state: Sets, change: Callable[[Tensor], Tensor]) -> Sets:
        """Returns the sets with other test points."""
        return replace(state, X_te=change(state.X_te))

    def join(self, states: Sequence[Sets]) -> Sets:
        """Concatenates test points."""
        return replace(states[0], X_te=torch.cat([state.X_te for state in states], dim=1))

    def _ask(self, sets: Sets, losses_tr: Tensor, H_tr: Tensor, H_te: Tensor) -> Tensor:
        T_tr = sets.T_tr.unsqueeze(-1) if self.symmetric else sets.T_tr  # (B, M, [C,] targets)
        if self.loss_conditioning:
            seen = losses_tr.log1p().view(*losses_tr.shape, *[1] * (T_tr.ndim - 2))
            T_tr = torch.cat([T_tr, seen.expand(*T_tr.shape[:-1], 1)], dim=-1)
        S_tr, S_te = (self._seen(H, sets) for H in (H_tr, H_te))
        if not self.symmetric:
            F_tr = torch.cat([sets.X_tr, S_tr.flatten(2)], dim=-1)  # (B, M, D + C seen)
            F_te = torch.cat([sets.X_te, S_te.flatten(2)], dim=-1)  # (B, N, D + C seen)
            return self.network(F_tr, T_tr, F_te).squeeze(-1)  # type: ignore[no-any-return]
        C = H_tr.shape[2]
        F_tr = torch.cat([_for_each(sets.X_tr, C), _classes_first(S_tr)], dim=-1)
        F_te = torch.cat([_for_each(sets.X_te, C), _classes_first(S_te)], dim=-1)
        answers: Tensor = self.network(F_tr, _classes_first(T_tr), F_te).squeeze(-1)  # (BC, N)
        return answers.view(-1, C, answers.shape[-1]).sum(dim=1)

    def _seen(self, H: Tensor, sets: Sets) -> Tensor:
        """Returns what the network sees of predictions, (B, M, C, seen)."""
        if self.loss.labels:
            return self.loss.features(H)
        return self.loss.features((H - sets.y_mean) / sets.y_scale)


def _for_each(X: Tensor, classes: int) -> Tensor:
    """Repeats sets (B, M, D) for each class, (BC, M, D)."""
    return X.unsqueeze(1).expand(-1, classes, -1, -1).flatten(0, 1)


def _classes_first(T: Tensor) -> Tensor:
    """Returns (BC, M, features) from (B, M, C, features)."""
    return T.transpose(1, 2).flatten(0, 1)
