import json

import pytest
import torch
from torch import Tensor

from neural_complexity.losses import squared_error
from neural_complexity.meta.scores import (
    Estimate,
    belief_loss,
    correlation,
    describe,
    estimate,
    estimate_mean,
    estimate_over_seeds,
    make_report,
    mean_absolute_error,
    r_squared,
    share_of_oracle,
)
from neural_complexity.model.card import Card, HeldOutReport
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot


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


# Reports.


def judged(error: float, n: int = 60) -> dict[str, Tensor]:
    torch.manual_seed(0)
    true = torch.rand(n).double()
    return {
        "predicted": true + error * torch.randn(n),
        "true gap": true,
        "training loss": torch.rand(n).double(),
        "training points": torch.full((n,), 50.0).double(),
    }


def test_a_good_nc_is_told_from_a_useless_one() -> None:
    good, useless = make_report(judged(0.05)), make_report(judged(1.0))
    assert good.beats_the_mean_gap
    assert good.r2 is not None
    assert good.r2 > 0.9
    assert "explains" in good.verdict
    assert good.slope == pytest.approx(1, abs=0.1)
    assert good.coverage_95 is not None
    assert good.coverage_95 > 0.8
    assert not useless.beats_the_mean_gap
    assert "cannot beat predicting the mean gap" in useless.verdict
    # What NC gets half right on few learners may be luck.
    assert not make_report(judged(0.25, n=12)).beats_the_mean_gap


def test_a_report_can_be_kept_as_json_and_read_by_people() -> None:
    report = make_report(judged(0.05))
    content = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert HeldOutReport.from_json(content) == report
    kinds = {kind["what"] for kind in report.kinds}
    assert kinds == {"training loss", "true gap"}  # all had as many training points
    assert len(describe(report).splitlines()) == 1 + 6


def test_where_nc_fails_is_named() -> None:
    columns = judged(0.01)
    worst = columns["training loss"] > 0.7
    columns["predicted"][worst] += 0.3
    assert "least exact for learners of training loss" in make_report(columns).verdict


@pytest.mark.parametrize("n", [0, 3])
def test_too_few_learners_are_no_reason_to_trust(n: int) -> None:
    report = make_report(judged(0.05, n=n))
    assert "too few" in report.verdict
    assert not report.beats_the_mean_gap


def test_the_cost_of_beliefs_is_that_of_each_learners_test_points() -> None:
    torch.manual_seed(0)
    nc = NeuralComplexity(2, 1, width=8, heads=2)
    nc.card = Card(context_size=5)
    tasks = []
    for M, N in ((4, 3), (9, 6)):  # of which it sees five
        X_tr, X_te = torch.randn(2, M, 2), torch.randn(2, N, 2)
        Y_tr, Y_te = X_tr[..., :1], torch.randn(2, N, 1)
        tasks.append((Snapshot(X_tr, Y_tr, torch.full_like(Y_tr, torch.nan), X_te, Y_te), Y_te))
    each = []
    for snapshot, Y_te in tasks:
        for b in range(2):
            told = (snapshot.X_tr[b : b + 1, :5], snapshot.Y_tr[b : b + 1, :5])
            guess = nc.belief(*told, snapshot.X_te[b : b + 1]).prediction
            each.append(squared_error(guess, Y_te[b : b + 1]).mean().item())
    assert belief_loss(nc, tasks) == pytest.approx(sum(each) / 4)
    assert belief_loss(NeuralComplexity(2, 1, width=8, heads=2, head="direct"), tasks) is None
