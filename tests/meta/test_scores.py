import pytest
import torch

from neural_complexity.meta.scores import (
    Estimate,
    correlation,
    estimate,
    estimate_mean,
    estimate_over_seeds,
    mean_absolute_error,
    r_squared,
    share_of_oracle,
)
from neural_complexity.seeding import stream


def test_known_scores() -> None:
    true = torch.randn(1000)
    assert r_squared(true, true) == 1
    assert r_squared(true.mean().expand(1000), true).abs() < 1e-12
    torch.testing.assert_close(correlation(3 * true + 5, true), torch.tensor(1.0))
    assert r_squared(3 * true + 5, true) < 0  # correlation forgives what R2 does not
    torch.testing.assert_close(mean_absolute_error(true + 2, true), torch.tensor(2.0))
    none, oracle = true + 4, true + 3
    for ours, share in ((none, 0.0), (oracle, 1.0), (true + 3.5, 0.5)):
        torch.testing.assert_close(share_of_oracle(none, ours, oracle), torch.tensor(share))


@pytest.mark.parametrize("kind", ["mean", "bootstrap"])
def test_intervals_hold_at_their_stated_rate(kind: str) -> None:
    """95 % of intervals cover the truth; 400 tries have a standard error of 1.1 points."""
    generator, hits = stream(0, "coverage"), 0
    for _ in range(400):
        if kind == "mean":
            values = torch.randn(200, generator=generator).exp()
            score, truth = estimate_mean(values), torch.tensor(0.5).exp().item()
        else:
            true, noise = torch.randn(2, 200, generator=generator)
            score, truth = estimate(mean_absolute_error, true + noise, true), (2 / torch.pi) ** 0.5
        assert score.ci95 is not None
        hits += abs(score.value - truth) <= score.ci95
    assert 0.91 <= hits / 400 <= 0.985


def test_an_estimate_is_reproducible_and_counts_tasks() -> None:
    a, b = torch.randn(2, 50)
    assert estimate(r_squared, a, b) == estimate(r_squared, a, b)
    assert estimate(r_squared, a, b).n == estimate_mean(a).n == 50


@pytest.mark.parametrize(("n", "factor"), [(2, 12.7062), (3, 4.3027), (10, 2.2622), (200, 1.972)])
def test_the_interval_over_seeds_is_students(n: int, factor: float) -> None:
    values = torch.randn(n)
    score = estimate_over_seeds(values)
    assert score.ci95 == pytest.approx(factor * values.std().item() / n**0.5, rel=1e-4)
    assert score.value == pytest.approx(values.mean().item())
    assert score.n == n


def test_a_single_seed_has_no_interval() -> None:
    assert estimate_over_seeds(torch.tensor([3.0])) == Estimate(3.0, None, 1)
