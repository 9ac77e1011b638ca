import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neural_complexity.reliability.calibration import (
    SPREAD,
    Calibration,
    _as_odd_as_the_last,
    detect_shift,
    join,
    shift_p_values,
)
from synthetic import DRAWS, KINDS, calibration, tolerance


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"true": torch.zeros(4)}, r"true must have shape \(5,\) in a calibration of 5 learners"),
        ({"features": torch.zeros(5, 2)}, r"features must have shape \(5, 3\)"),
        ({"true": torch.full((5,), math.nan)}, "true must be real numbers"),
        ({"predicted": torch.zeros(5, dtype=torch.int64)}, "predicted must be real numbers"),
        ({"predicted": torch.full((5,), math.inf)}, "predicted must be finite"),
        ({"spread": torch.zeros(5)}, "spread must be positive"),
        ({"predicted": torch.zeros(0)}, "a calibration must have at least one learner"),
    ],
)
def test_broken_calibrations_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(calibration(5), **change)


def test_other_sizes_are_said() -> None:
    c = calibration()  # of 10 training and 20 test points
    assert c.beyond(10, 20) == c.beyond(5, 40) == ""
    assert "21 training points against 10" in c.beyond(21, 20)
    assert "training points" not in c.beyond(10, 9)
    assert "9 test points against 20" in c.beyond(10, 9)


def test_a_calibration_survives_a_file_and_joins() -> None:
    one, other = calibration(5), replace(calibration(7, seed=1), sizes=((4, 6), (30, 40)))
    read = Calibration.read(one.tensors(), one.text())
    assert all(torch.equal(read.tensors()[name], t) for name, t in one.tensors().items())
    assert (read.names, read.sizes, read.note) == (one.names, one.sizes, one.note)
    both = join([one, other])
    assert len(both) == 12
    assert both.sizes == ((4, 10), (20, 40))
    assert torch.equal(both.residuals, torch.cat([one.residuals, other.residuals]))


@given(n=st.integers(1, 60), k=st.integers(1, 8), seed=st.integers(0, 1000))
def test_p_values_are_ranks_whatever_the_units(n: int, k: int, seed: int) -> None:
    c = calibration(n, k, seed)
    new = torch.randn(5, k)
    p = shift_p_values(c, new)
    assert p.shape == (5,)
    assert ((p * (n + 1)).round() - p * (n + 1)).abs().max() < 1e-9
    assert (p >= 1 / (n + 1) - 1e-12).all()
    assert (p <= 1).all()
    units, origin = 10.0 ** torch.arange(k) / 100, torch.arange(k)
    other = replace(c, features=c.features * units + origin)
    # As far as rounding and the floor of constant features go.
    assert (shift_p_values(other, new * units + origin) - p).abs().max() <= 1 / (n + 1) + 1e-12
    alone = torch.cat([shift_p_values(c, row.unsqueeze(0)) for row in new])
    assert torch.equal(alone, p)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "heavy tails", "ties", "constant"])
@pytest.mark.parametrize("one_sided", [True, False])
def test_p_values_of_like_learners_are_uniform(kind: str, one_sided: bool) -> None:
    """P[p <= a] <= a, over calibration sets and new learners; close to it where nothing ties."""
    bags = KINDS[kind](DRAWS, 40, 2) if kind != "constant" else torch.ones(DRAWS, 40, 2)
    names = (SPREAD, "other") if one_sided else ("one", "other")
    p = _as_odd_as_the_last(bags, names)
    first = replace(calibration(39, 2), features=bags[0, :-1], names=names)
    assert float(p[0]) == float(shift_p_values(first, bags[0, -1:]))
    for a in (0.05, 0.1, 0.5):
        rate = float((p <= a + 1e-9).double().mean())
        assert rate <= a + tolerance(a)
        if kind in ("normal", "heavy tails"):
            assert rate >= a - tolerance(a)


def test_odd_learners_are_found_and_what_is_odd_is_said() -> None:
    c = calibration(200)
    ordinary = detect_shift(c, torch.zeros(3))
    assert ordinary.p_value > 0.5
    odd = detect_shift(c, torch.tensor([0.0, -9.0, 0.0]))
    assert odd.p_value == pytest.approx(1 / 201)
    assert odd.feature == "feature 1"
    assert "feature 1 is small" in odd.note
    together = c.features.clone()
    together[:, 2] = together[:, 0] + 0.01 * together[:, 1]
    c = replace(c, features=together)
    apart = detect_shift(c, torch.tensor([1.0, 0.0, -1.0]))  # neither is odd by itself
    assert apart.p_value == pytest.approx(1 / 201)
    assert apart.feature in ("feature 0", "feature 2")
    assert "otherwise like it" in apart.note
    diverged = detect_shift(c, torch.tensor([0.0, math.nan, 0.0]))
    assert diverged.p_value == pytest.approx(1 / 201)
    assert "diverged" in diverged.note


def test_only_a_large_spread_is_odd() -> None:
    c = replace(calibration(200), names=(SPREAD, "one", "other"))
    sure, unsure = (detect_shift(c, torch.tensor([z, 0.0, 0.0])) for z in (-9.0, 9.0))
    assert sure.p_value > 0.5
    assert unsure.p_value == pytest.approx(1 / 201)
    assert unsure.feature == SPREAD
    assert "large" in unsure.note


def test_features_are_selected_by_name() -> None:
    c = calibration(5)
    some = c.select(["feature 2", "feature 0"])
    assert some.names == ("feature 2", "feature 0")
    assert torch.equal(some.features, c.features[:, [2, 0]])
    assert torch.equal(some.residuals, c.residuals)
    with pytest.raises(ValueError, match="must have x, feature 0, got no x"):
        c.select(["x", "feature 0"])


def test_what_never_varied_is_odd_when_it_differs_but_not_by_rounding() -> None:
    c = calibration(200)
    features = c.features.clone()
    features[:, 1] = 2.0
    c = replace(c, features=features)
    assert detect_shift(c, torch.tensor([0.0, 2.0 + 1e-7, 0.0])).p_value > 0.5
    odd = detect_shift(c, torch.tensor([0.0, 2.5, 0.0]))
    assert odd.p_value == pytest.approx(1 / 201)
    assert odd.feature == "feature 1"


def test_features_of_another_kind_are_refused() -> None:
    with pytest.raises(ValueError, match=r"features must be \(learners, 3\), got shape \(1, 2\)"):
        detect_shift(calibration(), torch.zeros(2))
