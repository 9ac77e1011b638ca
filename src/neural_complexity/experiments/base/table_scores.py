"""How good estimates of losses are, over tables and kinds of models."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata, spearmanr
from torch import Tensor

from neural_complexity.experiments.base.rows import Row
from neural_complexity.meta.scores import Estimate, estimate_mean

__all__ = ["CV", "Names", "median_ratio", "resample", "score_setting"]

CV = "5-fold CV"
TRAINED = "training loss"
SHOWN = ("NC", "NC and 5-fold CV", CV)  # methods that have a row for each kind of model
RESAMPLES = 1000  # of tables, for intervals
FEWEST = 5  # tables that have an R2
SMALL = 1e-6  # added to errors: one of few tables may be right; and what rounding may be
Array = NDArray[np.float64]
Found = Sequence[dict[str, Tensor]]  # of tables: truth, estimates and beliefs of their splits


@dataclass(frozen=True)
class Names:
    """What stands along the axes of what was found."""

    metrics: Sequence[str]
    kinds: Sequence[str]  # of models
    methods: Sequence[str]  # of estimates
    beliefs: Sequence[str]  # the first of these methods


def score_setting(found: Found, of: Callable[..., Row], names: Names) -> list[Row]:
    """Returns rows of all scores in one setting.

    Args:
        found: Of each table: `truth`, (splits, models, metrics), `estimates`, (splits, models,
            methods, metrics), and `beliefs`, (splits, beliefs, metrics).
        of: Makes a row of a score, an estimate and keys.
        names: What stands along these axes.
    """
    rows = list[Row]()
    for k, metric in enumerate(names.metrics):
        rows += _score_estimates(found, k, partial(of, metric=metric), names)
        rows += _score_models(found, k, partial(of, metric=metric), names)
    return rows


def _score_estimates(found: Found, k: int, of: Callable[..., Row], names: Names) -> Iterator[Row]:
    truth = np.stack([one["truth"][..., k].mean(dim=0) for one in found])  # (tables, models)
    told = np.stack([one["estimates"][..., k].mean(dim=0) for one in found])
    gaps = truth - told[:, :, names.methods.index(TRAINED)]
    # Mean absolute errors of each table, (tables, models, methods).
    errors = np.stack(
        [
            (one["estimates"][..., k] - one["truth"][..., k].unsqueeze(-1)).abs().mean(dim=0)
            for one in found
        ]
    )
    usual = errors[:, :, names.methods.index(CV)]
    for j, method in enumerate(names.methods):
        own = errors[:, :, j]
        if np.isnan(own).all():
            continue
        row = partial(of, method=method)
        ratio = partial(median_ratio, own, usual)
        yield row("error over that of CV", resample(ratio, len(found)))
        for i, kind in enumerate(names.kinds if method in SHOWN and method != CV else ()):
            if not np.isnan(own[:, i]).any():
                ratio = partial(median_ratio, own[:, [i]], usual[:, [i]])
                yield row("error over that of CV by kind", resample(ratio, len(found)), kind=kind)
        off = told[:, :, j] - truth
        if len(found) >= FEWEST:
            yield row("R2 of the gap", resample(partial(_median_r2, off, gaps), len(found)))
        for i, kind in enumerate(names.kinds if method in SHOWN and len(found) >= FEWEST else ()):
            if not np.isnan(own[:, i]).any():
                r2 = partial(_median_r2, off[:, [i]], gaps[:, [i]])
                yield row("R2 of the gap by kind", resample(r2, len(found)), kind=kind)
        yield row("mean absolute error", estimate_mean(torch.from_numpy(np.nanmean(own, axis=1))))
        better = np.nanmean(np.where(np.isnan(own), np.nan, own < usual), axis=1)
        if method != CV:
            yield row("share better than CV", estimate_mean(torch.from_numpy(better)))
        if (ranks := _rank_correlations(found, j, k)) is not None:
            yield row("rank correlation", estimate_mean(ranks))
        best, regret = _choose(found, j, k)
        yield row("best model chosen", estimate_mean(best))
        yield row("loss of choosing", estimate_mean(regret))


def _score_models(found: Found, k: int, of: Callable[..., Row], names: Names) -> Iterator[Row]:
    """Yields rows of losses, and of ranks of losses, of beliefs and models."""
    each = {
        **{
            b: [one["beliefs"][:, j, k].mean() for one in found]
            for j, b in enumerate(names.beliefs)
        },
        **{m: [one["truth"][:, i, k].mean() for one in found] for i, m in enumerate(names.kinds)},
    }
    losses = {name: torch.stack(own) for name, own in each.items()}
    there = {name: own for name, own in losses.items() if not own.isnan().any()}
    ranks = rankdata(np.stack(list(there.values())), axis=0)  # (models, tables)
    for (name, own), rank in zip(there.items(), ranks, strict=True):
        yield of("loss as a model", estimate_mean(own), method=name)
        yield of("rank as a model", estimate_mean(torch.from_numpy(rank)), method=name)


def resample(score: Callable[[NDArray[Any]], Array], tables: int) -> Estimate:
    """Estimates a score of tables, given by their numbers (..., n), with its bootstrap interval."""
    draws = np.random.default_rng(0).integers(0, tables, (RESAMPLES, tables))
    low, high = np.quantile(score(draws), [0.025, 0.975])
    return Estimate(float(score(np.arange(tables))), float(high - low) / 2, tables)


def median_ratio(errors: Array, usual: Array, rows: NDArray[Any]) -> Array:
    """Returns mean errors (tables, models) over usual ones, the median over kinds of models."""
    there = ~np.isnan(usual).all(axis=0)  # kinds of which there are models
    means = (each[:, there][rows].mean(axis=-2) + SMALL for each in (errors, usual))
    return np.asarray(np.median(np.divide(*means), axis=-1))


def _median_r2(off: Array, gaps: Array, rows: NDArray[Any]) -> Array:
    """Returns R2 of gaps (tables, models), the median over kinds, if predictions are so far off."""
    there = ~np.isnan(gaps).all(axis=0)
    off, gaps = off[:, there][rows], gaps[:, there][rows]
    usual = ((gaps - gaps.mean(axis=-2, keepdims=True)) ** 2).sum(axis=-2) + SMALL
    return np.asarray(np.median(1 - (off**2).sum(axis=-2) / usual, axis=-1))


def _choose(found: Found, method: int, metric: int) -> tuple[Tensor, Tensor]:
    """Returns how often the model of the least estimate is the best, and how much worse it is.

    Both are a number per table. Of estimates that are equal but for rounding all are chosen, with
    equal chances.
    """
    best, regret = [], []
    for one in found:
        own = []
        for told, true in zip(one["estimates"], one["truth"], strict=True):
            both = torch.stack([told[:, method, metric], true[:, metric]])
            guess, truth = both[:, ~both.isnan().any(dim=0)]
            chosen = guess <= guess.min() + SMALL if len(guess) else guess.bool()
            if chosen.any():
                behind = (truth - truth.min())[chosen]
                own.append([(behind <= SMALL).double().mean(), behind.mean()])
        if own:
            best.append(np.mean([share for share, _ in own]))
            regret.append(np.mean([behind for _, behind in own]))
    return torch.tensor(best), torch.tensor(regret)


def _rank_correlations(found: Found, method: int, metric: int) -> Tensor | None:
    """Returns how alike models are ordered by estimates and by truth, a number per table."""
    each = []
    for one in found:
        own = []
        for told, true in zip(one["estimates"], one["truth"], strict=True):
            both = torch.stack([told[:, method, metric], true[:, metric]])
            pair = both[:, ~both.isnan().any(dim=0)].numpy()
            if pair.shape[1] > 2 and (pair.std(axis=1) > 0).all():
                own.append(spearmanr(*pair).statistic)
        each += [float(np.mean(own))] if own else []
    return torch.tensor(each) if len(each) > 1 else None
