"""The network that reads a table: any number of rows and features, in any order, some missing."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from neural_complexity.model.architecture import Architecture
from neural_complexity.model.attention import attend

__all__ = ["CONSTANT", "TableNetwork", "describe_cells", "fill_missing"]

SEEN = 3  # numbers that `describe_cells` returns for each cell
LARGEST = 1e6  # times the largest training value: what is beyond counts as there
CONSTANT = 1e-6  # a column that varies by less than this part of its mean is constant
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
    """Returns one row of outputs per test row.

    Each cell of the table is a token, and so is each row's target, which is unknown for test rows.
    Layers let the cells of a row see each other, and then those of a column; of a column, training
    rows alone are seen, among them some that are learned and in every table. Then each row becomes
    one token, and further layers let rows see training rows.

    Args:
        targets: Numbers that say a training row's target.
        outputs: Numbers to answer with.
        a: The sizes.
    """

    def __init__(self, targets: int, outputs: int, a: Architecture) -> None:
        super().__init__()
        self.architecture, width = a, a.width
        self.on_cells = nn.Linear(SEEN, width)
        self.on_targets = nn.Linear(targets, width, bias=False)
        self.unknown = nn.Parameter(0.02 * torch.randn(width))
        self.summaries = nn.Parameter(0.02 * torch.randn(a.summaries, width))
        self.extra_rows = nn.Parameter(0.02 * torch.randn(a.extra_rows, width))
        self.cell_layers = nn.ModuleList(_CellLayer(width, a.heads) for _ in range(a.cell_layers))
        whole = width * (1 + a.summaries)
        heads = a.heads * (1 + a.summaries)
        self.row_layers = nn.ModuleList(_RowLayer(whole, heads) for _ in range(a.row_layers))
        self.targets_again = nn.Linear(targets, whole, bias=False)
        self.norm = nn.LayerNorm(whole)
        self.answers = nn.Linear(whole, outputs)
        nn.init.normal_(self.on_targets.weight, std=0.5)
        nn.init.normal_(self.targets_again.weight, std=0.5)
        nn.init.zeros_(self.answers.weight)

    def forward(self, X_tr: Tensor, T_tr: Tensor, X_te: Tensor) -> Tensor:
        """Answers for each test row, (B, N, outputs), from T_tr, (B, M, targets)."""
        (B, M, _), N, extra = X_tr.shape, X_te.shape[1], len(self.extra_rows)
        cells = self.on_cells(describe_cells(X_tr, X_te))  # (B, M + N, D, E)
        known = torch.cat([self.on_targets(T_tr), self.unknown.expand(B, N, -1)], dim=1)
        summaries = self.summaries.expand(B, M + N, -1, -1)
        e = torch.cat([known.unsqueeze(2), summaries, cells], dim=2)  # (B, M + N, tokens, E)
        learned = self.extra_rows[:, None].expand(B, -1, e.shape[2], -1)
        e = torch.cat([learned, e], dim=1)  # (B, rows, tokens, E)
        for layer in self.cell_layers:
            e = layer(e, extra + M)
        e = e[:, :, : 1 + len(self.summaries)].flatten(2)  # (B, rows, whole)
        if self.row_layers:
            again = self.targets_again(T_tr)
            nothing = [again.new_zeros(B, rows, again.shape[-1]) for rows in (extra, N)]
            e = e + torch.cat([nothing[0], again, nothing[1]], dim=1)
        for layer in self.row_layers:
            e = layer(e, extra + M)
        answers: Tensor = self.answers(self.norm(e[:, extra + M :]))
        return answers


class _Attention(nn.Module):
    """Adds to each token what it sees of the first ones, or of all."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.queries, self.keys, self.values, self.outwards = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        nn.init.zeros_(self.outwards.weight)

    def forward(self, e: Tensor, seen: int | None = None) -> Tensor:
        normed = self.norm(e)
        first = normed[:, :seen]
        Q, K, V = self.queries(normed), self.keys(first), self.values(first)
        added: Tensor = self.outwards(attend(Q, K, V, heads=self.heads))
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


class _CellLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.across, self.down = _Attention(width, heads), _Attention(width, heads)
        self.hidden = _Hidden(width)

    def forward(self, e: Tensor, seen: int) -> Tensor:
        B, rows, tokens, E = e.shape
        e = self.across(e.flatten(0, 1)).view(B, rows, tokens, E)
        columns = e.transpose(1, 2).reshape(B * tokens, rows, E)
        e = self.hidden(self.down(columns, seen))
        return e.view(B, tokens, rows, E).transpose(1, 2)


class _RowLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.down, self.hidden = _Attention(width, heads), _Hidden(width)

    def forward(self, e: Tensor, seen: int) -> Tensor:
        hidden: Tensor = self.hidden(self.down(e, seen))
        return hidden
