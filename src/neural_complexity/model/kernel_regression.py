"""Kernel ridge regressions of a table in closed form, and the belief that they have together.

They predict each training row without it, so how good they are is known without a second fit.
Test rows are not seen by each other, the order and the units of features do not matter, and any
number of classes is treated alike.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

__all__ = ["REGRESSIONS", "Regressions", "regress", "relevance", "stack_labels", "stack_numbers"]

NOISES = (0.03, 0.3, 2.0)  # the variance of the noise, where that of the function is 1
RANK = 1.7  # what the largest rank counts, as a number of standard deviations
BINS = 6  # parts of a feature's range by which it is judged
# Powers to which probabilities are raised: regressions of ones and zeros are too cautious.
POWERS = (0.7, 1.0, 1.5, 2.2, 3.3, 5.0)
LEAST = 0.02  # the least score of a class that is there
FACTOR = 0.5  # on log-likelihoods: predictions of rows without each other are not independent
CONSTANT = 1e-6  # the variance below which a feature does not vary
UNIFORM = 1e-5  # the share of a belief in numbers that all intervals have alike
REGRESSIONS = len(NOISES) * 2 * (2 * 5 + 2)  # noises, weights of features, and kernels below


@dataclass(frozen=True)
class Regressions:
    """What E regressions predict for the rows of tables: of training rows, without that row."""

    means: Tensor  # (B, M + N, C, E)
    variances: Tensor  # (B, M + N, E), with noise, in units of each regression


def relevance(cells: Tensor, T_tr: Tensor) -> Tensor:
    """Returns how much of the targets each feature explains by itself, (B, D), and a little more.

    That is the share of variance between parts of its range, or where it is missing, corrected for
    their number. Constant features have none.

    Args:
        cells: Of `describe_cells`, (B, M + N, D, 3).
        T_tr: Targets of the training rows, (B, M, C).
    """
    M = T_tr.shape[1]
    rank, missing = cells[:, :M, :, 1], cells[:, :M, :, 2]
    part = ((rank + 1) * (BINS / 2)).long().clamp(0, BINS - 1)
    parts = one_hot(torch.where(missing > 0, BINS, part), BINS + 1).to(T_tr.dtype)  # (B, M, D, P)
    count = parts.sum(dim=1)  # (B, D, P)
    centred = T_tr - T_tr.mean(dim=1, keepdim=True)
    sums = torch.einsum("bmdp,bmc->bdpc", parts, centred)
    between = (sums.square().sum(dim=-1) / count.clamp(min=1)).sum(dim=-1)  # (B, D)
    total = centred.square().sum(dim=(1, 2)).clamp(min=torch.finfo(T_tr.dtype).tiny)
    free = (count > 0).sum(dim=-1) - 1
    rest = M - 1 - free  # if nothing is left, nothing is known
    unexplained = (1 - between / total.unsqueeze(-1)) * (M - 1) / rest.clamp(min=1)
    return ((1 - unexplained).clamp(min=0) * (rest > 0) + 1 / M) * (free > 0)


def _kernels(cells: Tensor, T_tr: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields kernels of all rows with training rows, (B, M + N, M), and with themselves."""
    M = T_tr.shape[1]
    value, rank, missing = cells.unbind(dim=-1)
    useful = relevance(cells, T_tr)
    useful = torch.cat([useful, torch.full_like(useful, 1 / M)], dim=-1)
    one = value.new_ones(value.shape[:2])
    for features in (value, RANK * rank):
        F = torch.cat([features, missing], dim=-1)  # (B, M + N, 2 D)
        varies = (F[:, :M].var(dim=1, correction=0) > CONSTANT).to(F.dtype)
        for weight in (varies, varies * useful):
            w = weight / weight.sum(dim=-1, keepdim=True).clamp(min=1e-12)
            f, near = F * w.sqrt().unsqueeze(1), F * w.unsqueeze(1)
            inner = f @ f[:, :M].mT
            size = f.square().sum(dim=-1)
            squared = (size.unsqueeze(-1) + size[:, None, :M] - 2 * inner).clamp(min=0)
            distance = torch.cdist(near, near[:, :M], p=1.0)
            yield inner, size
            yield (-squared).exp(), one
            yield (-squared / 3).exp(), one
            yield (-2 * distance).exp(), one
            yield (-5 * distance).exp(), one
            if features is value:
                differ = _weighted_differences(rank, missing, w[:, : value.shape[-1]], M)
                yield (-2 * differ).exp(), one
                yield (-5 * differ).exp(), one


