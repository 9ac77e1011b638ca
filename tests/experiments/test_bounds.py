from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from neural_complexity.experiments import bounds
from neural_complexity.experiments.base import shifted_learners
from neural_complexity.experiments.base.experiment import Outcome
from neural_complexity.experiments.base.rows import Row, find, select
from neural_complexity.experiments.bounds import EXPERIMENT
from neural_complexity.model.heads import HEADS
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.workspace import Workspace

pytestmark = pytest.mark.usefixtures("single_precision")

SMOKE = EXPERIMENT.presets["smoke"]()
TINY = replace(SMOKE, eval_tasks=120, digits_tasks=120, calibration=60, draws=3, unlike=4)
POSTERIOR: dict[str, Any] = {"method": "NC", "head": "posterior"}


@pytest.fixture(scope="module", autouse=True)
def quicker() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shifted_learners, "LONGER", 2)
        yield


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> bounds.Config:
    """One with an untrained NC for digits."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("nc")
    nc = NeuralComplexity(
        64, 10, loss="cross_entropy", width=8, heads=2, **HEADS["posterior"].for_labels
    )
    nc.save(folder / "nc.safetensors")
    config: bounds.Config = replace(
        TINY,
        nc=str(folder / "nc.safetensors"),
        digits_train=20,
        digits_test=10,
        digits_steps=2,
    )
    return config


@pytest.fixture(scope="module")
def outcome(config: bounds.Config) -> Outcome:
    torch.set_default_dtype(torch.float32)
    return EXPERIMENT.run(config, Workspace(None))


def test_bounds_hold_and_a_better_predictor_has_narrower_ones(outcome: Outcome) -> None:
    rows = outcome.rows
    covered = select(rows, "coverage", learners=None)
    assert len(covered) == (3 * 4 - 1 + 2 * 4 - 1) * len(bounds.CONFIDENCES)
    for row in covered:
        claimed = float(row.keys["confidence"])
        assert row.n == 120
        # By the luck of three sets of 60 learners, and of the 120 that they are scored on.
        error = (claimed * (1 - claimed) * (1 / 180 + 1 / 120)) ** 0.5
        assert row.value >= claimed - 4 * error
    for confidence in bounds.CONFIDENCES:
        widths = select(rows, "width", domain="sinusoids", confidence=confidence)
        found = [find(widths, "width", **keys, bound="conformal") for keys in bounds.PREDICTORS]
        values = [row.value for row in found if row]
        assert len(values) == 3
        assert values == sorted(values)
        dkw = find(widths, "width", **POSTERIOR, bound="dkw")
        assert (dkw is not None) == (confidence == 0.8)  # sixty learners are too few for more


def test_bounds_are_scored_on_learners_that_no_calibration_set_contains() -> None:
    config = replace(SMOKE, calibration=50, draws=2, eval_tasks=40)
    known = torch.linspace(-1, 1, 50, dtype=torch.float64).repeat(3)
    far = torch.full((40,), 5.0, dtype=torch.float64)  # beyond all that a set contains
    make = partial(Row.of, "bounds", 0)
    rows = bounds._bound_rows(make, config, torch.cat([known, far]))
    assert all(row.value == 0 for row in select(rows, "coverage", bound="conformal"))
    assert all(row.value == 0 for row in select(rows, "spread over sets"))
    near = bounds._bound_rows(make, config, torch.cat([known, 0 * far]))
    assert all(row.value == 1 for row in select(near, "coverage"))


def test_moved_inputs_raise_an_alarm(outcome: Outcome) -> None:
    alarms = {
        row.keys["learners"]: row.value
        for row in select(outcome.rows, "alarm", domain="sinusoids", **POSTERIOR)
    }
    assert set(alarms) == set(shifted_learners.SinusoidLearners.kinds)
    assert alarms[shifted_learners.CALIBRATED] < 0.3 < alarms["inputs moved"]
    digits = select(outcome.rows, "alarm", domain="digits", **POSTERIOR)
    assert {row.keys["learners"] for row in digits} == set(shifted_learners.DigitLearners.kinds)


def test_each_domain_has_its_tables(outcome: Outcome) -> None:
    tables = EXPERIMENT.tables(outcome.rows)
    assert [table.title for table in tables] == [
        "Two-sided bounds on sinusoids",
        "Distribution shift, learners of sinusoids",
        "Two-sided bounds on digits",
        "Distribution shift, learners of digits",
    ]
    assert any("infinite" in row for row in tables[0].rows)


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="draws must be at least 2, got 1"):
        replace(SMOKE, draws=1)
    path = tmp_path / "nc.safetensors"
    NeuralComplexity.pretrained("sinusoid").save(path)
    with pytest.raises(ValueError, match="nc must be for 10 classes of digits with 64 pixels, got"):
        EXPERIMENT.run(replace(TINY, nc=str(path)), Workspace(None))
    with pytest.raises(ValueError, match="nc must be a safetensors file or one of .*missing"):
        EXPERIMENT.run(replace(TINY, nc=str(tmp_path / "missing")), Workspace(None))
