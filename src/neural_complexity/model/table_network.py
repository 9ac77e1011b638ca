"""The network that reads a table: any number of rows and features, in any order, some missing."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from neural_complexity.beliefs import Histogram
from neural_complexity.model.architecture import Architecture
from neural_complexity.model.attention import attend
from neural_complexity.model.kernel_regression import (
    REGRESSIONS,
    Regressions,
    Solved,
    regress,
    solve,
    stack_labels,
    stack_numbers,
)

__all__ = ["CONSTANT", "TableNetwork", "describe_cells", "fill_missing"]

SEEN = 3  # numbers that `describe_cells` returns for each cell
LARGEST = 1e6  # times the largest training value: what is beyond counts as there
CONSTANT = 1e-6  # a column that varies by less than this part of its mean is constant
OWN = 6  # numbers of a token that are not a regression's
LOWEST = -5.0  # a logarithm: what is below counts as there
FURTHEST = 5.0  # predictions: what is beyond counts as there
REMEMBERED = 2**20  # numbers of a solved regression that is kept, at most
FAR = 2.0  # standard deviations beyond which a value counts by its logarithm


def fill_missing(X: Tensor) -> Tensor:
    """Replaces what is missing in tables (B, M, D) by the mean of its column, or 0 if all is."""
    return torch.where(X.isnan(), X.nanmean(dim=1, keepdim=True).nan_to_num(), X)


def describe_cells(X_tr: Tensor, X_te: Tensor) -> Tensor:
    """Returns what the network sees of each cell, (B, M + N, D, 3), whatever the features' units.

    That is its value in standard deviations of the training rows, its rank among them from -1 to 1,
    and whether it is missing (NaN).
    """
    M = X_tr.shape[1]
    X = torch.cat([X_tr, X_te], dim=1)
    missing = X.isnan()
    there = ~missing[:, :M]
    count = there.sum(dim=1, keepdim=True).clamp(min=1)  # (B, 1, D)
    X = X.nan_to_num(nan=0.0)
    # In units of the largest value, whose square is a number whatever it is.
    X = X / X[:, :M].abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(X.dtype).tiny)
    X = X.clamp(-LARGEST, LARGEST)
    mean = (X[:, :M] * there).sum(dim=1, keepdim=True) / count
    variance = ((X[:, :M] - mean).square() * there).sum(dim=1, keepdim=True) / count
    varies = variance > (CONSTANT * mean).square()  # by more than rounding
    Z = (X - mean) / torch.where(varies, variance, 1.0).sqrt()
    size = Z.abs()
    Z = Z.sign() * torch.where(size > FAR, FAR + (size - FAR + 1).clamp(min=1).log(), size)
    known = torch.where(there, X[:, :M], math.inf).mT.contiguous().sort(dim=-1).values  # (B, D, M)
    asked = X.mT.contiguous()
    below, upto = (torch.searchsorted(known, asked, right=right) for right in (False, True))
    rank = (below + upto).mT.to(X.dtype) / count - 1
    return torch.stack([Z, rank, missing.to(X.dtype)], dim=-1) * _kept(missing)


def _kept(missing: Tensor) -> Tensor:
    """Returns 0 for value and rank of what is missing, and 1 for everything else, (..., 3)."""
    there = (~missing).unsqueeze(-1)
    return torch.cat([there, there, torch.ones_like(there)], dim=-1)


class TableNetwork(nn.Module):
    """Returns a belief for each test row: that of kernel regressions, with a learned correction.

    A row has one token per class, or one if targets are numbers, made of what the regressions say
    of it, of how good they are, and of its target where that is known. Layers let the tokens of a
    row see each other, and then those of a class; of these, training rows alone are seen, among
    them some that are learned and in every table.

    Args:
        a: The sizes; real targets have `bins` answers.
    """

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.architecture, width, answers = a, a.width, a.bins or 1
        self._last: tuple[Tensor, Tensor, list[Solved]] | None = None  # training rows, and solved
        self.table_layers = nn.ModuleList(_Layer(width, a.heads) for _ in range(a.table_layers))
        if not a.table_layers:
            return
        self.on_tokens = nn.Linear(3 * REGRESSIONS + OWN, width)
        self.extra_rows = nn.Parameter(torch.randn(a.extra_rows, width).mul_(0.02))
        self.norm = nn.LayerNorm(width)
        self.answers = nn.Linear(width, answers)
        nn.init.zeros_(self.answers.weight)  # at first, beliefs are those of the regressions
        nn.init.zeros_(self.answers.bias)

    def forward(self, X_tr: Tensor, T_tr: Tensor, X_te: Tensor) -> Tensor:
        """Returns log-probabilities, up to a constant: of classes, (B, N, C), or of bins.

        Args:
            X_tr: Features, (B, M, D); NaN if missing.
            T_tr: Ones and zeros, (B, M, C), or targets with mean 0 and variance 1, (B, M, 1).
            X_te: Likewise, (B, N, D).
        """
        M, bins = T_tr.shape[1], self.architecture.bins
        if not self.table_layers:
            return self._regress(X_tr, T_tr, X_te)[0]
        known, tokens = self._describe(X_tr, T_tr, X_te)
        extra = len(self.extra_rows)
        e = self.on_tokens(tokens)  # (B, M + N, C, E)
        learned = self.extra_rows[:, None].expand(len(e), -1, e.shape[2], -1)
        e = torch.cat([learned, e], dim=1)
        there = T_tr.any(dim=1)  # classes, (B, C)
        for layer in self.table_layers:
            e = layer(e, extra + M, there if not bins else there.new_ones(there.shape))
        added = self.answers(self.norm(e[:, extra + M :]))  # (B, N, C, 1), or (B, N, 1, bins)
        answers: Tensor = known[:, M:] + added.squeeze(2 if bins else 3)
        return answers

    @torch.no_grad()
    def _regress(
        self, X_tr: Tensor, T_tr: Tensor, X_te: Tensor
    ) -> tuple[Tensor, Tensor, Regressions]:
        """Returns the regressions' belief about test rows, or all if there are layers.

        And how likely targets are by each, (B, E), and what they predict.
        """
        M, bins, cells = T_tr.shape[1], self.architecture.bins, describe_cells(X_tr, X_te)
        first, variances = 0 if self.table_layers else M, bool(bins or self.table_layers)
        T = T_tr if bins else T_tr - _usual(T_tr)
        found = regress(cells, T, self._solve(cells[:, :M], T, variances), variances=variances)
        if bins:
            edges = Histogram.standard_edges(bins).to(T_tr)
            return *stack_numbers(found, T_tr, edges, first=first), found
        scores = found.means + _usual(T_tr).unsqueeze(-1)
        return *stack_labels(scores, T_tr, first=first), found

    def _solve(self, known: Tensor, T: Tensor, variances: bool) -> Iterable[Solved] | None:
        """Returns the solved regressions of a few tables; those of the last ones are remembered.

        Not where layers are trained, whose tables are new at every step. But whoever trains a model
        asks about the same training rows at every step, and whoever judges many test rows asks
        about some of them at a time.
        """
        B, M = T.shape[:2]
        if self.table_layers or B * M * max(M if variances else 0, T.shape[2]) > REMEMBERED:
            return None
        before = self._last
        if before is not None and _equal(before[0], known) and _equal(before[1], T):
            return before[2]
        solved = list(solve(known, T, variances=variances))
        self._last = known.clone(), T.clone(), solved
        return solved

    @torch.no_grad()
    def _describe(self, X_tr: Tensor, T_tr: Tensor, X_te: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the regressions' belief about all rows, and tokens, (B, M + N, C, ...)."""
        (B, M, D), N, C = X_tr.shape, X_te.shape[1], T_tr.shape[-1]
        known, likely, found = self._regress(X_tr, T_tr, X_te)
        if self.architecture.bins:
            classes = T_tr.new_ones(B)
            edges = Histogram.standard_edges(self.architecture.bins).to(T_tr)
            own = (known.exp() @ (edges[1:] + edges[:-1]) / 2).unsqueeze(-1)  # the mean
        else:
            classes = T_tr.any(dim=1).sum(dim=-1).to(T_tr.dtype)
            own = known.clamp(min=LOWEST) / -LOWEST
        rows, features = (torch.full_like(classes, math.log(size)) for size in (M, D))
        sizes = torch.stack([rows, features, classes.log()], dim=-1)
        worse = (likely - likely.amax(dim=-1, keepdim=True)) / M  # (B, E), per row
        of_table = torch.cat([worse.clamp(min=LOWEST), sizes / 3], dim=-1)[:, None, None]
        given = torch.cat([T_tr, T_tr.new_zeros(B, N, C)], dim=1)
        seen = torch.cat([T_tr.new_ones(B, M, C), T_tr.new_zeros(B, N, C)], dim=1)
        wide = (B, M + N, C, -1)
        tokens = [
            found.means.clamp(-FURTHEST, FURTHEST),
            found.variances.log()[:, :, None].expand(wide),
            of_table.expand(wide),
            torch.stack([given, seen, own], dim=-1),
        ]
        return known, torch.cat(tokens, dim=-1)


