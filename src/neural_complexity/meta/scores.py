"""Scores over held-out tasks, each with a 95 % interval."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.special import stdtrit  # scipy.stats takes a second to import
from torch import Tensor

from neural_complexity.seeding import stream

__all__ = ["Estimate", "correlation", "count", "estimate", "estimate_mean", "estimate_over_seeds"]
__all__ += ["mean_absolute_error", "r_squared", "share_of_oracle"]

RESAMPLES = 500
BLOCK = 50  # resamples at a time: bounds memory


@dataclass(frozen=True)
class Estimate:
    """A value, the half-width of its 95 % interval over tasks or seeds, and their number."""

    value: float
    ci95: float | None  # none for what is counted, or where it cannot be told
    n: int


def count(these: Tensor) -> Estimate:
    """Counts the tasks for which something is so, (B,)."""
    return Estimate(float(these.sum()), None, these.numel())


def estimate_mean(values: Tensor) -> Estimate:
    """Estimates the mean over tasks, (B,), with its normal interval."""
    n, wide = values.numel(), values.double()
    spread = wide.std().item() if n > 1 else math.inf
    return Estimate(wide.mean().item(), _interval(spread / n**0.5), n)


def estimate_over_seeds(values: Tensor) -> Estimate:
    """Estimates the mean over seeds, (seeds,), with Student's interval: they are few."""
    n, wide = values.numel(), values.double()
    half = float(stdtrit(n - 1, 0.975)) * wide.std().item() / n**0.5 if n > 1 else None
    return Estimate(wide.mean().item(), half, n)


def estimate(statistic: Callable[..., Tensor], *columns: Tensor) -> Estimate:
    """Estimates any statistic of tasks, with an interval from resampling the tasks.

    It maps columns (..., B) to values (...); tasks are drawn jointly from all columns, (B,) each.
    """
    wide = [column.double() for column in columns]
    n, generator, resampled = wide[0].numel(), stream(0, "bootstrap"), []
    for _ in range(RESAMPLES // BLOCK):
        rows = torch.randint(n, (BLOCK, n), generator=generator)
        resampled.append(statistic(*(column[rows] for column in wide)))
    return Estimate(statistic(*wide).item(), _interval(torch.cat(resampled).std().item()), n)


def _interval(error: float) -> float | None:
    return 1.96 * error if math.isfinite(error) else None


def r_squared(predicted: Tensor, true: Tensor) -> Tensor:
    """Computes 1 - residual over total sum of squares along the last axis of (..., B).

    This is what remains of the variance, not the squared correlation: a biased prediction scores
    less.
    """
    residual = (true - predicted).square().sum(dim=-1)
    return 1 - residual / (true - true.mean(dim=-1, keepdim=True)).square().sum(dim=-1)


def correlation(predicted: Tensor, true: Tensor) -> Tensor:
    """Computes Pearson's correlation along the last axis of (..., B)."""
    p, t = (x - x.mean(dim=-1, keepdim=True) for x in (predicted, true))
    return (p * t).sum(dim=-1) / (p.square().sum(dim=-1) * t.square().sum(dim=-1)).sqrt()


def mean_absolute_error(predicted: Tensor, true: Tensor) -> Tensor:
    """Computes the mean absolute error along the last axis of (..., B)."""
    return (predicted - true).abs().mean(dim=-1)


def share_of_oracle(none: Tensor, ours: Tensor, oracle: Tensor) -> Tensor:
    """Computes how much of the oracle's improvement a regularizer achieves, from losses (..., B).

    It is (none - ours) / (none - oracle) of the mean test losses without a regularizer, with ours
    and with the true gap as one: 0 is no help, 1 is the best possible.
    """
    none, ours, oracle = (t.mean(dim=-1) for t in (none, ours, oracle))
    return (none - ours) / (none - oracle)
