import json

import pytest
import torch
from torch import Tensor

from neural_complexity.domain.report import describe, make_report


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
    assert good["beats_the_mean_gap"]
    assert good["r2"] > 0.9
    assert "explains" in good["verdict"]
    assert good["slope"] == pytest.approx(1, abs=0.1)
    assert good["coverage_95"] > 0.8
    assert not useless["beats_the_mean_gap"]
    assert "cannot beat predicting the mean gap" in useless["verdict"]
    # What NC gets half right on few learners may be luck.
    assert not make_report(judged(0.25, n=12))["beats_the_mean_gap"]


def test_a_report_can_be_kept_as_json_and_read_by_people() -> None:
    report = make_report(judged(0.05))
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    kinds = {kind["what"] for kind in report["kinds"]}
    assert kinds == {"training loss", "true gap"}  # all had as many training points
    assert len(describe(report).splitlines()) == 1 + 6


def test_where_nc_fails_is_named() -> None:
    columns = judged(0.01)
    worst = columns["training loss"] > 0.7
    columns["predicted"][worst] += 0.3
    assert "least exact for learners of training loss" in make_report(columns)["verdict"]


@pytest.mark.parametrize("n", [0, 3])
def test_too_few_learners_are_no_reason_to_trust(n: int) -> None:
    report = make_report(judged(0.05, n=n))
    assert "too few" in report["verdict"]
    assert "beats_the_mean_gap" not in report
