"""Mixup: training on mixtures of points."""

from functools import partial

import torch
from torch import Tensor
from torch.distributions import Gamma

from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.learners.fit import Objective
from neural_complexity.losses import PointLoss
from neural_complexity.points import values
from neural_complexity.task import Task

__all__ = ["mixup"]


def mixup(loss: PointLoss, alpha: float) -> Objective:
    """Returns the objective of Zhang et al. (2018): the loss of mixed inputs for mixed targets.

    Each training point is mixed with another one, in the same proportion for all points of a task:
    x = share x_i + (1 - share) x_j, with share ~ Beta(alpha, alpha) drawn anew for each task and
    step. It costs share L(h(x), y_i) + (1 - share) L(h(x), y_j). What is drawn comes from PyTorch's
    own generator, as that of noise layers does, which `Recipe.train` seeds.

    Args:
        loss: The loss per point.
        alpha: How much is mixed; towards 0 nothing is.
    """
    if not 0 < alpha < float("inf"):
        raise ValueError(f"alpha must be positive and finite, got {alpha}")
    return partial(_mixed, loss, alpha)


def _mixed(loss: PointLoss, alpha: float, h: BatchedLearner, task: Task) -> Tensor:
    inputs = values(task.X_tr)
    B, M = inputs.shape[:2]
    rows = torch.arange(B, device=inputs.device).unsqueeze(-1)
    order = torch.rand(B, M, device=inputs.device).argsort(dim=1)
    share = _shares(alpha, B, inputs)
    weight = share.view(B, *[1] * (inputs.ndim - 1))
    H = h(torch.lerp(inputs[rows, order], inputs, weight))  # (B, M, C)
    own, other = loss(H, task.Y_tr), loss(H, task.Y_tr[rows, order])  # (B, M)
    return share * own.mean(dim=1) + (1 - share) * other.mean(dim=1)


def _shares(alpha: float, batch: int, like: Tensor) -> Tensor:
    """Draws from Beta(alpha, alpha), (B,), of the type and on the device of another tensor.

    As a ratio of two gamma variables, by their logarithms: PyTorch's own draws become 1/2 for a
    small alpha, where they should be 0 or 1.
    """
    boosted = Gamma(like.new_full((2, batch), alpha + 1), 1.0).sample()
    uniform = 1 - torch.rand_like(boosted)  # never 0
    log_gamma = boosted.log() + uniform.log() / alpha  # (2, B), Gamma(alpha)
    return (log_gamma[0] - log_gamma[1]).sigmoid()
