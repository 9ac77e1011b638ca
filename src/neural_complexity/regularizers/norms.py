"""Penalties on the size of a learner's parameters."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from neural_complexity.learners.fit import Learner, Regularizer
from neural_complexity.snapshot import Snapshot

__all__ = ["NORMS", "norm_penalty", "weighted_l1_penalty"]

Norm = Callable[[list[Tensor]], Tensor]  # all parameters, each (B, ...), to one size each, (B,)


def _weights(parameters: list[Tensor]) -> list[Tensor]:
    """Returns the weight matrices among parameters, (B, out, in)."""
    return [p for p in parameters if p.ndim == 3]


def l1(parameters: list[Tensor]) -> Tensor:
    """Sums |p| over all parameters."""
    return _total([p.abs().flatten(1).sum(dim=1) for p in parameters])


def l2(parameters: list[Tensor]) -> Tensor:
    """Sums p^2 over all parameters."""
    return _total([p.square().flatten(1).sum(dim=1) for p in parameters])


def group_norm(p: float, q: float) -> Norm:
    """Returns the L_{p,q} norm of a network (Neyshabur et al. 2015).

    It is the product over layers of the q-norm, over units, of the p-norms of their incoming
    weights.
    """

    def norm(parameters: list[Tensor]) -> Tensor:
        layers = [
            torch.linalg.vector_norm(torch.linalg.vector_norm(W, p, dim=2), q, dim=1)
            for W in _weights(parameters)
        ]
        return torch.stack(layers).prod(dim=0)

    return norm


def orthogonal(parameters: list[Tensor]) -> Tensor:
    """Sums |W W' - I| over all weight matrices (Brock et al. 2017)."""
    parts = []
    for W in _weights(parameters):
        eye = torch.eye(W.shape[1], dtype=W.dtype, device=W.device)
        parts.append((W @ W.mT - eye).abs().sum(dim=(1, 2)))
    return _total(parts)


def _total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(dim=0)


# The paper's, as its official code defines them; the paper itself gives names only.
NORMS: dict[str, Norm] = {
    "L1": l1,
    "L2": l2,
    "L1,inf": group_norm(1, math.inf),
    "L3,1.5": group_norm(3, 1.5),
    "orthogonal": orthogonal,
    "Frobenius": group_norm(2, 2),
}


def norm_penalty(norm: str, weight: float) -> Regularizer:
    """Returns the penalty weight * norm(parameters), for a norm of `NORMS` by name."""
    if norm not in NORMS:
        raise ValueError(f"norm must be one of {', '.join(NORMS)}, got {norm}")

    def penalty(h: Learner, _: Snapshot) -> Tensor:
        return weight * NORMS[norm](list(h.parameters()))

    return penalty


def weighted_l1_penalty(weights: Sequence[Tensor]) -> Regularizer:
    """Returns the penalty of MetaReg (Balaji et al. 2018): the sum of weight * |p|.

    Args:
        weights: One per parameter of the learner, of its shape without the leading axis; learned by
            `baselines.metareg.train_metareg`.
    """

    def penalty(h: Learner, _: Snapshot) -> Tensor:
        pairs = zip(weights, h.parameters(), strict=True)
        return _total([(weight * p.abs()).flatten(1).sum(dim=1) for weight, p in pairs])

    return penalty
