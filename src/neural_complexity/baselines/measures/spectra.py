"""Complexity measures of the eigenvalues of W'W of each layer: exponents, ranks, norms."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from neural_complexity.baselines.measures.layers import TINY, matrices
from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.task import Task

__all__ = [
    "effective_rank",
    "frobenius_over_spectral",
    "log_alpha_norm",
    "log_spectral_norm",
    "power_law",
    "power_law_exponent",
    "stable_rank",
    "weighted_power_law_exponent",
]

TAIL = 10  # eigenvalues in the tail of a power law, at least; all, where a layer has fewer


def power_law(eigenvalues: Tensor) -> Tensor:
    """Fits p(x) ~ x^-alpha, x >= x_min, to descending eigenvalues, (B, K), and returns alpha, (B,).

    For each x_min among the eigenvalues, alpha = 1 + n / sum_i log(x_i / x_min), over the n that
    are at least x_min, is the maximum of the likelihood (Hill, 1975); x_min is the one whose fit
    has the smallest Kolmogorov-Smirnov distance (Clauset, Shalizi and Newman, 2009).
    """
    K = eigenvalues.shape[1]
    logs = eigenvalues.clamp(min=TINY).log()
    n = torch.arange(1, K + 1).to(logs)
    # What is equal throughout has no tail, and not an infinite exponent either.
    rate = n / (logs.cumsum(dim=1) - n * logs).clamp(min=TINY**0.5)  # (B, K), alpha - 1
    distances = []
    for tail in range(min(K, TAIL), K + 1):
        above = logs[:, :tail] - logs[:, tail - 1 : tail]
        fitted = 1 - (-rate[:, tail - 1 : tail] * above).exp()  # P(x < x_i), (B, tail)
        found = 1 - n[:tail] / tail  # the share of the tail that is smaller
        distances.append((fitted - found).abs().amax(dim=1))
    best = torch.stack(distances, dim=1).argmin(dim=1, keepdim=True) + min(K, TAIL) - 1
    return 1 + rate.gather(1, best).squeeze(1)


def _mean(h: BatchedLearner, of: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns the mean over layers of a number of their eigenvalues, (B, K) to (B,)."""
    return torch.stack([of(x) for x in _eigenvalues(h)]).mean(dim=0)


def _eigenvalues(h: BatchedLearner) -> list[Tensor]:
    """Returns the squared singular values of each layer, (B, K), descending."""
    return [torch.linalg.svdvals(W).square().clamp(min=TINY) for W in matrices(h).values()]


def power_law_exponent(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the mean over layers of the exponent alpha of their `power_law`.

    Well-trained layers have heavy tails, small exponents (Martin and Mahoney, 2021; WeightWatcher).
    """
    return _mean(h, power_law)


def weighted_power_law_exponent(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns alpha-hat, the mean over layers of alpha log10 lambda_max.

    Martin, Peng and Mahoney (2021), with alpha of the `power_law`.
    """
    return _mean(h, lambda x: power_law(x) * x[:, 0].log10())


def log_alpha_norm(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the mean over layers of log10 sum_i lambda_i^alpha (Martin and Mahoney, 2021)."""
    powers = _mean(h, lambda x: (power_law(x).unsqueeze(1) * x.log()).logsumexp(dim=1))
    return powers / math.log(10)


def log_spectral_norm(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the mean over layers of log10 lambda_max (Martin, Peng and Mahoney, 2021)."""
    return _mean(h, lambda x: x[:, 0].log10())


def stable_rank(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the mean over layers of sum_i lambda_i / lambda_max (Sanyal et al., 2020)."""
    return _mean(h, lambda x: x.sum(dim=1) / x[:, 0])


def frobenius_over_spectral(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns sum_i |W_i|_F^2 / |W_i|_2^2 over layers ("fro/spec" of Jiang et al., 2020)."""
    return torch.stack([x.sum(dim=1) / x[:, 0] for x in _eigenvalues(h)]).sum(dim=0)


def effective_rank(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the mean over layers of exp(-sum_i p_i log p_i), with p_i = s_i / sum_j s_j.

    s are singular values (Roy and Vetterli, 2007).
    """

    def rank(x: Tensor) -> Tensor:
        p = x.sqrt() / x.sqrt().sum(dim=1, keepdim=True)
        entropy: Tensor = torch.special.entr(p).sum(dim=1)
        return entropy.exp()

    return _mean(h, rank)
