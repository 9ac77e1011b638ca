from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from neural_complexity.experiments.base import training
from neural_complexity.experiments.base.experiment import Outcome
from neural_complexity.experiments.base.rows import Row, select
from neural_complexity.experiments.search import (
    EXPERIMENT,
    PAPER_SETTING,
    PRESETS,
    SEARCHED,
    Config,
    draw_settings,
    falls_behind,
    run,
    tables,
)
from neural_complexity.meta.optimize import Status
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.workspace import Workspace, fingerprint
from smoke_runs import SmokeRuns

pytestmark = pytest.mark.usefixtures("single_precision")

smoke = PRESETS["smoke"]


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


def scores(*r2: float) -> list[Status]:
    return [Status(i, 10, 0, 0, 0.0, 0.0, value) for i, value in enumerate(r2, start=1)]


def test_the_median_stopping_rule() -> None:
    earlier = [scores(0.0, 0.2, 0.4), scores(0.2, 0.6, 0.8), scores(0.4, 0.8, 0.9)]
    behind = partial(falls_behind, grace=0)
    # After two iterations their running means are 0.1, 0.4 and 0.6.
    assert behind(scores(0.3, 0.39), earlier)
    assert not behind(scores(0.3, 0.4), earlier)
    assert not behind(scores(0.41, 0.0), earlier)  # the best counts, not the latest
    assert not behind(scores(-1.0, -2.0), [])
    # Who stopped before votes with what it had: the means are 0.1 and 0.7, their median 0.4.
    gave_up = [scores(0.1, 0.1), scores(0.4, 0.8, 0.9)]
    assert behind(scores(0.2, 0.3, 0.39), gave_up)
    assert not behind(scores(0.2, 0.3, 0.41), gave_up)
    # Scores that are no numbers are the worst.
    assert behind(scores(float("nan"), float("nan")), earlier)
    assert not behind(scores(-5.0), [scores(float("nan")), scores(float("-inf"))])


def test_nobody_is_judged_within_the_grace_period_nor_by_it() -> None:
    earlier = [scores(0.0, 0.8, 1.0)]
    assert not falls_behind(scores(-1.0), earlier, grace=1)
    assert falls_behind(scores(-1.0, 0.79), earlier, grace=1)  # the mean of 0.8 alone
    assert not falls_behind(scores(-1.0, 0.81), earlier, grace=1)
    assert falls_behind(scores(-1.0, 0.81, 0.89), earlier, grace=1)  # of 0.8 and 1.0
    assert not falls_behind(scores(0.85, 0.0), earlier, grace=1.5)  # a trial's own best is any


def test_settings_are_drawn_from_the_ranges_none_twice_and_each_for_itself() -> None:
    config = replace(PRESETS["smoke"](), trials=32)  # all there are
    settings = draw_settings(config)
    assert len({tuple(setting.items()) for setting in settings}) == 32
    for setting in settings:
        assert tuple(setting) == SEARCHED
        assert all(value in getattr(config, name) for name, value in setting.items())
    assert draw_settings(replace(config, trials=7)) == settings[:7]
    assert draw_settings(replace(config, seed=1)) != settings


def test_every_choice_is_drawn_about_equally_often() -> None:
    settings = draw_settings(replace(PRESETS["paper"](), trials=288))  # half of all
    for name in SEARCHED:
        choices = getattr(PRESETS["paper"](), name)
        for choice in choices:
            share = sum(setting[name] == choice for setting in settings) / 288
            assert share == pytest.approx(1 / len(choices), abs=0.1)


def test_the_defaults_are_the_papers_ranges() -> None:
    config = PRESETS["paper"]()
    assert config.encoder_layers == config.decoder_layers == (1, 2, 3)
    assert config.width == config.batch == (128, 256, 512, 1024)
    assert config.lr == (0.005, 0.001, 0.0005, 0.0001)
    assert all(value in getattr(config, name) for name, value in PAPER_SETTING.items())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"trials": 0}, "trials must be at least 1, got 0"),
        ({"trials": 33}, "trials must be at most 32, all settings, got 33"),
        ({"startup": 0}, "startup must be at least 1, got 0"),
        ({"eval_tasks": 1}, "eval_tasks must be at least 2, got 1"),
        ({"grace": 1.5}, "grace must be from 0 to 1, got 1.5"),
        ({"head": "tail"}, "head must be posterior or direct, got tail"),
        ({"width": ()}, r"width must have choices, each once, got \(\)"),
        ({"lr": (0.1, 0.1)}, "lr must have choices, each once, got"),
        ({"lr": (0.1, -1.0)}, "lr must be positive, got -1.0"),
        ({"width": (32, 30)}, "width must be a multiple of heads, got width=30, heads=4"),
        ({"decoder_layers": (0,)}, "decoder_layers must be at least 1, got 0"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"device": "abacus"}, "device must be one that works here, got abacus"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(PRESETS["smoke"](), **change)
