import json

import pytest
import torch
from torch import Tensor

from neural_complexity.losses import squared_error
from neural_complexity.meta.held_out_report import belief_loss, describe, make_report
from neural_complexity.model.card import Card, HeldOutReport
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.snapshot import Snapshot


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
