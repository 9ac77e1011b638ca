from functools import partial

import pytest
import torch

from neural_complexity.experiments.base import table_models as models
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.table_evidence import METRICS, Effort, fit_models
from neural_complexity.experiments.base.table_intervals import (
    INTERVALS,
    judge_with_labels,
    score_drawn,
    score_intervals,
)
from neural_complexity.experiments.base.table_scores import Names
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.tasks.real_tables import load_table

pytestmark = pytest.mark.usefixtures("single_precision")
KINDS = ("linear", "tree")


@pytest.mark.parametrize("labels", [True, False])
def test_intervals_and_combined_losses_are_where_the_truth_may_be(labels: bool) -> None:
    name, nc = ("sklearn wine", "tables") if labels else ("sklearn diabetes", "tables-regression")
    table = load_table(name)
    split = models.draw_split(table, 80, 60, seed=0)
    assert split is not None
    kept = fit_models(table, split, Effort(KINDS, 1, 1), seed=0)
    unit = 1.0 if labels else float(kept["Y_tr"].var(correction=0))
    found = judge_with_labels(NeuralComplexity.pretrained(nc), kept)
    truth, (low, high) = kept["truth"] * unit, found["intervals"].unbind(dim=-1)
    assert found["combined"].shape == truth.shape
    assert (low < high).all()
    assert (low[:, :2] <= truth.unsqueeze(1) + 1e-6).all()
    assert (truth.unsqueeze(1) <= high[:, :2] + 1e-6).all()
    assert ((found["combined"] - truth).abs() < 0.5 * unit).all()
    assert ("drawn" in found) == labels
    if labels:
        assert found["drawn"].shape == (2, 3, 2)
        assert ((found["drawn"] - found["drawn_truth"].unsqueeze(1)).abs() < 0.2).all()
        assert list(score_drawn([{k: t[None] for k, t in found.items()}], partial(Row.of, "a", 0)))


def test_coverage_is_the_share_of_truths_inside() -> None:
    truth = torch.tensor([[[0.5, 0.5], [0.2, 3.0]]])  # one split of two models
    low_high = torch.tensor([[[0.4, 0.6], [0.6, 0.7]], [[0.0, 0.1], [2.0, 2.5]]])
    intervals = low_high[None, :, None].expand(1, 2, len(INTERVALS), 2, 2)
    names = Names(METRICS[True], KINDS, (), ())
    found = [{"truth": truth, "intervals": intervals}] * 2
    rows = list(score_intervals(found, partial(Row.of, "tables", 0), names))
    first, second = ([r for r in rows if r.keys["metric"] == m] for m in METRICS[True])
    assert [r.value for r in second if r.metric == "coverage"] == [0.0] * len(INTERVALS)
    values = {(r.metric, r.keys.get("kind"), r.keys["method"]): r.value for r in first}
    for method in INTERVALS:
        assert values["coverage", None, method] == 0.5
        assert values["coverage by kind", "linear", method] == 1
        assert values["coverage by kind", "tree", method] == 0
        assert values["width", None, method] == pytest.approx(0.15)


def test_errors_of_drawn_metrics_are_over_those_of_folds() -> None:
    drawn = torch.tensor([0.7, 0.8, 0.9]).view(1, 1, 3, 1).expand(1, 2, 3, 2)
    one = {"drawn": drawn, "drawn_truth": torch.full((1, 2, 2), 0.5)}
    lost = {"drawn": drawn * torch.tensor([1.0, torch.nan]), "drawn_truth": one["drawn_truth"]}
    rows = list(score_drawn([one, one, lost], partial(Row.of, "tables", 0)))
    errors = {
        (r.keys["metric"], r.keys["method"]): (r.value, r.n)
        for r in rows
        if r.metric == "error over that of CV"
    }
    for metric, n in (("ROC AUC", 3), ("F1", 2)):  # a table without a value is left out
        for method, ratio in zip(INTERVALS, (0.5, 0.75, 1.0), strict=True):
            value, tables = errors[metric, method]
            assert value == pytest.approx(ratio, rel=1e-4)
            assert tables == n
    assert not list(score_drawn([{}], partial(Row.of, "tables", 0)))
