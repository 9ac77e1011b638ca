"""How well a measure ranks models by their generalization gap, with intervals over models."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neural_complexity.meta.scores import Estimate, estimate, mean_absolute_error, r_squared
from neural_complexity.seeding import stream

__all__ = ["CMI", "GRANULATED", "MAE", "R2", "TAU", "WORST", "Columns"]
__all__ += ["Hyperparameters", "conditional_information", "granulated_tau", "kendall_tau"]
__all__ += ["score_measure", "sign_errors", "worst_sign_error"]

TAU, GRANULATED, CMI = "Kendall's tau", "granulated tau", "CMI"
WORST, R2, MAE = "worst sign error", "R2", "MAE"
RESAMPLES = 200  # of the models, for intervals
MOST = 2  # hyper-parameters that are conditioned on at a time, if there are so many

Columns = Mapping[str, Sequence[Any] | Tensor]  # a value for each of n models, by name
Statistic = Callable[..., Tensor]  # of values, gaps and weights

# All statistics are sums over ordered pairs of models, each weighted by the product of the weights
# of both. So a resample of models is no new set of pairs, but a row of weights: how often it drew
# each model.


class Hyperparameters:
    """The values of hyper-parameters of n models; those that never change are left out."""

    def __init__(self, columns: Columns) -> None:
        coded = {name: np.unique(np.asarray(c), return_inverse=True) for name, c in columns.items()}
        self.values = {name: known.tolist() for name, (known, _) in coded.items() if len(known) > 1}
        self.codes = {name: torch.from_numpy(coded[name][1]).reshape(-1) for name in self.values}

    def joint(self, names: Sequence[str]) -> Tensor:
        """Returns which models have which values of several together, ones in (values, n)."""
        coded = torch.stack([self.codes[name] for name in names])  # (names, n)
        _, place = torch.unique(coded, dim=1, return_inverse=True)
        return torch.nn.functional.one_hot(place).T.double()

    def others(self, name: str) -> list[str]:
        """Returns the names of all but one."""
        return [other for other in self.codes if other != name]

    def alone(self, name: str) -> Tensor:
        """Returns the pairs of models that differ in one and in no other, ones in (n, n)."""
        different = {k: codes[:, None] != codes for k, codes in self.codes.items()}
        found = different[name]
        for other in self.others(name):
            found = found & ~different[other]
        return found.double()


def kendall_tau(values: Tensor, gaps: Tensor, weights: Tensor | None = None) -> Tensor:
    """Computes Kendall's tau-b between a measure and the gap (as `scipy.stats.kendalltau`).

    Args:
        values: Of the measure, (n,).
        gaps: Of the same models, (n,).
        weights: Of models, (..., n); one each if `None`.

    Returns:
        From -1 to 1, (...); 0 for a measure that is the same for all.
    """
    w = _weights(values, weights)
    sums = [((w @ pairs) * w).sum(dim=-1) for pairs in _agreement(values, gaps)]
    return _tau(*sums)


def granulated_tau(
    values: Tensor, gaps: Tensor, hyper: Hyperparameters, weights: Tensor | None = None
) -> Tensor:
    """Computes Psi of Jiang et al. (2020): tau where one hyper-parameter alone changes.

    Tau is taken within each group of models that differ in one hyper-parameter only, and averaged
    over the groups of that one, and then over hyper-parameters; NaN where there are no groups.
    """
    w, found = _weights(values, weights), []
    for name in hyper.codes:
        alone, others = hyper.alone(name), hyper.others(name)
        groups = hyper.joint(others) if others else torch.ones(1, len(values)).double()
        # Only models of one group make a pair, so that sums over pairs are sums over its models.
        sums = [((w @ (A * alone)) * w) @ groups.T for A in _agreement(values, gaps)]
        found.append(_tau(*sums).nanmean(dim=-1))
    return torch.stack(found).nanmean(dim=0) if found else w.new_full(w.shape[:-1], torch.nan)


def conditional_information(
    values: Tensor, gaps: Tensor, hyper: Hyperparameters, weights: Tensor | None = None
) -> Tensor:
    """Computes the score of the PGDL contest (Jiang et al., 2020 and 2021), from 0 to 1.

    For pairs of models, it is the mutual information of the signs of the differences of measure and
    gap, given the values of some hyper-parameters of both models, over the entropy of the sign of
    the gap given these. The score is the least of it over all pairs of hyper-parameters: a measure
    that only tells apart what a hyper-parameter tells has none. With few models for each value, it
    is larger than it should be. The contest's own code takes ties for a sign, counts a model with
    itself as a pair, and has accuracies for losses.
    """
    w, S, G = _weights(values, weights), _signs(values), _signs(gaps)
    off = 1 - torch.eye(len(values)).double()
    half = [((s == S) & (g == G)) * off for s, g in ((1, 1), (1, 0), (1, -1), (0, 1), (0, 0))]
    least = w.new_full(w.shape[:-1], math.inf)
    for names in combinations(hyper.codes, min(MOST, len(hyper.codes))):
        Z = hyper.joint(names) if names else torch.ones(1, len(values)).double()
        upp, upz, upm, zup, zz = (_by_values(pairs, w, Z) for pairs in half)
        # The pair (j, i) has the opposite signs of (i, j), and its values in the opposite order.
        table = [upp, upz, upm, zup, zz, zup.mT, upm.mT, upz.mT, upp.mT]
        p = torch.stack(table, dim=-1).flatten(-3, -2).unflatten(-1, (3, 3))  # (..., cells, 3, 3)
        p = p / p.sum(dim=(-3, -2, -1), keepdim=True)
        given = _entropy(p.sum(dim=(-2, -1)))
        of_gap, of_measure = (_entropy(p.sum(dim=d).flatten(-2)) - given for d in (-2, -1))
        both = _entropy(p.flatten(-3)) - given
        share = ((of_gap + of_measure - both) / of_gap).clamp(0, 1)
        # Where the values of hyper-parameters decide the sign of the gap, nothing is left to tell.
        least = torch.where(of_gap > 1e-9, torch.minimum(least, share), least)
    return least.masked_fill(least.isinf(), torch.nan)


def sign_errors(
    values: Tensor, gaps: Tensor, hyper: Hyperparameters, weights: Tensor | None = None
) -> dict[tuple[str, Any, Any], Tensor]:
    """Computes the sign error in each environment (Dziugaite et al. 2020), (...) each.

    An environment is a hyper-parameter and two of its values; its pairs of models have these values
    and are the same in all others. The error is the share of pairs that a measure puts in the wrong
    order; half of those that it does not tell apart. All pairs count alike: Dziugaite et al. weight
    them by how sure it is that gaps of so many test points differ. For a measure that says nothing
    errors are one half, and the largest of several is above it.
    """
    w, S, G = _weights(values, weights), _signs(values), _signs(gaps)
    found = {}
    for name, known in hyper.values.items():
        told = hyper.alone(name) * G.abs()
        Z = hyper.joint([name])
        wrong, every = (_by_values(A, w, Z) for A in (told * (1 - S * G) / 2, told))
        for a, b in combinations(range(len(known)), 2):
            error = wrong[..., a, b] / every[..., a, b]
            if every[..., a, b].any():
                found[name, known[a], known[b]] = error
    return found


def worst_sign_error(
    values: Tensor, gaps: Tensor, hyper: Hyperparameters, weights: Tensor | None = None
) -> Tensor:
    """Computes the largest of the `sign_errors`, (...); NaN where there are no environments."""
    found = sign_errors(values, gaps, hyper, weights)
    if not found:
        return torch.full(_weights(values, weights).shape[:-1], torch.nan).double()
    errors = torch.stack(list(found.values()))
    largest = errors.nan_to_num(-math.inf).amax(dim=0)
    return largest.masked_fill(largest.isinf(), torch.nan)


def score_measure(
    values: Tensor, gaps: Tensor, hyper: Columns | None = None, *, in_loss_units: bool = False
) -> dict[str, Estimate]:
    """Scores a measure by all that applies, each with an interval from resampling the models.

    Args:
        values: Of the measure, (n,); larger means that a model is predicted to generalize worse.
        gaps: Of the same models, (n,).
        hyper: Their hyper-parameters; without, there is Kendall's tau alone.
        in_loss_units: Whether the measure is a prediction of the gap, to be scored by R2 and MAE.
    """
    values, gaps = (tensor.detach().cpu().double() for tensor in (values, gaps))
    n, known = len(values), Hyperparameters(hyper or {})
    statistics: dict[str, Statistic] = {TAU: kendall_tau}
    if known.codes:
        more = ((GRANULATED, granulated_tau), (CMI, conditional_information))
        statistics |= {name: partial(own, hyper=known) for name, own in more}
        statistics[WORST] = partial(worst_sign_error, hyper=known)
    drawn = torch.randint(n, (RESAMPLES, n), generator=stream(0, "bootstrap models"))
    weights = (
        torch.zeros(RESAMPLES, n)
        .double()
        .scatter_add_(1, drawn, torch.ones(1).double().expand(RESAMPLES, n))
    )
    found = {}
    for name, statistic in statistics.items():
        value, resampled = statistic(values, gaps).item(), statistic(values, gaps, weights=weights)
        resampled = resampled[resampled.isfinite()]
        if math.isfinite(value):
            half = 1.96 * resampled.std().item() if len(resampled) > 1 else None
            found[name] = Estimate(value, half, n)
    if in_loss_units:
        found[R2], found[MAE] = (
            estimate(s, values, gaps) for s in (r_squared, mean_absolute_error)
        )
    return found


def _weights(values: Tensor, weights: Tensor | None) -> Tensor:
    return torch.ones(len(values)).double() if weights is None else weights


def _signs(x: Tensor) -> Tensor:
    """Returns the signs of all differences, (n, n); infinite ones, too."""
    return (x[:, None] > x).double() - (x[:, None] < x).double()


def _agreement(values: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns of all pairs, (n, n), whether they agree, and which of both tells them apart."""
    S, G = _signs(values), _signs(gaps)
    return S * G, S.abs(), G.abs()


def _tau(agree: Tensor, by_values: Tensor, by_gaps: Tensor) -> Tensor:
    tau = agree / (by_values * by_gaps).sqrt()
    return torch.where(by_gaps > 0, tau.nan_to_num(0.0), torch.nan)


def _by_values(pairs: Tensor, weights: Tensor, Z: Tensor) -> Tensor:
    """Sums over pairs (n, n) by the values of both models, ones in (V, n), as (..., V, V)."""
    left = weights.unsqueeze(-2) * Z  # (..., V, n)
    return left @ pairs @ left.mT


def _entropy(p: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(p).sum(dim=-1)
    return entropy
