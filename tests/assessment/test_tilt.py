import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neural_complexity.assessment.tilt import (
    ASSUMED,
    GRID,
    Tilt,
    likelihood_of_errors,
    likelihood_of_labels,
)
from neural_complexity.beliefs import tilt_odds

close = torch.testing.assert_close
PRIOR = Tilt.prior(ASSUMED[True])


def test_nothing_is_assumed_but_a_tilt_around_zero() -> None:
    prior = PRIOR
    assert prior.weights.sum() == pytest.approx(1)
    close(prior.weights, prior.weights.flip(0))
    assert prior.mean(GRID.square()) < 0.3


@settings(max_examples=10)
@given(st.floats(-2, 2), st.integers(0, 99))
def test_many_labels_tell_the_tilt(tilt: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    wrong = 0.05 + 0.5 * torch.rand(4000, generator=generator, dtype=torch.double)
    p = tilt_odds(wrong, torch.tensor([tilt]))[:, 0]
    was = torch.rand(4000, generator=generator, dtype=torch.double) < p
    found = PRIOR.after(likelihood_of_labels(wrong, was))
    assert found.mean(GRID) == pytest.approx(tilt, abs=0.3)


def test_errors_larger_than_expected_tell_a_tilt() -> None:
    expected = torch.ones(500)
    squared = 3.0 * torch.randn(500, generator=torch.Generator().manual_seed(0)).square()
    found = PRIOR.after(likelihood_of_errors(expected, squared))
    assert found.mean(GRID).exp() == pytest.approx(3.0, rel=0.3)
    assert PRIOR.after(likelihood_of_errors(expected * 0, squared)).weights.isfinite().all()


def test_the_tilt_of_errors_is_that_of_their_mean() -> None:
    # NC is right on average, and wrong about where: errors relative to it would say otherwise.
    expected, squared = torch.tensor([1.0, 4.0] * 400), torch.tensor([4.0, 1.0] * 400)
    sure = PRIOR.after(likelihood_of_errors(expected, squared))
    assert sure.mean(GRID).abs() < 0.01
    # The same mean, of one error that is large: that says less.
    alone = torch.zeros(800)
    alone[0] = squared.sum()
    unsure = PRIOR.after(likelihood_of_errors(expected, alone))
    assert unsure.mean(GRID.square()) > 2 * sure.mean(GRID.square())


def test_new_points_are_less_sure_the_farther_they_are_and_the_fewer_the_labels() -> None:
    def width(*given: float) -> float:
        points, *auc = given
        found = PRIOR.new(int(points), *auc)
        assert found.weights.sum() == pytest.approx(1)
        return float(found.mean(GRID.square()))

    assert width(400) < width(400, 0.8) < width(400, 1.0)
    assert width(400, 0.5) < width(40, 0.5)
    assert width(100, 0.4) == width(100)  # below one half is luck


def test_log_odds_move_by_the_tilt() -> None:
    wrong = torch.tensor([0.1, 0.5, 0.0, 1.0], dtype=torch.double)
    moved = tilt_odds(wrong, torch.tensor([0.0, 1.0]))
    close(moved[:2, 0], wrong[:2])
    close(moved[1, 1], torch.tensor(1.0, dtype=torch.double).sigmoid())
    assert (moved > 0).all()
    assert (moved < 1).all()


def test_samples_are_of_the_weights() -> None:
    tilt = PRIOR.new(50, 0.9)
    drawn = tilt.sample(20_000, torch.Generator().manual_seed(0))
    assert drawn.square().mean() == pytest.approx(float(tilt.mean(GRID.square())), rel=0.1)


def test_many_models_at_once_are_as_each_by_itself() -> None:
    seen = torch.randn(3, len(GRID), dtype=torch.double, generator=torch.Generator().manual_seed(0))
    points, auc = torch.tensor([20, 50, 400]), torch.tensor([0.4, 0.7, 1.0])
    together = PRIOR.after(seen).new(points, auc)
    assert together.weights.sum(dim=1).tolist() == pytest.approx([1, 1, 1])
    for i in range(3):
        alone = PRIOR.after(seen[i]).new(int(points[i]), float(auc[i]))
        close(together.weights[i], alone.weights)
