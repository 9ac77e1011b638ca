import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import beta, binom
from torch import Tensor

from neural_complexity.reliability.gap_bounds import (
    METHODS,
    PAC,
    Interval,
    Side,
    bound,
    guaranteed_coverage,
    margin,
    needed,
    rank,
)
from neural_complexity.reliability.methods import Method
from synthetic import DRAWS, KINDS, calibration, tolerance

SIDES: tuple[Side, ...] = ("two", "upper")
methods = pytest.mark.parametrize("method", METHODS)
sides = pytest.mark.parametrize("side", SIDES)
confidences = st.floats(0.05, 0.995)
deltas = st.floats(0.001, 0.5)


@methods
@given(n=st.integers(1, 2000), confidence=confidences, delta=deltas)
def test_needed_learners_are_just_enough(
    method: Method, n: int, confidence: float, delta: float
) -> None:
    least = needed(confidence, method=method, delta=delta)
    assert rank(least, confidence, method=method, delta=delta) <= least
    if least > 1:
        assert rank(least - 1, confidence, method=method, delta=delta) == least
    k = rank(n, confidence, method=method, delta=delta)
    assert 1 <= k <= n + 1
    assert (k <= n) == (n >= least)


@given(n=st.integers(1, 2000), confidence=confidences, delta=deltas)
def test_ranks_are_the_least_that_keep_their_promise(
    n: int, confidence: float, delta: float
) -> None:
    """The coverage of the k-th smallest of n is a Beta(k, n + 1 - k) variable."""
    k = rank(n, confidence, method="conformal")
    assume(k <= n)
    assert beta.mean(k, n + 1 - k) >= confidence - 1e-9
    if k > 1:
        assert beta.mean(k - 1, n + 2 - k) < confidence
    k = rank(n, confidence, method="clopper_pearson", delta=delta)
    if k <= n:
        assert beta.sf(confidence, k, n + 1 - k) >= 1 - delta - 1e-9
    if k > 1:
        assert beta.sf(confidence, k - 1, n + 2 - k) < 1 - delta + 1e-9
    assert k == min(int(binom.ppf(1 - delta, n, confidence)) + 1, n + 1)
    # What holds for all ranks at once costs more than what holds for one.
    dkw = rank(n, confidence, method="dkw", delta=delta)
    if dkw <= n:
        assert beta.sf(confidence, dkw, n + 1 - dkw) >= 1 - delta
    assert dkw >= k


def test_whole_numbers_are_not_rounded_up() -> None:
    assert [rank(n, 0.8, method="conformal") for n in (4, 9, 14)] == [4, 8, 12]
    assert rank(19, 0.95, method="conformal") == 19
    assert needed(0.9, method="conformal") == 9
    assert needed(0.95, method="clopper_pearson") == 59
    assert needed(0.95, method="dkw") == 600


@methods
@sides
@given(confidence=st.floats(0.1, 0.9), seed=st.integers(0, 1000), gap=st.floats(-5, 5))
def test_the_bound_is_an_order_statistic(
    method: Method, side: Side, confidence: float, seed: int, gap: float
) -> None:
    c = calibration(300, seed=seed)
    found = bound(c, gap, 0.3, confidence=confidence, method=method, side=side)
    assert found.confidence == confidence
    assert found.method == method
    k = rank(300, confidence, method=method)
    everyone = torch.cat([c.spread, torch.tensor([0.3], dtype=torch.float64)])
    scale, own = torch.ones(()), 1.0
    if method == "normalised":
        floor = everyone.median()
        scale, own = c.spread + floor, 0.3 + float(floor)
    scores = (c.true - c.predicted) / scale
    expected = float((scores.abs() if side == "two" else scores).sort().values[k - 1]) * own
    assert found.high == pytest.approx(gap + expected)
    assert found.low == (pytest.approx(gap - expected) if side == "two" else -math.inf)
    assert found.width == pytest.approx(found.high - found.low)


@methods
def test_more_confidence_is_never_narrower(method: Method) -> None:
    c = calibration(1000)
    levels = torch.linspace(0.05, 0.995, 60).tolist()
    widths = [bound(c, 0.0, 0.3, confidence=level, method=method).width for level in levels]
    assert widths == sorted(widths)


@methods
@sides
def test_too_few_learners_bound_nothing_and_say_how_many_are_needed(
    method: Method, side: Side
) -> None:
    least = needed(0.9, method=method)
    found = bound(calibration(least - 1), 1.0, 0.3, confidence=0.9, method=method, side=side)
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert f"needs at least {least}" in found.note
    found = bound(calibration(least), 1.0, 0.3, confidence=0.9, method=method, side=side)
    assert math.isfinite(found.high)
    assert "needs" not in found.note


def test_a_gap_is_never_below_minus_the_training_loss() -> None:
    c = calibration()
    free = bound(c, 0.0, 0.3)
    assert bound(c, 0.0, 0.3, least=-1e-3) == replace(free, low=-1e-3)
    assert bound(c, 0.0, 0.3, least=-1e9) == free
    assert bound(c, 0.0, 0.3, least=1e9) == free  # nothing would be left