def _equal(one: Tensor, other: Tensor) -> bool:
    """Says whether two tensors are the same, in the same place."""
    alike = one.dtype == other.dtype and one.device == other.device
    return alike and torch.equal(one, other)


def _usual(T_tr: Tensor) -> Tensor:
    """Returns what a class has if all that are there are alike, (B, 1, 1)."""
    return 1 / T_tr.any(dim=1).sum(dim=-1).to(T_tr.dtype)[:, None, None]


class _Attention(nn.Module):
    """Adds to each token what it sees of the first ones, of those that are there, or of all."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.queries, self.keys, self.values, self.outwards = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        nn.init.zeros_(self.outwards.weight)

    def forward(self, e: Tensor, seen: int | None = None, there: Tensor | None = None) -> Tensor:
        normed = self.norm(e)
        first = normed[:, :seen]
        Q, K, V = self.queries(normed), self.keys(first), self.values(first)
        added: Tensor = self.outwards(attend(Q, K, V, heads=self.heads, there=there))
        return e + added


class _Hidden(nn.Module):
    """Adds to each token what two layers make of it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, 2 * width, bias=False)
        self.second = nn.Linear(2 * width, width, bias=False)
        nn.init.zeros_(self.second.weight)

    def forward(self, e: Tensor) -> Tensor:
        added: Tensor = self.second(gelu(self.first(self.norm(e))))
        return e + added


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.across, self.down = _Attention(width, heads), _Attention(width, heads)
        self.hidden = _Hidden(width)

    def forward(self, e: Tensor, seen: int, there: Tensor) -> Tensor:
        B, rows, tokens, E = e.shape
        if tokens > 1:
            classes = there.repeat_interleave(rows, dim=0)  # (B rows, tokens)
            e = self.across(e.flatten(0, 1), there=classes).view(B, rows, tokens, E)
        columns = e.transpose(1, 2).reshape(B * tokens, rows, E)
        e = self.hidden(self.down(columns, seen))
        return e.view(B, tokens, rows, E).transpose(1, 2)
