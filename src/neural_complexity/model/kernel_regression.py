"""Kernel ridge regressions of a table in closed form, and the belief that they have together.

They predict each training row without it, so how good they are is known without a second fit.
Test rows are not seen by each other, the order and the units of features do not matter, and any
number of classes is treated alike.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from torch.nn.functional import one_hot

__all__ = [
    "REGRESSIONS",
    "Regressions",
    "Solved",
    "regress",
    "relevance",
    "solve",
    "stack_labels",
    "stack_numbers",
]

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
    variances: Tensor  # (B, M + N, E), with noise, in units of each; of none if not asked for


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


def _kernels(
    cells: Tensor, known: Tensor, weights: Sequence[Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields kernels of rows with training rows, (B, R, M), and of rows with themselves, (B, R).

    Args:
        cells: Of these rows, (B, R, D, 3).
        known: Of the training rows, (B, M, D, 3).
        weights: Of features, (B, 2 D) each; see `_weights`.
    """
    sides = [(*c.unbind(dim=-1),) for c in (cells, known)]  # value, rank and missing of each
    one = cells.new_ones(cells.shape[:2])
    for i, w in enumerate(weights):
        F, F_tr = (_features(*side, ranks=i >= len(weights) // 2) for side in sides)
        f, f_tr = (rows * w.sqrt().unsqueeze(1) for rows in (F, F_tr))
        inner = f @ f_tr.mT
        size, size_tr = (rows.square().sum(dim=-1) for rows in (f, f_tr))
        squared = (size.unsqueeze(-1) + size_tr.unsqueeze(1) - 2 * inner).clamp(min=0)
        distance = torch.cdist(F * w.unsqueeze(1), F_tr * w.unsqueeze(1), p=1.0)
        yield inner, size
        yield (-squared).exp(), one
        yield (-squared / 3).exp(), one
        yield (-2 * distance).exp(), one
        yield (-5 * distance).exp(), one
        if i < len(weights) // 2:
            own, its = (torch.where(missing > 0, math.pi, rank) for _, rank, missing in sides)
            differ = _weighted_differences(own, its, w)
            yield (-2 * differ).exp(), one
            yield (-5 * differ).exp(), one


def _features(value: Tensor, rank: Tensor, missing: Tensor, *, ranks: bool) -> Tensor:
    """Returns what regressions see of rows, (B, R, 2 D): values or ranks, and what is missing."""
    return torch.cat([RANK * rank if ranks else value, missing], dim=-1)


def _weights(known: Tensor, T_tr: Tensor) -> list[Tensor]:
    """Returns weights of features, (B, 2 D): two of values and two of ranks; they sum to 1."""
    useful = relevance(known, T_tr)
    useful = torch.cat([useful, torch.full_like(useful, 1 / T_tr.shape[1])], dim=-1)
    found = []
    for ranks in (False, True):
        F = _features(*known.unbind(dim=-1), ranks=ranks)
        varies = (F.var(dim=1, correction=0) > CONSTANT).to(F.dtype)
        for weight in (varies, varies * useful):
            found.append(weight / weight.sum(dim=-1, keepdim=True).clamp(min=1e-12))
    return found


def _weighted_differences(codes: Tensor, known: Tensor, weight: Tensor) -> Tensor:
    """Returns the weight of features in which rows differ from training rows, (B, R, M).

    Args:
        codes: Of rows, (B, R, D): equal where values are.
        known: Of training rows, (B, M, D).
        weight: Of features, (B, D) or more, the first of which count.
    """
    own, its = codes.mT.contiguous(), known.mT.contiguous()
    found = codes.new_zeros(len(codes), codes.shape[1], known.shape[1])
    for feature in range(own.shape[1]):  # all at once would need so many times the memory
        differs = own[:, feature].unsqueeze(2) != its[:, feature].unsqueeze(1)
        found.addcmul_(differs, weight[:, feature, None, None])
    return found


@dataclass(frozen=True)
class Solved:
    """One regression of tables, and what it predicts for training rows without them."""

    noise: float
    weights: Tensor  # of training rows, (B, M, C)
    inverse: Tensor | None  # of the kernel with noise, (B, M, M), if variances are asked for
    means: Tensor  # (B, M, C)
    variances: Tensor  # (B, M)


@torch.no_grad()
def solve(known: Tensor, T_tr: Tensor, *, variances: bool = True) -> Iterator[Solved]:
    """Fits all regressions to tables, one after the other: the work that test rows share.

    Args:
        known: Cells of the training rows, of `describe_cells`, (B, M, D, 3).
        T_tr: Their targets, (B, M, C), around 0.
        variances: Whether those of test rows will be asked for.
    """
    eye = torch.eye(T_tr.shape[1], device=T_tr.device, dtype=T_tr.dtype)
    for kernel, _ in _kernels(known, known, _weights(known, T_tr)):
        K = kernel + 1  # and a constant
        for noise in NOISES:
            inverse = torch.cholesky_inverse(torch.linalg.cholesky(K + noise * eye))
            a, diagonal = inverse @ T_tr, inverse.diagonal(dim1=1, dim2=2)  # (B, M, C), (B, M)
            means = T_tr - a / diagonal.unsqueeze(-1)
            yield Solved(noise, a, inverse if variances else None, means, 1 / diagonal)


@torch.no_grad()
def regress(
    cells: Tensor, T_tr: Tensor, solved: Iterable[Solved] | None = None, *, variances: bool = True
) -> Regressions:
    """Predicts test rows by all regressions, and training rows without themselves.

    Args:
        cells: Of `describe_cells`, (B, M + N, D, 3).
        T_tr: Targets of the training rows, (B, M, C), around 0.
        solved: What `solve` found for these, if it is at hand.
        variances: Whether to return them.
    """
    known, asked = cells.tensor_split([T_tr.shape[1]], dim=1)
    each = iter(solve(known, T_tr, variances=variances) if solved is None else solved)
    means, spread = [], []
    for kernel, own in _kernels(asked, known, _weights(known, T_tr)):
        K = kernel + 1
        for one in islice(each, len(NOISES)):
            means.append(torch.cat([one.means, K @ one.weights], dim=1))
            if variances and one.inverse is not None:
                explained = ((K @ one.inverse) * K).sum(dim=-1)
                at_test = (own + 1 - explained).clamp(min=0) + one.noise
                spread.append(torch.cat([one.variances, at_test], dim=1))
    none = cells.new_empty((*cells.shape[:2], 0))
    return Regressions(torch.stack(means, -1), torch.stack(spread, -1) if spread else none)


def stack_labels(means: Tensor, T_tr: Tensor, *, first: int = 0) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities of classes, (B, rows, C), and how likely labels are.

    Each regression's scores, raised to each of several powers, are probabilities. All are averaged
    by how likely they make the training labels, (B, E): the second result, the best of the powers.

    Args:
        means: Scores of classes, (B, M + N, C, E); see `Regressions`.
        T_tr: Ones and zeros, (B, M, C); a class without a one does not exist.
        first: The first of the rows that are returned, all M + N or fewer.
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
    parts = [
        (p[:, first:] + weight[:, None, None, :, i]).logsumexp(dim=-1) for i, p in enumerate(each)
    ]
    return torch.stack(parts).logsumexp(dim=0), likely.amax(dim=-1)


def stack_numbers(
    found: Regressions, T_tr: Tensor, edges: Tensor, *, first: int = 0
) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities of intervals, (B, rows, bins), and how likely targets are, (B, E).

    Each regression believes in a Gaussian, in units of how far it was off at training rows. All are
    averaged by how likely they make the training targets.

    Args:
        found: Regressions of one output, with variances.
        T_tr: Targets, (B, M, 1).
        edges: Of the intervals, (bins + 1,), ascending; the outermost reach to infinity.
        first: The first of the rows that are returned, all M + N or fewer.
    """
    M, means = T_tr.shape[1], found.means.squeeze(2)
    off = T_tr - means[:, :M]  # (B, M, E)
    unit = (off.square() / found.variances[:, :M]).mean(dim=1, keepdim=True)
    variance = found.variances * (unit + 1e-6)
    likely = -0.5 * (off.square() / variance[:, :M] + variance[:, :M].log()).sum(dim=1)
    weight = (FACTOR * likely).softmax(dim=-1)  # (B, E)
    inner, centre, width = edges[1:-1], means[:, first:], variance[:, first:].sqrt()
    at = (inner - centre.unsqueeze(-1)) / width.unsqueeze(-1)  # (B, rows, E, bins - 1)
    below = torch.einsum("brek,be->brk", torch.special.ndtr(at), weight)
    zero, all_ = below.new_zeros(below.shape[:2]), below.new_ones(below.shape[:2])
    cumulated = torch.cat([zero.unsqueeze(-1), below, all_.unsqueeze(-1)], dim=-1)
    p = (1 - UNIFORM) * cumulated.diff(dim=-1).clamp(min=0) + UNIFORM / (len(edges) - 1)
    return p.log(), likely
