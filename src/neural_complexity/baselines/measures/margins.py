"""Complexity measures of margins: how far training points are from being classified otherwise.

What takes much memory is of at most 1,024 training points.
"""

import torch
from torch import Tensor
from torch.linalg import matrix_norm, vector_norm

from neural_complexity.baselines.measures.chosen_points import MANY, few
from neural_complexity.baselines.measures.layers import (
    TINY,
    displacement,
    evaluated,
    logits,
    logits_at,
    matrices,
    safe_log,
)
from neural_complexity.baselines.measures.norms import (
    frobenius_product,
    path_norm,
    spectral_product,
)
from neural_complexity.learners.batched import BatchedLearner, PlacedLearner
from neural_complexity.points import values
from neural_complexity.task import Task

__all__ = [
    "frobenius_product_over_margin",
    "input_distances",
    "input_margin",
    "inverse_margin",
    "lower_tenth",
    "margins",
    "normalised_output_margin",
    "output_margin",
    "path_norm_over_margin",
    "spectral_complexity",
    "spectral_product_over_margin",
]

LEAST = 1e-3  # margins below this are taken for it where they are divided by
SHARE = 0.1  # of the training points, whose margins may be smaller: a minimum is one outlier's


def margins(H: Tensor, Y: Tensor) -> Tensor:
    """Returns each point's logit of its label minus the largest other one, (B, M)."""
    label = Y.unsqueeze(-1)
    others = H.scatter(-1, label, -torch.inf).amax(dim=-1)
    return H.gather(-1, label).squeeze(-1) - others


def lower_tenth(each: Tensor) -> Tensor:
    """Returns the value of (B, M) that a tenth of the points do not exceed, (B,)."""
    k = max(1, int(SHARE * each.shape[1]))
    return each.kthvalue(k, dim=1).values


def _margin(h: BatchedLearner, task: Task) -> Tensor:
    return lower_tenth(margins(logits(evaluated(h), task), task.Y_tr))


def _log_margin(h: BatchedLearner, task: Task) -> Tensor:
    return _margin(h, task).clamp(min=LEAST).log()


def output_margin(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns -gamma, with gamma the lower tenth of h(x)_y - max_{c != y} h(x)_c.

    Bartlett (1998); the negative, since large margins should generalize.
    """
    return -_margin(h, task)


def inverse_margin(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns 1 / gamma^2 of the `output_margin` gamma (Jiang et al., 2020)."""
    return (-2 * _log_margin(h, task)).exp()


def normalised_output_margin(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns -gamma / s, with s^2 the total variance of the logits over training points.

    The normalisation of Jiang, Krishnan, Mobahi and Bengio (2019), of the outputs.
    """
    H = logits(evaluated(h), task)
    s = H.var(dim=1, correction=0).sum(dim=-1).sqrt()  # (B,)
    return -lower_tenth(margins(H, task.Y_tr)) / s.clamp(min=TINY)


def input_margin(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns minus the lower tenth of the `input_distances` (Elsayed et al., 2018)."""
    points = few(task, MANY)
    return -lower_tenth(input_distances(evaluated(h), points.X_tr, points.Y_tr))


def input_distances(h: PlacedLearner, X: Tensor, Y: Tensor) -> Tensor:
    """Returns m(x) / |grad_x m(x)| of labelled points, (B, M), with m(x) the margin of a point.

    To first order this is the distance of x from where the nearest class by logits takes over,
    negative beyond it; with more than two classes another may be nearer (Elsayed et al. take the
    least over all).
    """
    X = values(X).detach().clone().requires_grad_()
    with torch.enable_grad():
        m = margins(logits_at(h, X, Y), Y)
        (slope,) = torch.autograd.grad(m.sum(), X)
    length: Tensor = vector_norm(slope.flatten(2), dim=2)
    return m.detach() / length.clamp(min=TINY)


def frobenius_product_over_margin(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns log(prod_i |W_i|_F^2 / gamma^2) ("prod-of-fro/margin" of Jiang et al., 2020)."""
    return frobenius_product(h, initial, task) - 2 * _log_margin(h, task)


def spectral_product_over_margin(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns log(prod_i |W_i|_2^2 / gamma^2) ("prod-of-spec/margin" of Jiang et al., 2020)."""
    return spectral_product(h, initial, task) - 2 * _log_margin(h, task)


def path_norm_over_margin(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns log(|w|_path^2 / gamma^2) ("path-norm/margin" of Jiang et al., 2020)."""
    return 2 * (safe_log(path_norm(h, initial, task)) - _log_margin(h, task))


def spectral_complexity(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the logarithm of the spectrally normalised margin bound.

    That is |X|_F R / (gamma M), with s_i = |W_i|_2, b_i the sum over units of |W_i - W0_i|_2, and
    R = prod_i s_i (sum_i (b_i / s_i)^(2/3))^(3/2) (Bartlett, Foster and Telgarsky, 2017).
    """
    moves, logs = displacement(h, initial), []
    for name, W in matrices(h).items():
        b = vector_norm(moves[name].flatten(2), dim=2).sum(dim=1)  # (B,)
        logs.append((safe_log(b) - safe_log(matrix_norm(W, 2))) * 2 / 3)
    X = values(task.X_tr).flatten(1)
    scale = safe_log(vector_norm(X, dim=1) / task.Y_tr.shape[1])
    log_R = spectral_product(h, initial, task) / 2 + 1.5 * torch.stack(logs).logsumexp(dim=0)
    return scale + log_R - _log_margin(h, task)
