from dataclasses import replace

import pytest

from neural_complexity.experiments.base.comparison import label
from neural_complexity.experiments.base.rows import Row, select
from neural_complexity.experiments.curves import PRESETS, reported_steps
from smoke_runs import SmokeRuns


@pytest.fixture(scope="module")
def rows(smoke_runs: SmokeRuns) -> list[Row]:
    return smoke_runs("curves").outcome.rows


def values(rows: list[Row], metric: str, step: int) -> dict[str, float]:
    return {label(row.keys): row.value for row in select(rows, metric, step=step)}


def test_reported_steps_are_powers_of_two_and_the_last() -> None:
    config = PRESETS["smoke"]()
    assert reported_steps(replace(config, steps=20)) == [1, 2, 4, 8, 16, 20]
    assert reported_steps(replace(config, steps=1)) == [1]


def test_nc_helps_most_where_it_sees_the_test_inputs_themselves(rows: list[Row]) -> None:
    losses = values(rows, "test loss", 32)
    assert losses["NC posterior, transductive"] < losses["NC posterior, inductive"]
    assert losses["NC posterior, inductive"] < losses["none"]
    assert len(set(losses.values())) == len(losses)


def test_the_gap_is_test_minus_train(rows: list[Row]) -> None:
    for step in (1, 16, 32):
        gaps = values(rows, "gap", step)
        tests, trains = (values(rows, metric, step) for metric in ("test loss", "train loss"))
        assert all(gaps[m] == pytest.approx(tests[m] - trains[m], abs=1e-5) for m in gaps)
