from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from neural_complexity.experiments.base import training
from neural_complexity.experiments.base.experiment import Outcome
from neural_complexity.experiments.base.random_search import SEARCHED, Config
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.table_views import select
from neural_complexity.experiments.search import EXPERIMENT, PRESETS, run, tables
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.workspace import Workspace, fingerprint
from smoke_runs import SmokeRuns

smoke = PRESETS["smoke"]


@pytest.fixture(autouse=True)
def single_precision() -> None:
    torch.set_default_dtype(torch.float32)  # as users run it


@pytest.fixture(scope="module")
def outcome(smoke_runs: SmokeRuns) -> Outcome:
    return smoke_runs("search").outcome


def metric(outcome: Outcome, name: str) -> dict[int, float]:
    return {int(row.keys["trial"]): row.value for row in select(outcome.rows, name)}


def test_all_that_a_report_needs_is_there(outcome: Outcome) -> None:
    indices = list(range(smoke().trials))
    r2 = metric(outcome, "validation R2")
    for name in ("iterations", "stopped", "diverged", "validation R2"):
        assert list(metric(outcome, name)) == indices
    best = max(r2, key=r2.__getitem__)
    for name in ("R2", "MAE", "share of oracle"):
        (row,) = select(outcome.rows, name)
        assert (row.keys["trial"], row.n) == (best, smoke().eval_tasks)
        assert row.ci95 is not None
        assert row.ci95 > 0
    winner, trials = tables(outcome.rows)
    assert winner.rows[0][0] == trials.rows[0][0] == f"trial {best}"
    order = sorted(indices, key=lambda index: -r2[index])
    assert [row[0] for row in trials.rows] == [f"trial {index}" for index in order]
    assert winner.rows[1][1:6] == ("3", "1024", "3", "512", "0.0005")


def test_trials_that_fall_behind_are_stopped_after_the_grace_period(outcome: Outcome) -> None:
    config = smoke()
    stopped, done = metric(outcome, "stopped"), metric(outcome, "iterations")
    assert 0 < sum(stopped.values()) < config.trials - config.startup + 1
    for index in stopped:
        assert outcome.history[f"trial {index}"][-1].iteration == done[index]
        if stopped[index]:
            assert config.grace * config.iterations < done[index] < config.iterations
        else:
            assert done[index] == config.iterations


def test_the_best_network_is_given_back(outcome: Outcome) -> None:
    (row,) = select(outcome.rows, "R2")
    architecture = outcome.networks["best"].architecture
    for name in SEARCHED[:3]:
        assert getattr(architecture, name) == row.keys[name]


def go_on(config: Config, folder: Path, callback: Any = None) -> Outcome:
    return run(config, Workspace(folder, fingerprint(config)), callback)


# A trial takes 4 iterations, with a checkpoint after each.
tiny = replace(
    smoke(),
    trials=3,
    startup=1,
    iterations=4,
    updates=3,
    tasks=16,
    eval_tasks=32,
    capacity=600,
    lr=(0.01, 0.001),
    grace=0.0,
)


class KilledError(Exception):
    pass


def die_at(stage: str, done: int) -> Callable[..., None]:
    def tell(s: str, d: int, total: int, seconds: float, metrics: dict[str, float]) -> None:
        if (s, d) == (stage, done):
            raise KilledError

    return tell


@pytest.fixture(scope="module")
def whole() -> list[Row]:
    torch.set_default_dtype(torch.float32)
    return run(tiny, Workspace(None)).rows


@pytest.mark.parametrize(
    "deaths",
    [
        [("trial 0", 1), ("trial 0", 3), ("search", 1), ("trial 1", 1)],
        [("trial 1", 1), ("search", 2), ("evaluation", 2)],
    ],
)
def test_interrupted_and_resumed_gives_the_same_rows(
    whole: list[Row], tmp_path: Path, deaths: list[tuple[str, int]]
) -> None:
    stages: list[str] = []
    for stage, done in deaths:
        with pytest.raises(KilledError):
            go_on(tiny, tmp_path, die_at(stage, done))
    work = Workspace(tmp_path, fingerprint(tiny))
    names = [f"trial {index}" for index in range(tiny.trials)]
    finished = {name for name in names if work.read(f"{name}, result") is not None}
    outcome = go_on(tiny, tmp_path, lambda stage, *_: stages.append(stage))
    assert outcome.rows == whole
    assert any(row.metric == "stopped" and row.value for row in whole)
    # What was finished is not done again, and its bank is gone.
    assert not finished & set(stages)
    assert not [name for name in names if (path := work.path(name)) and path.exists()]


def test_the_best_network_of_an_earlier_session_is_found_again(tmp_path: Path) -> None:
    config = replace(tiny, trials=2)
    first = go_on(config, tmp_path).networks["best"]
    again = go_on(config, tmp_path).networks["best"]
    assert again is not first
    weights = first.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in again.state_dict().items())
    with pytest.raises(ValueError, match="must be of the same settings, got one of others"):
        go_on(replace(config, lr=(0.1, 0.2)), tmp_path)


def test_a_trial_that_diverges_ends_itself_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first trial is scored a few times, then its loss is not finite."""
    scored: list[float] = []

    def validate(learners: Any, nc: NeuralComplexity) -> float:
        scored.append(1.0)
        if len(scored) == 3:
            for parameter in nc.parameters():
                parameter.data.fill_(torch.inf)
            return -1.0
        return 0.1 * len(scored)

    monkeypatch.setattr(training, "validation_r2", validate)
    config = replace(tiny, trials=2)
    outcome = go_on(config, tmp_path)
    assert metric(outcome, "diverged") == {0: 1, 1: 0}
    assert metric(outcome, "iterations")[0] == 3
    assert set(metric(outcome, "validation R2")) == {1}
    again = go_on(config, tmp_path)
    assert again.rows == outcome.rows
    assert tables(outcome.rows)[1].rows[-1][-2:] == ("diverged", "")
    assert len(EXPERIMENT.draw(outcome, tmp_path)) == 2


def test_when_all_trials_diverge_the_run_says_so() -> None:
    with pytest.raises(FloatingPointError, match="NC must not diverge in all trials, got 2 that"):
        run(replace(tiny, trials=2, lr=(1e30, 2e30)), Workspace(None))
