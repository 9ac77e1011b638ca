import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from measured import classes_of_points, linear
from neural_complexity.baselines.measures import spectra
from neural_complexity.learners.batched import stack
from neural_complexity.seeding import stream

task = classes_of_points(B=2)
# Exponents by the package powerlaw 1.5 (Alstott et al., 2014), of which WeightWatcher is made.
PUBLIC = [(0.8, 0.2, 7, 2.311104792121954), (0.5, 0.3, 5, 3.216233436259147)]


@pytest.mark.parametrize(("decay", "size", "frequency", "alpha"), PUBLIC)
def test_exponents_are_those_of_public_code(
    decay: float, size: float, frequency: float, alpha: float
) -> None:
    i = torch.arange(1.0, 61.0)
    x = (i / 60) ** -decay * (size * (frequency * i).sin()).exp()
    rows = x.sort(descending=True).values.unsqueeze(0)
    assert spectra.power_law(rows).item() == pytest.approx(alpha)


def test_measures_are_those_of_weightwatcher() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of its own parts
        from weightwatcher import WeightWatcher

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 40), nn.ReLU())
        found = WeightWatcher(model=model).analyze(min_evals=0).mean(numeric_only=True)
    h = stack(lambda: model, 1, stream(0))
    ours = {
        "alpha": spectra.power_law_exponent,
        "alpha_weighted": spectra.weighted_power_law_exponent,
        "log_alpha_norm": spectra.log_alpha_norm,
        "log_spectral_norm": spectra.log_spectral_norm,
        "stable_rank": spectra.stable_rank,
    }
    for name, measure in ours.items():
        assert measure(h, h, task).item() == pytest.approx(found[name], rel=1e-4), name


def plain_fit(x: NDArray[np.float64]) -> float:
    """Fits an exponent by maximum likelihood, for each start of the tail in turn."""
    best = (math.inf, math.nan)
    for start in range(len(x) - min(len(x), 10) + 1):
        tail = np.sort(x)[start:]
        alpha = 1 + len(tail) / np.log(tail / tail[0]).sum()
        fitted = 1 - (tail / tail[0]) ** (1 - alpha)
        distance = np.abs(fitted - np.arange(len(tail)) / len(tail)).max()
        best = min(best, (float(distance), float(alpha)))
    return best[1]


@given(seed=st.integers(0, 99), K=st.integers(2, 40))
def test_each_row_has_the_exponent_of_a_plain_fit(seed: int, K: int) -> None:
    x = np.random.default_rng(seed).pareto(1.5, (3, K)) + 1e-3
    rows = torch.from_numpy(-np.sort(-x, axis=1))
    assert spectra.power_law(rows).tolist() == pytest.approx([plain_fit(row) for row in x])


def test_a_power_law_is_recovered() -> None:
    quantiles = (torch.arange(1.0, 401.0) - 0.5) / 400
    x = quantiles ** (-1 / 1.5)  # of density x^-2.5
    assert spectra.power_law(x.unsqueeze(0)).item() == pytest.approx(2.5, rel=0.02)


def test_ranks_count_directions() -> None:
    identity, one = torch.eye(3, 4), torch.ones(3, 4)
    h = linear(5 * torch.stack([identity, one]))
    for measure in (spectra.stable_rank, spectra.frobenius_over_spectral, spectra.effective_rank):
        # Roots of rounded zeros are not quite zero.
        assert measure(h, h, task).tolist() == pytest.approx([3, 1], rel=1e-4), measure


def test_norms_of_spectra_are_logarithms() -> None:
    h = linear(torch.diag_embed(torch.tensor([[10.0, 1.0, 2.0], [1.0, 0.5, 3.0]]).double()))
    largest = torch.tensor([100.0, 9.0]).double().log10()
    torch.testing.assert_close(spectra.log_spectral_norm(h, h, task), largest)
    alpha = spectra.power_law_exponent(h, h, task)
    assert alpha.tolist() == pytest.approx([1 + 3 / math.log(100 * 4), 1 + 3 / math.log(4 * 36)])
    torch.testing.assert_close(spectra.weighted_power_law_exponent(h, h, task), alpha * largest)
    sums = [100 ** alpha[0] + 1 + 4 ** alpha[0], 1 + 0.25 ** alpha[1] + 9 ** alpha[1]]
    expected = [math.log10(float(total)) for total in sums]
    assert spectra.log_alpha_norm(h, h, task).tolist() == pytest.approx(expected)
