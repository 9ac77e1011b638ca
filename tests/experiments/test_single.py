import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from conftest import FinishedRun
from neural_complexity.assessment.tables import find
from neural_complexity.experiments.base.networks import HEADS
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.run_folder import config_from_dict
from neural_complexity.experiments.reports.single_report import figures, tables
from neural_complexity.experiments.single import (
    BELIEFS,
    CNN,
    DISTILLED,
    EARLY,
    OPPONENTS,
    PAPER,
    PAPER_METHODS,
    PLAIN,
    PRESETS,
    Config,
    methods,
    run,
    smoke,
)
from neural_complexity.progress import Tell

LEARNERS = "digits, MLP learner"


@pytest.fixture(autouse=True)
def as_users_run_it() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def outcome(single_run: FinishedRun) -> Outcome:
    return single_run.outcome


def value(rows: list[Row], method: str, setting: str, metric: str) -> float:
    row = find(rows, method, setting, metric)
    assert row is not None
    return row.value


def bare(rows: list[Row]) -> list[Row]:
    return [replace(row, commit="") for row in rows]


def test_all_that_a_report_needs_is_there(outcome: Outcome, tmp_path: Path) -> None:
    rows = outcome.rows
    keys = [(row.method, row.setting, row.metric) for row in rows]
    assert len(set(keys)) == len(keys)
    for method in methods():
        for metric in ("accuracy", "test loss", "train loss"):
            assert (method, LEARNERS, metric) in keys
    for method in (BELIEFS, CNN):
        assert (method, "digits, no learner", "accuracy") in keys
    for head in HEADS:
        for metric in ("R2", "correlation", "MAE"):
            for end in ("endpoints", "all the way"):
                assert (f"NC {head}", f"test images, {end}", metric) in keys
                assert (f"NC {head}", f"held-out splits, plain, {end}", metric) in keys
    accuracies, fits, sizes, strengths = tables(rows)
    # NC stands beside what shows where its help comes from.
    assert [line[0] for line in accuracies.rows] == [*methods(), BELIEFS, CNN]
    assert methods()[-1] == DISTILLED
    assert len(fits.rows) == 12
    assert len(sizes.rows) == 2 * len(HEADS) * len(smoke().sizes)
    assert [line[-1] for line in strengths.rows].count("chosen") == len(OPPONENTS)
    assert all(figure.path.stat().st_size > 10_000 for figure in figures(outcome, tmp_path))


def test_every_line_of_nc_says_on_which_images_it_judges() -> None:
    for method in methods():
        if method.startswith("NC") or method == DISTILLED:
            assert method.endswith((", transductive", ", inductive"))


def test_the_verdict_follows_the_numbers(outcome: Outcome) -> None:
    ours = "NC posterior, transductive"

    def verdict(accuracy: float, ci95: float | None) -> str:
        changed = [
            replace(row, value=accuracy, ci95=ci95)
            if (row.method, row.metric) == (ours, "accuracy")
            else replace(row, value=50.0, ci95=1.0)
            if row.metric == "accuracy" and row.setting == LEARNERS
            else row
            for row in outcome.rows
        ]
        return tables(changed)[0].note

    opponents = "cross-entropy, L2, label smoothing, mixup, dropout, SAM and early stopping"
    good, bad, unclear = verdict(60.0, 1.0), verdict(40.0, 1.0), verdict(51.5, 1.0)
    assert f"{ours}: not to be told apart from {opponents}." in verdict(60.0, None)  # of one run
    assert f"{ours}: beyond the intervals better than {opponents}." in good
    assert f"{ours}, beats the learner distilled from the CNN (60.00 ± 1.00" in good
    assert f"{ours}: beyond the intervals worse than {opponents}." in bad
    assert f"{ours}, does not beat the learner distilled from the CNN, but is worse (40" in bad
    assert f"{ours}: not to be told apart from {opponents}." in unclear
    assert f"{ours}, does not beat the learner distilled from the CNN: the inter" in unclear


def test_early_stopping_is_where_the_error_on_held_out_images_is_least(outcome: Outcome) -> None:
    held, error = (outcome.tensors[f"{EARLY}/{name}"] for name in ("error on held", "error"))
    best = [int(column.argmin()) for column in held.T]
    expected = sum(error[look, run].item() for run, look in enumerate(best)) / len(best)
    own = value(outcome.rows, EARLY, LEARNERS, "accuracy")
    assert own == pytest.approx(100 * (1 - expected), rel=1e-5)


def test_the_strength_that_is_best_on_held_out_images_is_chosen(outcome: Outcome) -> None:
    for method in OPPONENTS:
        tried = [r for r in outcome.rows if r.method == method and "strength" in r.setting]
        (chosen,) = (row for row in tried if row.setting.endswith(", chosen"))
        assert chosen.value == max(row.value for row in tried)


