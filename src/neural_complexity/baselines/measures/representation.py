"""Complexity measures of hidden layers and of changed inputs: the winners of the PGDL contest.

What takes much memory is of at most 1,024 training points.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import one_hot

from neural_complexity.baselines.measures.chosen_points import MANY, few, mixed_pairs
from neural_complexity.baselines.measures.layers import (
    TINY,
    evaluated,
    inputs_of,
    labels,
    logits_at,
    matrices,
)
from neural_complexity.baselines.measures.margins import input_distances, lower_tenth
from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.losses import zero_one
from neural_complexity.points import values
from neural_complexity.seeding import stream
from neural_complexity.task import Task

__all__ = [
    "augmentation_error",
    "augmentation_margin",
    "davies_bouldin",
    "davies_bouldin_index",
    "davies_bouldin_times_mixup",
    "mixup_error",
    "mixup_margin",
]

NOISE = 0.3  # the standard deviation of noise, in units of that of the inputs
DRAWS = 8


def davies_bouldin(Z: Tensor, Y: Tensor) -> Tensor:
    """Returns the index of clusters of points (B, M, features) by their labels (B, M).

    mean_i max_{j != i} (s_i + s_j) / |c_i - c_j|, over classes with points, with c_i the mean of a
    class and s_i the mean distance of its points from it (Davies and Bouldin, 1979). Zero, if all
    points are of one class.
    """
    member = one_hot(Y).to(Z.dtype)  # (B, M, C)
    sizes = member.sum(dim=1)  # (B, C)
    share = member / sizes.clamp(min=1).unsqueeze(1)
    centres = share.mT @ Z  # (B, C, features)
    rows = torch.arange(len(Z), device=Z.device).unsqueeze(1)
    distance = vector_norm(Z - centres[rows, Y], dim=2)  # (B, M)
    s = (share * distance.unsqueeze(2)).sum(dim=1)  # (B, C)
    apart = torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")
    ratio = (s.unsqueeze(2) + s.unsqueeze(1)) / apart.clamp(min=TINY)  # (B, C, C)
    there = sizes > 0
    pairs = there.unsqueeze(2) & there.unsqueeze(1) & ~torch.eye(s.shape[1]).bool().to(Z.device)
    worst = torch.where(pairs, ratio, 0).amax(dim=2)  # (B, C)
    return worst.sum(dim=1) / there.sum(dim=1)


def davies_bouldin_index(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the `davies_bouldin` index of what enters the last layer, by label.

    Natekar and Sharma (2020) take an early layer instead.
    """
    points, last = few(task, MANY), list(matrices(h))[-1]
    return davies_bouldin(inputs_of(evaluated(h), last, points.X_tr), labels(points))


def mixup_error(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the error at midpoints of training points of the same label.

    One minus the label-wise mixup accuracy of Natekar and Sharma (2020).
    """
    points = few(task, MANY)
    H = logits_at(evaluated(h), mixed_pairs(points), points.Y_tr)
    return zero_one(H, points.Y_tr).mean(dim=1)


def davies_bouldin_times_mixup(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the `davies_bouldin_index` times the `mixup_error`.

    After the first place of the contest PGDL (Natekar and Sharma, 2020), whose code takes the first
    layer, the mean over other classes in the place of the largest, and the log loss of mixtures.
    """
    return davies_bouldin_index(h, initial, task) * mixup_error(h, initial, task)


def mixup_margin(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns minus the lower tenth of the `input_distances` of midpoints of the same label.

    A prize-winner of PGDL (Natekar and Sharma, 2020, who take distances in the first layer).
    """
    points = few(task, MANY)
    return -lower_tenth(input_distances(evaluated(h), mixed_pairs(points), points.Y_tr))


def augmentation_error(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the error at training points with Gaussian noise of 0.3 standard deviations.

    Robustness to augmentation, a prize-winner of PGDL (Aithal et al., 2021). Inputs need not be
    images here, so that noise is the augmentation: one vector for all points, eight times.
    """
    learner, points = evaluated(h), few(task)
    Y = points.Y_tr
    errors = [zero_one(logits_at(learner, X, Y), Y).mean(dim=1) for X in _noisy(points)]
    return torch.stack(errors).mean(dim=0)


def augmentation_margin(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns minus the lower tenth of the `input_distances` of points with noise.

    A prize-winner of PGDL (Natekar and Sharma, 2020), with the noise of `augmentation_error`.
    """
    learner, points = evaluated(h), few(task)
    found = [input_distances(learner, X, points.Y_tr) for X in _noisy(points)]
    return -lower_tenth(torch.cat(found, dim=1))


def _noisy(task: Task) -> Iterator[Tensor]:
    """Returns training inputs with noise, the same for all points, again and again."""
    X = values(task.X_tr)
    spread = (X - X.mean(dim=1, keepdim=True)).flatten(1).square().mean(dim=1).sqrt()  # (B,)
    spread = spread.view(-1, *[1] * (X.ndim - 1))
    for i in range(DRAWS):
        z = torch.randn(X.shape[2:], generator=stream(0, "augmentation", i), dtype=X.dtype)
        yield X + NOISE * spread * z.to(X.device)
