import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from neural_complexity.assessment.tables import find
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import read_rows, write_rows
from neural_complexity.experiments.base.run_folder import config_from_dict
from neural_complexity.experiments.reports.surfaces_report import figures, tables
from neural_complexity.experiments.surfaces import (
    ALL,
    AT_EDGE,
    PRESETS,
    SHOWN,
    WITH_GAP,
    WITH_TEST,
    Config,
    run,
    smoke,
)
from neural_complexity.meta.scores import correlation
from neural_complexity.tasks.datasets import VARIABLE

HEADS = ("posterior", "direct")


@pytest.fixture(scope="module", autouse=True)
def data(glyph_folder: str) -> Iterator[None]:
    """Lets the experiment find made-up characters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, glyph_folder)
        yield


@pytest.fixture(autouse=True)
def single_precision() -> None:
    torch.set_default_dtype(torch.float32)  # as users run it


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Runs it interrupted halfway and resumed."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("surfaces")

    def stop(stage: str, done: int, total: int, seconds: float, facts: dict[str, float]) -> None:
        if done == total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(smoke(), folder=folder, tell=stop)
    return run(smoke(), folder=folder)


def value(outcome: Outcome, method: str, setting: str, metric: str) -> float:
    row = find(outcome.rows, method, setting, metric)
    assert row is not None
    return row.value


def test_interrupted_and_resumed_the_rows_are_those_of_one_go(outcome: Outcome) -> None:
    whole = run(smoke())
    assert whole.rows == outcome.rows
    assert set(whole.tensors) == set(outcome.tensors)
    assert all(torch.equal(whole.tensors[name], outcome.tensors[name]) for name in whole.tensors)


def test_a_report_can_be_made(outcome: Outcome, tmp_path: Path) -> None:
    keys = [(row.method, row.setting, row.metric) for row in outcome.rows]
    assert len(set(keys)) == len(keys)
    write_rows(tmp_path / "rows.jsonl", outcome.rows)
    assert read_rows(tmp_path / "rows.jsonl") == outcome.rows
    summary, drawn = tables(outcome.rows)
    assert len(summary.rows) == 4
    assert len(drawn.rows) == SHOWN
    assert all(cell for line in drawn.rows for cell in line)
    made = figures(outcome, tmp_path)
    assert {figure.path.stem for figure in made} == {
        "contours",
        "surfaces-posterior",
        "surfaces-direct",
    }
    assert all(figure.path.stat().st_size > 10_000 for figure in made)


def test_the_rows_are_those_of_the_planes(outcome: Outcome) -> None:
    planes = {n: t.double() for n, t in outcome.tensors.items()}
    centre = smoke().size // 2
    for b in range(SHOWN):
        setting, test = f"task {b + 1}", planes["test loss"][b]
        assert value(outcome, "none", setting, "test loss") == test[centre, centre]
        assert value(outcome, "oracle", setting, "test loss") == test.min()
        for head in HEADS:
            method, objective = f"NC {head}", planes[f"regularized loss, {head}"][b]
            at = objective.argmin()
            edge = 0 in divmod(int(at), smoke().size) or smoke().size - 1 in divmod(
                int(at), smoke().size
            )
            assert value(outcome, method, setting, AT_EDGE) == edge
            assert value(outcome, method, setting, "test loss") == test.flatten()[at]
            for metric, first, second in (
                (WITH_TEST, objective, test),
                (WITH_GAP, planes[f"NC, {head}"][b], planes["gap"][b]),
            ):
                expected = correlation(first.flatten(), second.flatten()).item()
                assert value(outcome, method, setting, metric) == pytest.approx(expected)
    difference = planes["test loss"] - planes["train loss"]
    # They were computed in single precision.
    torch.testing.assert_close(planes["gap"], difference, atol=1e-5, rtol=1e-5)


def test_the_learner_has_learned(outcome: Outcome) -> None:
    """It stands lower than all around it, and the lowest point is no more than a step away."""
    for plane in outcome.tensors["train loss"]:
        centre = len(plane) // 2
        edge = torch.cat([plane[0], plane[-1], plane[:, 0], plane[:, -1]])
        assert plane[centre, centre] < 0.5 * plane.mean()
        assert plane[centre, centre] < edge.min()
        lowest = divmod(int(plane.argmin()), len(plane))
        assert all(abs(at - centre) <= 1 for at in lowest)


def test_no_objective_finds_a_lower_test_loss_than_the_oracle(outcome: Outcome) -> None:
    for setting in (ALL, *(f"task {b + 1}" for b in range(SHOWN))):
        best = value(outcome, "oracle", setting, "test loss")
        for method in ("none", *(f"NC {head}" for head in HEADS)):
            assert best <= value(outcome, method, setting, "test loss")
    for head in HEADS:
        total = outcome.tensors["train loss"] + outcome.tensors[f"NC, {head}"]
        objective = outcome.tensors[f"regularized loss, {head}"]
        torch.testing.assert_close(objective, total, atol=1e-5, rtol=1e-5)


def test_nc_knows_the_plane(outcome: Outcome) -> None:
    """Where the learner could hardly be better, NC does not lead it astray."""
    assert value(outcome, "NC posterior", ALL, WITH_GAP) > 0.95
    assert value(outcome, "NC posterior", ALL, WITH_TEST) > value(outcome, "none", ALL, WITH_TEST)
    losses = [value(outcome, method, ALL, "test loss") for method in ("NC posterior", "none")]
    assert losses[0] <= losses[1]


def test_a_config_survives_json() -> None:
    for preset in PRESETS.values():
        config = preset()
        assert config_from_dict(Config, json.loads(json.dumps(asdict(config)))) == config


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"eval_tasks": 1}, "eval_tasks must be at least 2, got 1"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"chunk": 0}, "chunk must be at least 1, got 0"),
        ({"size": 1}, "size must be at least 3, got 1"),
        ({"size": 10}, "size must be odd, got 10"),
        ({"radius": 0.0}, "radius must be positive, got 0.0"),
        ({"lr": -1.0}, "lr must be positive, got -1.0"),
        ({"device": "abacus"}, "device must be one that works here, got abacus"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(smoke(), **change)  # type: ignore[arg-type]


def test_when_all_learners_diverge_the_run_says_so() -> None:
    with pytest.raises(FloatingPointError, match="learners must not all diverge, got 0"):
        run(replace(smoke(), lr=1e30))