def test_all_methods_start_from_the_same_learners(outcome: Outcome) -> None:
    for method in methods():
        for name in ("loss_te", "error"):
            first, plain = (outcome.tensors[f"{m}/{name}"][0] for m in (method, PLAIN))
            torch.testing.assert_close(first, plain)


def stop_at(place: tuple[str, int]) -> Tell:
    """Makes what stops a run when a stage has come so far."""

    def tell(stage: str, done: int, total: int, seconds: float, facts: dict[str, float]) -> None:
        if (stage, done) == place:
            raise KeyboardInterrupt

    return tell


def test_stopped_anywhere_and_resumed_the_rows_are_those_of_one_go(
    outcome: Outcome, tmp_path: Path
) -> None:
    for place in (("posterior", 2), ("direct", 1), ("evaluation", 20)):
        with pytest.raises(KeyboardInterrupt):
            run(smoke(), folder=tmp_path, tell=stop_at(place))
    resumed = run(smoke(), folder=tmp_path)
    assert bare(resumed.rows) == bare(outcome.rows)
    assert {head: len(moments) for head, moments in resumed.history.items()} == {
        head: len(moments) for head, moments in outcome.history.items()
    }


def test_other_processes_give_the_same_rows(outcome: Outcome) -> None:
    apart = run(replace(smoke(), workers=1))
    assert bare(apart.rows) == bare(outcome.rows)


def test_the_papers_numbers_stand_beside_ours() -> None:
    assert dict(zip(PAPER_METHODS, PAPER["fashion-mnist"], strict=True)) == {
        PLAIN: 88.21,
        "L2": 88.46,
        "label smoothing": 89.15,
        "mixup": 89.50,
        "NC direct, transductive": 89.74,
    }
    assert set(PAPER_METHODS) <= set(methods())


def test_a_config_survives_json() -> None:
    for preset in PRESETS.values():
        config = preset()
        assert config_from_dict(Config, json.loads(json.dumps(asdict(config)))) == config


def test_presets_fit_their_datasets() -> None:
    images = {"digits": 1437, "mnist": 60_000, "kmnist-10k": 8000, "svhn": 73_257}
    images |= {"cifar-10": 50_000}
    for name, preset in PRESETS.items():
        config = preset()
        pool = (config.train_images or images[config.dataset]) - config.held
        assert config.split_train + config.split_test <= pool, name
        assert max(config.sizes) <= pool, name
        for training in (config.posterior, config.direct):
            assert training.unlabelled <= config.split_test, name
            assert min(training.smallest, config.split_train) >= training.M, name


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"dataset": "imagenet"}, "dataset must be one of digits, mnist,.*, got imagenet"),
        ({"weight": -1.0}, "weight must not be negative and ramp from 0 to 1, got -1.0 and 0.0"),
        ({"ramp": 2.0}, "weight must not be negative and ramp from 0 to 1, got 1.0 and 2.0"),
        ({"lr": 0.0}, "lr must be positive and momentum from 0 to below 1, got 0.0"),
        ({"momentum": 1.0}, "lr must be positive and momentum from 0 to below 1, got 0.05 and 1"),
        ({"held": 0}, "held must be at least 1, got 0"),
        ({"runs": 0}, "runs must be at least 1, got 0"),
        ({"looks": 1}, "looks must be at least 2, got 1"),
        ({"workers": -1}, "workers must be at least 0, got -1"),
        ({"l2": (0.1, -0.1)}, r"l2 must be positive strengths, got \(0.1, -0.1\)"),
        ({"mixup": ()}, r"mixup must be positive strengths, got \(\)"),
        ({"sizes": ()}, r"sizes must be positive numbers, got \(\)"),
        ({"device": "abacus"}, "device must be one that works here, got abacus"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(smoke(), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"held": 1437}, "held must be less than the 1437 images, got 1437"),
        ({"train_images": 1438}, "train_images must be at most 1437, all that digits has, got"),
        ({"test_images": 361}, "test_images must be at most 360, all that digits has, got 361"),
        ({"sizes": (1238,)}, "sizes must be at most the 1237 images there are, got 1238"),
        ({"split_train": 938}, r"train \+ test must be at most the 1237 inputs there are, got 938"),
    ],
)
def test_more_than_the_dataset_has_is_refused_at_once(
    change: dict[str, object], sentence: str
) -> None:
    began: list[str] = []
    with pytest.raises(ValueError, match=sentence):
        run(replace(smoke(), **change), tell=lambda stage, *_: began.append(stage))  # type: ignore[arg-type]
    assert not began
