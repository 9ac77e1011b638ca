import math
from functools import partial

import pytest
import torch

from neural_complexity.baselines.ranking import MAE, TAU, WORST, kendall_tau
from neural_complexity.experiments.base.measure_report import ERROR, EVERY, FOLDS, GAP
from neural_complexity.experiments.base.measure_scores import averages, over_trainings, score
from neural_complexity.experiments.base.rows import Row, find, select
from neural_complexity.meta.scores import Estimate, estimate_over_seeds

of = partial(Row.of, "measures", 0, dataset="digits")


def test_intervals_of_ncs_have_the_luck_of_meta_training() -> None:
    own = [Estimate(0.3, 0.03, 90), Estimate(0.5, 0.05, 90)]
    luck = estimate_over_seeds(torch.tensor([0.3, 0.5]))
    both = over_trainings(own)
    assert both.value == pytest.approx(0.4)
    assert both.ci95 == pytest.approx(math.hypot(0.04, luck.ci95 or 0.0))
    assert both.n == 90
    assert over_trainings(own[:1]) == own[0]  # of which none is known


def test_the_score_of_a_measure_is_the_mean_of_its_meta_trainings() -> None:
    gaps, told = torch.rand(12), torch.rand(12, 2)
    hyper = {"width": torch.arange(12) % 3, "lr": torch.arange(12) // 3}
    found, rows = score(of, {GAP: gaps, "norm": gaps.exp(), FOLDS: told}, hyper)
    assert found["norm"][TAU].value == pytest.approx(1.0)
    taus = [kendall_tau(column, gaps).item() for column in told.T]
    assert found[FOLDS][TAU].value == pytest.approx(sum(taus) / 2)
    assert GAP not in found
    assert MAE in found[FOLDS]  # in units of the loss
    assert MAE not in found["norm"]
    assert {row.value for row in select(rows, ERROR, measure="norm")} == {0.0}
    tau = find(rows, TAU, measure=FOLDS)
    assert tau is not None
    assert tau.value == found[FOLDS][TAU].value


def test_averages_are_of_what_all_datasets_have() -> None:
    one = {"norm": {TAU: Estimate(0.2, 0.3, 10), WORST: Estimate(0.5, None, 10)}}
    two = {"norm": {TAU: Estimate(0.6, 0.4, 20), WORST: Estimate(0.7, None, 20)}}
    some = {**one, "other": one["norm"]}
    rows = averages(partial(Row.of, "measures", 0, dataset=EVERY), {"a": some, "b": two})
    assert {row.keys["measure"] for row in rows} == {"norm"}
    tau, worst = (find(rows, metric, measure="norm") for metric in (TAU, WORST))
    assert tau is not None
    assert worst is not None
    assert (tau.value, tau.ci95, tau.n) == pytest.approx((0.4, 0.25, 30))
    assert worst.ci95 is None  # where one of them has none
