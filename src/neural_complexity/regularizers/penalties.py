"""What NC is compared with as a regularizer: norms of parameters, noise, mixup, the true gap."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributions import Gamma
from torch.linalg import vector_norm

from neural_complexity.learners.batched import BatchedLearner, PlacedLearner
from neural_complexity.learners.fit import Learner, Objective, Regularizer
from neural_complexity.losses import PointLoss
from neural_complexity.points import values
from neural_complexity.snapshot import Snapshot, gap
from neural_complexity.task import Task

__all__ = ["NORMS", "VariationalDropout", "mixup", "norm_penalty", "oracle_penalty"]
__all__ += ["variational_penalty", "weighted_l1_penalty"]

Norm = Callable[[list[Tensor]], Tensor]  # all parameters, each (B, ...), to one size each, (B,)


def _total(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack([part.flatten(1).sum(dim=1) for part in parts]).sum(dim=0)


def _group_norm(parameters: list[Tensor], p: float, q: float) -> Tensor:
    """Computes L_{p,q}: the product over layers of the q-norm, over units, of weights' p-norms."""
    weights = [W for W in parameters if W.ndim == 3]  # (B, out, in)
    layers = [vector_norm(vector_norm(W, p, dim=2), q, dim=1) for W in weights]
    return torch.stack(layers).prod(dim=0)


def _orthogonal(parameters: list[Tensor]) -> Tensor:
    """Sums |W W' - I| over all weight matrices (Brock et al. 2017)."""
    weights = [W for W in parameters if W.ndim == 3]  # (B, out, in)
    return _total([(W @ W.mT - torch.eye(W.shape[1]).to(W)).abs() for W in weights])


# The paper's, as its official code defines them; the paper itself gives names only.
NORMS: dict[str, Norm] = {
    "L1": lambda parameters: _total([p.abs() for p in parameters]),
    "L2": lambda parameters: _total([p.square() for p in parameters]),
    "L1,inf": partial(_group_norm, p=1, q=math.inf),  # these are of Neyshabur et al. (2015)
    "L3,1.5": partial(_group_norm, p=3, q=1.5),
    "orthogonal": _orthogonal,
    "Frobenius": partial(_group_norm, p=2, q=2),
}


def norm_penalty(norm: str, weight: float) -> Regularizer:
    """Returns the penalty weight * norm(parameters), for a norm of `NORMS` by name."""
    if norm not in NORMS:
        raise ValueError(f"norm must be one of {', '.join(NORMS)}, got {norm}")
    return lambda h, _: weight * NORMS[norm](list(h.parameters()))


def weighted_l1_penalty(weights: Sequence[Tensor]) -> Regularizer:
    """Returns MetaReg's penalty, the sum of w * |p|, with a w for each p, without its task axis."""
    return lambda h, _: _total([w * p.abs() for w, p in zip(weights, h.parameters(), strict=True)])


def oracle_penalty(loss: PointLoss, Y_te: Tensor) -> Regularizer:
    """Returns the true gap to test targets, (B, N, C), so that learners descend their test loss.

    This is the paper's "optimal regularizer", a yardstick for weight 1; over a few steps another
    weight may do better. No learner may use it: it looks at the test targets.
    """
    return lambda _, snapshot: gap(loss, snapshot, Y_te)


class VariationalDropout(nn.Module):
    """Multiplies by noise from N(1, alpha); alpha is learned, `variational_penalty` keeps it up."""

    def __init__(self, units: int, *, alpha: float = 0.5) -> None:
        super().__init__()
        if not 0 < alpha < 1:
            raise ValueError(f"alpha must be between 0 and 1, got {alpha}")
        self.dropout_rho = nn.Parameter(torch.full((units,), alpha).logit())

    def forward(self, X: Tensor) -> Tensor:
        """Adds noise to (..., E) in training, nothing in evaluation."""
        if not self.training:
            return X
        return X * (1 + self.dropout_rho.sigmoid().sqrt() * torch.randn_like(X))


def variational_penalty(h: Learner, snapshot: Snapshot) -> Tensor:
    """Computes KL(posterior | prior) / M, (B,), of learners with `VariationalDropout`."""
    named = h.state() if isinstance(h, BatchedLearner | PlacedLearner) else {}
    found = [value for name, value in named.items() if name.split(".")[-1] == "dropout_rho"]
    if not found:
        raise ValueError("learners must have VariationalDropout layers, got none")
    alpha = torch.cat(found, dim=1).sigmoid()  # (B, units of all layers)
    # Kingma, Salimans and Welling (2015), Eq. (14): a cubic approximation for alpha <= 1. With the
    # squared error as -log p(y | x), variance 1/2, it is their bound per point, up to a constant.
    c1, c2, c3 = 1.16145124, -1.50204118, 0.58629921
    minus_KL = 0.5 * alpha.log() + alpha * (c1 + alpha * (c2 + alpha * c3))
    return -minus_KL.sum(dim=1) / snapshot.X_tr.shape[1]


def mixup(loss: PointLoss, alpha: float) -> Objective:
    """Returns the objective of Zhang et al. (2018): the loss of mixed inputs for mixed targets.

    Each training point is mixed with another one, x = share x_i + (1 - share) x_j, and costs
    share L(h(x), y_i) + (1 - share) L(h(x), y_j), with share ~ Beta(alpha, alpha) for each task and
    step. It is drawn from PyTorch's own generator, as noise layers do, which `Recipe.train` seeds.
    """
    if not 0 < alpha < torch.inf:
        raise ValueError(f"alpha must be positive and finite, got {alpha}")
    return partial(_mixed, loss, alpha)


def _mixed(loss: PointLoss, alpha: float, h: BatchedLearner, task: Task) -> Tensor:
    inputs = values(task.X_tr)
    B, M = inputs.shape[:2]
    rows = torch.arange(B, device=inputs.device).unsqueeze(-1)
    order = torch.rand(B, M, device=inputs.device).argsort(dim=1)
    # A ratio of two gamma variables, by their logarithms: PyTorch's own draws from a beta
    # distribution become 1/2 for a small alpha, where they should be 0 or 1.
    boosted = Gamma(inputs.new_full((2, B), alpha + 1), 1.0).sample()
    uniform = 1 - torch.rand_like(boosted)  # never 0
    log_gamma = boosted.log() + uniform.log() / alpha  # (2, B), Gamma(alpha)
    share = (log_gamma[0] - log_gamma[1]).sigmoid()  # (B,)
    weight = share.view(B, *[1] * (inputs.ndim - 1))
    H = h(inputs[rows, order].lerp(inputs, weight))  # (B, M, C)
    own, other = loss(H, task.Y_tr), loss(H, task.Y_tr[rows, order])  # (B, M)
    return share * own.mean(dim=1) + (1 - share) * other.mean(dim=1)
