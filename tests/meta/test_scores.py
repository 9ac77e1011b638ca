import pytest
import torch

from neural_complexity.meta.scores import (
    correlation,
    estimate,
    estimate_mean,
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
