from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau
from torch import Tensor

from neural_complexity.baselines.ranking import (
    CMI,
    GRANULATED,
    MAE,
    R2,
    TAU,
    WORST,
    Hyperparameters,
    conditional_information,
    granulated_tau,
    kendall_tau,
    score_measure,
    sign_errors,
    worst_sign_error,
)
from neural_complexity.seeding import stream

WIDTH, RATE, NOISE = "width", "rate", "noise"
GRID = list(product((16, 64), (0.1, 0.2, 0.4), (0.0, 0.1), range(4)))
HYPER = {name: [row[i] for row in GRID] for i, name in enumerate((WIDTH, RATE, NOISE, "seed"))}
N = len(GRID)


def gaps() -> Tensor:
    noise = torch.randn(N, generator=stream(0, "gaps"))
    width = torch.tensor(HYPER[WIDTH]).log2()
    return width + 3 * torch.tensor(HYPER[RATE]) + 0.5 * noise


def scores(values: Tensor) -> dict[str, float]:
    return {name: found.value for name, found in score_measure(values, gaps(), HYPER).items()}


def test_the_gap_itself_is_a_perfect_measure() -> None:
    found = score_measure(gaps(), gaps(), HYPER, in_loss_units=True)
    values = {name: score.value for name, score in found.items()}
    wanted = {TAU: 1.0, GRANULATED: 1.0, CMI: 1.0, WORST: 0.0, R2: 1.0, MAE: 0.0}
    assert values == pytest.approx(wanted)
    assert all(score.n == N for score in found.values())


def test_a_random_measure_tells_nothing() -> None:
    found = scores(torch.randn(N, generator=stream(0, "random measure")))
    assert abs(found[TAU]) < 0.2
    assert abs(found[GRANULATED]) < 0.3
    assert found[CMI] < 0.05
    assert found[WORST] > 0.4


def test_a_measure_that_repeats_a_hyperparameter_has_tau_but_no_information() -> None:
    found = scores(torch.tensor(HYPER[WIDTH]).double())
    assert found[TAU] > 0.5
    assert found[CMI] < 1e-9
    assert found[WORST] == 0.5  # where the width is the same, it tells nothing apart


@given(st.integers(0, 2**31), st.sampled_from([torch.exp, torch.atan, lambda x: x**3]))
def test_increasing_transforms_change_no_rank(
    seed: int, transform: Callable[[Tensor], Tensor]
) -> None:
    values = torch.randn(N, generator=stream(seed, "values"))
    assert scores(transform(values)) == scores(values)


def test_the_order_of_the_models_does_not_matter() -> None:
    values, order = torch.randn(N, generator=stream(0, "values")), torch.randperm(N)
    moved = {name: [column[i] for i in order] for name, column in HYPER.items()}
    before, after = (
        score_measure(values, gaps(), HYPER),
        score_measure(values[order], gaps()[order], moved),
    )
    for name, score in before.items():
        assert after[name].value == pytest.approx(score.value)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=12))
def test_tau_is_that_of_scipy_also_with_ties(pairs: list[tuple[int, int]]) -> None:
    values, true = torch.tensor(pairs).double().T
    expected = kendalltau(values, true).statistic
    found = kendall_tau(values, true).item()
    if len(true.unique()) > 1:
        assert found == pytest.approx(0.0 if expected != expected else expected)
    else:
        assert found != found


def test_weights_are_repetitions_of_models() -> None:
    weights = torch.randint(3, (N,), generator=stream(0, "weights"))
    rows = torch.arange(N).repeat_interleave(weights)
    values, own = torch.randn(N, generator=stream(0, "values")).round(decimals=1), gaps()
    hyper = Hyperparameters(HYPER)
    again = Hyperparameters({k: [c[i] for i in rows] for k, c in HYPER.items()})
    w = weights.double()
    for statistic in (granulated_tau, worst_sign_error):
        expected = statistic(values[rows], own[rows], again)
        assert statistic(values, own, hyper, w).item() == pytest.approx(expected.item())
    assert kendall_tau(values, own, w).item() == pytest.approx(
        kendall_tau(values[rows], own[rows]).item()
    )


def test_the_granulated_tau_is_the_mean_over_groups() -> None:
    hyper = {"a": [0, 0, 1, 1], "b": [0, 1, 0, 1]}
    true, values = torch.tensor([0.0, 1, 2, 3]), torch.tensor([0.0, 1, 2, 1.5])
    # `a` alone: (0, 2) and (1, 3) are right; `b` alone: (0, 1) is right and (2, 3) wrong.
    found = granulated_tau(values, true, Hyperparameters(hyper)).item()
    assert found == pytest.approx((1 + 0) / 2)


def test_sign_errors_are_of_environments() -> None:
    hyper = {"a": [0, 0, 1, 1], "b": [0, 1, 0, 1]}
    true, values = torch.tensor([0.0, 1, 2, 3]), torch.tensor([0.0, 1, 2, 1.5])
    found = sign_errors(values, true, Hyperparameters(hyper))
    assert {key: error.item() for key, error in found.items()} == {("a", 0, 1): 0, ("b", 0, 1): 0.5}


def test_conditional_information_is_the_least_over_sets_of_hyperparameters() -> None:
    # By hand, given `a`: without it, the measure tells the sign of the gap of all pairs.
    hyper = {"a": [0, 0, 1, 1]}
    true, values = torch.tensor([0.0, 1, 2, 3]), torch.tensor([0.5, 0.5, 2, 2])
    assert conditional_information(values, true, Hyperparameters(hyper)).item() == pytest.approx(0)
    unconditioned = conditional_information(values, true, Hyperparameters({"a": [0] * 4})).item()
    # 8 of 12 ordered pairs are told apart, and these rightly: 1 bit in two thirds of the cases.
    assert unconditioned == pytest.approx(2 / 3)


def test_what_cannot_be_told_is_left_out() -> None:
    values = torch.arange(5.0)
    assert set(score_measure(values, values)) == {TAU}
    unique: dict[str, list[Any]] = {"rate": [0.1, 0.2, 0.3, 0.4, 0.5], "width": [1, 2, 3, 4, 5]}
    assert set(score_measure(values, values, unique)) == {TAU}  # a pair of values decides
    assert score_measure(values, torch.ones(5), unique) == {}


def test_intervals_cover_the_score_of_many_models() -> None:
    def draw(n: int, seed: int) -> tuple[Tensor, Tensor]:
        true = torch.randn(n, generator=stream(seed, "true"))
        return true + torch.randn(n, generator=stream(seed, "error")), true

    wanted, inside = kendall_tau(*draw(2000, 0)).item(), 0
    for seed in range(1, 41):
        found = score_measure(*draw(60, seed))[TAU]
        assert found.ci95 is not None
        inside += abs(found.value - wanted) <= found.ci95
    assert inside >= 34  # of 40, at 95 %


def test_resamples_are_the_same_each_time() -> None:
    values = torch.randn(N, generator=stream(0, "values"))
    assert score_measure(values, gaps(), HYPER) == score_measure(values, gaps(), HYPER)