def _weighted_differences(rank: Tensor, missing: Tensor, weight: Tensor, M: int) -> Tensor:
    """Returns the weight of features in which rows differ from training rows, (B, M + N, M)."""
    code = torch.where(missing > 0, math.pi, rank).mT.contiguous()  # equal where values are
    found = rank.new_zeros(*rank.shape[:2], M)
    for feature in range(rank.shape[-1]):  # all at once would need so many times the memory
        own = code[:, feature]  # (B, M + N)
        differs = own.unsqueeze(2) != own[:, None, :M]
        found.addcmul_(differs, weight[:, feature, None, None])
    return found


@torch.no_grad()
def regress(cells: Tensor, T_tr: Tensor) -> Regressions:
    """Fits all regressions to tables, and predicts training rows without themselves.

    Args:
        cells: Of `describe_cells`, (B, M + N, D, 3).
        T_tr: Targets of the training rows, (B, M, C), around 0.
    """
    M, eye = T_tr.shape[1], torch.eye(T_tr.shape[1], device=T_tr.device, dtype=T_tr.dtype)
    means, variances = [], []
    for plain, own in _kernels(cells, T_tr):
        K, itself = plain + 1, own + 1  # and a constant
        across = K[:, M:]
        for noise in NOISES:
            inverse = torch.cholesky_inverse(torch.linalg.cholesky(K[:, :M] + noise * eye))
            a, diagonal = inverse @ T_tr, inverse.diagonal(dim1=1, dim2=2)  # (B, M, C), (B, M)
            means.append(torch.cat([T_tr - a / diagonal.unsqueeze(-1), across @ a], dim=1))
            known = ((across @ inverse) * across).sum(dim=-1)
            at_test = (itself[:, M:] - known).clamp(min=0) + noise
            variances.append(torch.cat([1 / diagonal, at_test], dim=1))
    return Regressions(torch.stack(means, dim=-1), torch.stack(variances, dim=-1))


def stack_labels(means: Tensor, T_tr: Tensor) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities of classes, (B, M + N, C), and how likely labels are.

    Each regression's scores, raised to each of several powers, are probabilities. All are averaged
    by how likely they make the training labels, (B, E): the second result, the best of the powers.

    Args:
        means: Scores of classes, (B, M + N, C, E); see `Regressions`.
        T_tr: Ones and zeros, (B, M, C); a class without a one does not exist.
    """
    M = T_tr.shape[1]
    there = T_tr.any(dim=1)[:, None, :, None]  # (B, 1, C, 1)
    scores = means.clamp(min=LEAST).log().masked_fill(~there, -math.inf)
    each = [(power * scores).log_softmax(dim=2) for power in POWERS]
    given = T_tr.unsqueeze(-1) > 0
    likely = torch.stack(
        [p[:, :M].masked_fill(~given, 0.0).sum(dim=(1, 2)) for p in each], dim=-1
    )  # (B, E, powers)
    weight = (FACTOR * likely).flatten(1).log_softmax(dim=-1).view_as(likely)
    parts = [(p + weight[:, None, None, :, i]).logsumexp(dim=-1) for i, p in enumerate(each)]
    return torch.stack(parts).logsumexp(dim=0), likely.amax(dim=-1)


def stack_numbers(found: Regressions, T_tr: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities of intervals, (B, M + N, bins), and how likely targets are, (B, E).

    Each regression believes in a Gaussian, in units of how far it was off at training rows. All are
    averaged by how likely they make the training targets.

    Args:
        found: Regressions of one output.
        T_tr: Targets, (B, M, 1).
        edges: Of the intervals, (bins + 1,), ascending; the outermost reach to infinity.
    """
    M, means = T_tr.shape[1], found.means.squeeze(2)
    off = T_tr - means[:, :M]  # (B, M, E)
    unit = (off.square() / found.variances[:, :M]).mean(dim=1, keepdim=True)
    variance = found.variances * (unit + 1e-6)
    likely = -0.5 * (off.square() / variance[:, :M] + variance[:, :M].log()).sum(dim=1)
    weight = (FACTOR * likely).softmax(dim=-1)  # (B, E)
    inner = edges[1:-1]
    at = (inner - means.unsqueeze(-1)) / variance.sqrt().unsqueeze(-1)  # (B, M + N, E, bins - 1)
    below = torch.einsum("brek,be->brk", torch.special.ndtr(at), weight)
    zero, all_ = below.new_zeros(below.shape[:2]), below.new_ones(below.shape[:2])
    cumulated = torch.cat([zero.unsqueeze(-1), below, all_.unsqueeze(-1)], dim=-1)
    p = (1 - UNIFORM) * cumulated.diff(dim=-1).clamp(min=0) + UNIFORM / (len(edges) - 1)
    return p.log(), likely
