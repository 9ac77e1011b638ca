from functools import partial

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score

from neural_complexity.experiments.base import table_scores
from neural_complexity.experiments.base.rows import Row, find
from neural_complexity.experiments.base.table_scores import CV, Names, score_setting

NAMES = Names(("error",), ("tree", "SVM"), ("NC", CV, "training loss"), ("NC",))


def score(told: torch.Tensor, truth: torch.Tensor) -> list[Row]:
    """Scores estimates (tables, models, methods) of (tables, models)."""
    found = [
        {"truth": t[None, :, None], "estimates": e[None, ..., None], "beliefs": t[None, :1, None]}
        for e, t in zip(told, truth, strict=True)
    ]
    return score_setting(found, partial(Row.of, "tables", 0, setting="some"), NAMES)


def test_who_is_right_has_no_error() -> None:
    truth = torch.rand(9, 2, generator=torch.Generator().manual_seed(0)).double() + 1
    told = torch.stack([truth, truth + 0.5, torch.zeros_like(truth)], dim=-1)
    rows = score(told, truth)
    right = {"error over that of CV": 0, "R2 of the gap": 1, "mean absolute error": 0}
    right |= {"share better than CV": 1}
    for name, value in right.items():
        row = find(rows, name, method="NC", metric="error", setting="some")
        assert row is not None
        assert row.value == pytest.approx(value, abs=1e-5)
    row = find(rows, "error over that of CV", method=CV, metric="error", setting="some")
    assert row is not None
    assert row.value == 1
    row = find(rows, "R2 of the gap", method=CV, metric="error", setting="some")
    assert row is not None
    assert row.value < 0
    ranks = [r.value for r in rows if r.metric == "rank as a model"]
    assert sum(ranks) == pytest.approx(1 + 2 + 3)
    assert ranks[0] == ranks[1]  # beliefs are as good as the tree, of which they are


def test_r2_is_that_of_gaps_of_tables() -> None:
    generator = torch.Generator().manual_seed(0)
    truth, trained = (torch.rand(9, 2, generator=generator).double() for _ in range(2))
    told = truth + 0.1 * torch.randn(9, 2, generator=generator)
    rows = score(torch.stack([told, truth + 0.5, trained], dim=-1), truth)
    right = [r2_score((truth - trained)[:, i], (told - trained)[:, i]) for i in range(2)]
    by_kind = [r.value for r in rows if r.metric == "R2 of the gap by kind"][:2]
    assert by_kind == pytest.approx(right, abs=1e-4)
    row = find(rows, "R2 of the gap", method="NC", metric="error", setting="some")
    assert row is not None
    assert row.value == pytest.approx(np.mean(right), abs=1e-4)  # which is the median of two
    few = score(torch.stack([told, told, trained], dim=-1)[:4], truth[:4])
    assert not [r for r in few if r.metric.startswith("R2")]


def test_kinds_without_a_model_do_not_count() -> None:
    truth = torch.rand(9, 2, generator=torch.Generator().manual_seed(0)).double() + 1
    truth[:, 1] = torch.nan
    told = torch.stack([truth, truth + 0.5, torch.zeros_like(truth)], dim=-1)
    rows = score(told, truth)
    assert not [r for r in rows if np.isnan(r.value)]
    assert [r.keys["method"] for r in rows if r.metric == "loss as a model"] == ["NC", "tree"]


def test_intervals_are_over_tables() -> None:
    errors, usual = np.ones((50, 3)), np.ones((50, 3))
    errors[::2] = 3
    ratio = partial(table_scores.median_ratio, errors, usual)
    found = table_scores.resample(ratio, 50)
    assert found.value == pytest.approx(2, rel=1e-4)
    assert found.n == 50
    assert found.ci95 == pytest.approx(1.96 / 50**0.5, rel=0.15)


def test_the_model_of_the_least_estimate_is_chosen() -> None:
    truth = torch.tensor([[1.0, 2.0], [3.0, 1.0]]).double()
    told = torch.stack([truth, torch.ones_like(truth), -truth], dim=-1)
    rows = score(told, truth)
    wanted = {"NC": (1, 0), CV: (0.5, 0.75), "training loss": (0, 1.5)}  # right, undecided, wrong
    for method, values in wanted.items():
        for name, value in zip(("best model chosen", "loss of choosing"), values, strict=True):
            row = find(rows, name, method=method, metric="error", setting="some")
            assert row is not None
            assert row.value == pytest.approx(value)