@pytest.mark.parametrize(
    ("gap", "spread"), [(math.nan, 1.0), (math.inf, 1.0), (0.0, math.nan), (0.0, 0.0)]
)
def test_no_prediction_no_bound(gap: float, spread: float) -> None:
    found = bound(calibration(), gap, spread)
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert found.note.startswith("nothing can be said")


def test_infinite_errors_count_as_errors() -> None:
    c = calibration(19)
    for many, finite in ((0, True), (1, True), (2, False)):
        true = c.true.clone()
        true[:many] = math.inf
        found = bound(replace(c, true=true), 0.0, 0.3, confidence=0.9)
        assert math.isfinite(found.high) == finite


@sides
def test_proposition_1_agrees_with_the_bound_it_gives(side: Side) -> None:
    c = calibration(1500)
    found = bound(c, 0.0, 0.3, confidence=0.9, method="dkw", side=side)
    assert guaranteed_coverage(c.residuals, found.high, side=side) >= 0.9
    below = math.nextafter(found.high, -math.inf) - 1e-12
    assert guaranteed_coverage(c.residuals, below, side=side) < 0.9
    assert guaranteed_coverage(c.residuals, math.inf, side=side) < 1


def test_proposition_1_of_the_paper_is_wrong_and_ours_is_not() -> None:
    """All gaps are -10 and f is 0, so that |gap| <= f + 1 never happens."""
    residuals = torch.full((10_000,), -10.0)
    epsilon, delta, n = 1.0, 0.05, 10_000
    papers = 1 - float((residuals > epsilon).sum()) / n - 2 * math.sqrt(math.log(2 / delta) / 2 / n)
    assert papers > 0.97  # of an event that never happens
    assert guaranteed_coverage(residuals, epsilon, side="two", delta=delta) < 0
    assert guaranteed_coverage(residuals, epsilon, side="upper", delta=delta) > 0.98


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"confidence": 1.0}, "confidence must be between 0 and 1, got 1.0"),
        ({"confidence": math.nan}, "confidence must be between 0 and 1, got nan"),
        ({"method": "magic"}, "method must be one of conformal, normalised, dkw"),
        ({"side": "lower"}, "side must be two or upper, got lower"),
        ({"delta": 0.6}, "delta must be above 0 and at most 0.5, got 0.6"),
        ({"delta": 0.0}, "delta must be above 0 and at most 0.5, got 0.0"),
    ],
)
def test_bad_wishes_get_one_clear_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        bound(calibration(), 0.0, 1.0, **options)


# Coverage. Each draw is a calibration set and a new learner.


def covered(
    draw: Callable[..., Tensor], n: int, confidence: float, method: Method, side: Side
) -> tuple[Tensor, Tensor]:
    """Tells for each draw whether the new learner is inside, and how many others would be."""
    spreads = torch.rand(DRAWS, n + 1) + 0.01
    scale = spreads if method == "normalised" else torch.ones(())
    residuals = draw(DRAWS, n + 1) * scale
    width = margin(
        residuals[:, :-1],
        spreads[:, :-1],
        spreads[:, -1],
        confidence=confidence,
        method=method,
        side=side,
        delta=0.1,
    )
    new = residuals[:, -1].abs() if side == "two" else residuals[:, -1]
    population = draw(100_000)
    population = (population.abs() if side == "two" else population).sort().values
    share = torch.searchsorted(population, width, right=True) / len(population)
    return new <= width, share


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@sides
@methods
def test_coverage_is_at_least_what_is_claimed(method: Method, side: Side, kind: str) -> None:
    confidence, n = 0.9, 150
    inside, share = covered(KINDS[kind], n, confidence, method, side)
    rate = inside.double().mean()
    assert rate >= confidence - tolerance(confidence)
    if method in PAC:  # all but a share delta of the calibration sets are good for such learners
        # The population that stands for all learners has an error of its own.
        good = (share >= confidence - tolerance(confidence, 100_000)).double().mean()
        assert good >= 0.9 - tolerance(0.9)
    elif kind != "ties":  # no wider than needed: the coverage is that of a rank
        k = rank(n, confidence, method=method)
        assert abs(rate - k / (n + 1)) <= tolerance(confidence)


@pytest.mark.slow
@methods
def test_a_rank_that_is_too_small_would_be_noticed(
    method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual mistakes: the quantile of n instead of n + 1, and no correction at all."""
    n, confidence = 30 if method not in PAC else 150, 0.9
    wrong = math.ceil(n * confidence)
    monkeypatch.setattr("neural_complexity.reliability.gap_bounds.rank", lambda *_, **__: wrong)
    inside, share = covered(torch.randn, n, confidence, method, "two")
    if method in PAC:
        good = (share >= confidence - tolerance(confidence, 100_000)).double().mean()
        assert good < 0.9 - tolerance(0.9)
    else:
        assert inside.double().mean() < confidence - tolerance(confidence)


def test_an_interval_is_data() -> None:
    assert Interval(0.0, 1.0, 0.9, "conformal", "") == Interval(0.0, 1.0, 0.9, "conformal", "")
