from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from neural_complexity.assessment.tables import find
from neural_complexity.experiments import bounds
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.reports import bounds_report as report
from neural_complexity.model.network import FOR_LABELS, NeuralComplexity

TINY = replace(
    bounds.smoke(), eval_tasks=120, digits_tasks=120, calibration=60, draws=500, unlike=4
)


@pytest.fixture(autouse=True)
def single_precision() -> None:
    torch.set_default_dtype(torch.float32)  # as users run it


@pytest.fixture(scope="module", autouse=True)
def quicker() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "LONGER", 2)
        patch.setattr(bounds, "NEW", 2)
        yield


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> bounds.Config:
    """One with an untrained NC for digits."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("nc")
    nc = NeuralComplexity(64, 10, loss="cross_entropy", width=8, heads=2, **FOR_LABELS["posterior"])
    nc.save(folder / "nc.safetensors")
    return replace(
        TINY,
        nc=str(folder / "nc.safetensors"),
        digits_train=20,
        digits_test=10,
        digits_steps=2,
    )


@pytest.fixture(scope="module")
def outcome(config: bounds.Config, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A run that is interrupted halfway and resumed."""
    folder = tmp_path_factory.mktemp("bounds")

    def interrupt(
        stage: str, done: int, total: int, seconds: float, facts: dict[str, float]
    ) -> None:
        if done == total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bounds.run(config, folder=folder, tell=interrupt)
    return bounds.run(config, folder=folder)


def test_interrupted_and_resumed_the_rows_are_those_of_one_go(
    config: bounds.Config, outcome: Outcome
) -> None:
    assert bounds.run(config).rows == outcome.rows


def test_bounds_hold_and_a_better_predictor_has_narrower_ones(outcome: Outcome) -> None:
    rows = outcome.rows
    keys = [(row.method, row.setting, row.metric) for row in rows]
    assert len(set(keys)) == len(keys)
    covered = [row for row in rows if row.metric == "coverage" and ": " in row.method]
    assert len(covered) == (3 * 4 - 1 + 2 * 4 - 1) * len(bounds.CONFIDENCES)
    for row in covered:
        claimed = float(row.setting.split(", ")[1])
        assert row.value >= claimed - 4 * (claimed * (1 - claimed) / row.n) ** 0.5
    for confidence in bounds.CONFIDENCES:
        setting = f"sinusoids, {confidence}"
        found = [find(rows, f"{who}: conformal", setting, "width") for who in report.PREDICTORS]
        values = [row.value for row in found if row]
        assert len(values) == 3
        assert values == sorted(values)
        dkw = find(rows, "NC posterior: dkw", setting, "width")
        assert (dkw is not None) == (confidence == 0.8)  # sixty learners are too few for more


def test_moved_inputs_raise_an_alarm(outcome: Outcome) -> None:
    moved = find(outcome.rows, "NC posterior", "sinusoids, inputs moved", "alarm")
    like = find(outcome.rows, "NC posterior", f"sinusoids, {bounds.LIKE}", "alarm")
    assert moved is not None
    assert like is not None
    assert like.value < 0.3 < moved.value
    for kinds, domain in ((bounds.SINUSOIDS, "sinusoids"), (bounds.DIGITS, "digits")):
        for kind in kinds:
            assert find(outcome.rows, "NC posterior", f"{domain}, {kind}", "alarm") is not None


def test_a_report_can_be_made(outcome: Outcome, tmp_path: Path) -> None:
    tables = report.tables(outcome.rows)
    assert [table.title for table in tables] == [
        "Two-sided bounds on sinusoids",
        "Unlike learners of sinusoids",
        "Two-sided bounds on digits",
        "Unlike learners of digits",
    ]
    assert any("infinite" in row for row in tables[0].rows)
    figures = report.figures(outcome, tmp_path)
    assert all(figure.path.stat().st_size > 10_000 for figure in figures)


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    sentence = "eval_tasks must be at least twice the calibration, 200, got 199"
    with pytest.raises(ValueError, match=sentence):
        replace(bounds.smoke(), eval_tasks=199)
    with pytest.raises(ValueError, match="draws must be at least 2, got 1"):
        replace(bounds.smoke(), draws=1)
    path = tmp_path / "nc.safetensors"
    NeuralComplexity.pretrained("sinusoid").save(path)
    with pytest.raises(ValueError, match="nc must be for 10 classes of digits with 64 pixels, got"):
        bounds.run(replace(TINY, nc=str(path)))
    with pytest.raises(ValueError, match="nc must be a safetensors file or one of .*missing"):
        bounds.run(replace(TINY, nc=str(tmp_path / "missing")))
