from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neural_complexity.experiments import tables
from neural_complexity.experiments.base.experiment import Outcome
from neural_complexity.experiments.base.rows import find, select
from neural_complexity.experiments.base.table_scores import CV
from neural_complexity.experiments.tables import BELIEFS, EXPERIMENT, METHODS, NC, Config
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.workspace import Workspace
from smoke_runs import SmokeRuns

KEYS = {"method": NC, "metric": "log loss", "setting": "20 rows"}
pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def outcome(smoke_runs: SmokeRuns) -> Outcome:
    return smoke_runs("tables").outcome


def test_every_method_has_its_error_in_every_setting(outcome: Outcome) -> None:
    own = select(outcome.rows, "error over that of CV", metric="error")
    settings = {row.keys["setting"] for row in own}
    moves = {"moved: direction", "moved: feature", "moved: clusters"}
    assert settings == {"20 rows", *moves, tables.MOVED}  # no table says when
    for setting in settings:
        found = {r.keys["method"]: r for r in select(own, setting=setting)}
        assert set(found) == set(METHODS)
        assert found[CV].value == 1
        assert found[CV].ci95 == 0
        assert found[NC].n == 2
    losses = select(outcome.rows, "error over that of CV", metric="log loss", setting="20 rows")
    assert {row.keys["method"] for row in losses} == set(METHODS) - {"ATC"}  # which has none


def test_rows_are_computed_from_what_was_estimated(outcome: Outcome) -> None:
    told, true = (outcome.tensors[f"20 rows/{name}"] for name in ("estimates", "truth"))
    assert told.shape == (2, 3, len(METHODS), 2)
    errors = (told - true.unsqueeze(2)).abs()[..., 1].numpy()  # log loss; (tables, models, methods)
    row = find(
        outcome.rows, "error over that of CV", method=NC, metric="log loss", setting="20 rows"
    )
    assert row is not None
    ratio = np.median(errors[:, :, 0].mean(axis=0) / errors[:, :, METHODS.index(CV)].mean(axis=0))
    assert row.value == pytest.approx(ratio, rel=1e-3)
    row = find(outcome.rows, "mean absolute error", **KEYS)
    assert row is not None
    assert row.value == pytest.approx(errors[:, :, 0].mean())
    row = find(
        outcome.rows, "share better than CV", method=NC, metric="log loss", setting="20 rows"
    )
    assert row is not None
    assert row.value == pytest.approx((errors[:, :, 0] < errors[:, :, METHODS.index(CV)]).mean())


def test_a_further_belief_is_judged_like_the_others() -> None:
    smoke = EXPERIMENT.presets["smoke"]()
    small: dict[str, Any] = {"names": ("sklearn wine",), "kinds": ("tree",)}
    config = replace(smoke, belief="sklearn.naive_bayes:GaussianNB", **small)
    found = tables.run(config, Workspace(None))
    row = find(found.rows, "error over that of CV", **{**KEYS, "method": "GaussianNB"})
    assert row is not None
    assert 0 < row.value < 10
    for belief in ("GaussianNB", "a:b:c"):
        with pytest.raises(ValueError, match="belief must be a classifier"):
            replace(config, belief=belief)
    with pytest.raises(ValueError, match="where targets are labels"):
        replace(config, targets="numbers")


def test_moves_of_a_table_count_like_splits_of_it(outcome: Outcome) -> None:
    own, each = (
        [
            r
            for r in select(outcome.rows, "mean absolute error", method=NC, metric="error")
            if pick(r)
        ]
        for pick in (
            lambda r: r.keys["setting"] == tables.MOVED,
            lambda r: str(r.keys["setting"]).startswith("moved:"),
        )
    )
    assert len(own) == 1
    assert own[0].n == 2
    assert own[0].value == pytest.approx(np.mean([row.value for row in each]))


def test_beliefs_stand_beside_models(outcome: Outcome) -> None:
    own = select(outcome.rows, "loss as a model", metric="error", setting="20 rows")
    assert [row.keys["method"] for row in own] == [*BELIEFS, "linear", "neighbours", "tree"]


def test_numbers_have_estimates_too(tmp_path: Path) -> None:
    config: Config = EXPERIMENT.presets["smoke"]()
    nc = NeuralComplexity(10, 1, for_tables=True, bins=16, width=8, heads=2)
    nc.save(tmp_path / "nc-numbers.safetensors")
    own = replace(
        config,
        networks=str(tmp_path),
        targets="numbers",
        names=("sklearn diabetes",),
        kinds=("linear", "naive Bayes"),
    )
    found = tables.run(own, Workspace(None))
    row = find(
        found.rows, "loss as a model", method="linear", metric="squared error", setting="20 rows"
    )
    assert row is not None
    assert 0.3 < row.value < 1.5  # of the variance
    told = found.tensors["20 rows/estimates"]
    assert told[0, 1].isnan().all()  # there is no such model of numbers
    assert not told[0, 0, 0].isnan().any()
    assert EXPERIMENT.tables(found.rows)


def test_tables_for_development_are_others_than_those_of_the_report() -> None:
    report: Config = EXPERIMENT.presets["cpu"]()
    developed = replace(report, developed=True)
    assert not set(report.tables()) & set(developed.tables())
    assert len(report.tables()) == 41
    with pytest.raises(ValueError, match="kinds must be of linear, .*, got oracle"):
        replace(report, kinds=("linear", "oracle"))
