"""The experiments that ask the NCs of a run of `single`."""

import json
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import FinishedRun
from neural_complexity.assessment.tables import find
from neural_complexity.experiments import single
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.run_folder import RunFolder, config_from_dict
from neural_complexity.experiments.base.trajectories import NC_METHODS, PLAIN
from neural_complexity.experiments.single_curves import LONG, reported
from neural_complexity.files import read_json, write_json
from neural_complexity.meta.scores import r_squared

NAMES = ("dataset_size", "single_curves", "capacity")


def experiment(name: str) -> Any:
    return import_module(f"neural_complexity.experiments.{name}")


@pytest.fixture(autouse=True)
def single_precision() -> None:
    torch.set_default_dtype(torch.float32)  # as users run it


def config_of(name: str, run: FinishedRun) -> Any:
    return replace(experiment(name).smoke(), networks=str(run.folder))


@pytest.fixture(scope="module")
def outcomes(single_run: FinishedRun) -> dict[str, Outcome]:
    torch.set_default_dtype(torch.float32)
    return {name: experiment(name).run(config_of(name, single_run)) for name in NAMES}


def interrupt(stage: str, done: int, total: int, seconds: float, facts: dict[str, float]) -> None:
    if stage == "evaluation" and done == total // 2:
        raise KeyboardInterrupt


def number(rows: list[Row], method: str, setting: str, metric: str) -> Row:
    row = find(rows, method, setting, metric)
    assert row is not None
    return row


@pytest.mark.parametrize("name", NAMES)
def test_interrupted_and_resumed_the_rows_are_those_of_one_go(
    name: str, single_run: FinishedRun, outcomes: dict[str, Outcome], tmp_path: Path
) -> None:
    config = config_of(name, single_run)
    with pytest.raises(KeyboardInterrupt):
        experiment(name).run(config, folder=tmp_path, tell=interrupt)
    assert experiment(name).run(config, folder=tmp_path).rows == outcomes[name].rows


@pytest.mark.parametrize("name", NAMES)
def test_a_report_can_be_made(name: str, outcomes: dict[str, Outcome], tmp_path: Path) -> None:
    outcome, report = outcomes[name], import_module(f"neural_complexity.experiments.reports.{name}")
    assert {row.experiment for row in outcome.rows} == {name}
    keys = [(row.method, row.setting, row.metric) for row in outcome.rows]
    assert len(set(keys)) == len(keys)
    assert all(table.rows for table in report.tables(outcome.rows))
    figures = report.figures(outcome, tmp_path)
    assert figures
    assert all(figure.path.stat().st_size > 10_000 for figure in figures)
    assert set(outcome.facts) == {"networks", "seconds"}


@pytest.mark.parametrize("name", NAMES)
def test_a_config_survives_json(name: str) -> None:
    module = experiment(name)
    for preset in module.PRESETS.values():
        config = preset()
        assert config_from_dict(module.Config, json.loads(json.dumps(asdict(config)))) == config


@pytest.mark.parametrize("name", NAMES)
def test_other_networks_are_refused(name: str, single_run: FinishedRun, tmp_path: Path) -> None:
    module, config = experiment(name), config_of(name, single_run)
    changes: list[tuple[dict[str, object], str]] = [
        ({"networks": ""}, "networks must be the folder of a finished run of single on digits, go"),
        ({"networks": "nowhere"}, "networks must be the folder of a finished run of single, got n"),
        ({"seed": 1}, "networks must be a run with the same .*got one with seed 0 in the place of"),
        ({"held": 199}, "got one with held 200 in the place of 199"),
        ({"train_images": 1300}, "got one with train_images 0 in the place of 1300"),
        ({"test_images": 300}, "got one with test_images 120 in the place of 300"),
    ]
    for change, sentence in changes:
        with pytest.raises(ValueError, match=sentence):
            module.run(replace(config, **change))
    other = RunFolder(tmp_path / "other")
    other.start("sinusoid", single.smoke())
    with pytest.raises(ValueError, match="networks must be a run of single, got one of sinusoid"):
        module.run(replace(config, networks=str(other.path)))


def test_networks_of_another_dataset_or_of_an_unfinished_run_are_refused(
    single_run: FinishedRun, tmp_path: Path
) -> None:
    module = experiment("capacity")
    content = read_json(single_run.folder / "config.json")
    write_json(tmp_path / "config.json", content)
    config = replace(module.smoke(), networks=str(tmp_path))
    with pytest.raises(ValueError, match="networks must be a finished run of single, got no"):
        module.run(config)
    content["config"]["dataset"] = "mnist"
    write_json(tmp_path / "config.json", content)
    with pytest.raises(ValueError, match="got one with dataset mnist in the place of digits"):
        module.run(config)


def test_impossible_configs_are_refused(single_run: FinishedRun) -> None:
    sizes, curves, capacity = (experiment(name) for name in NAMES)
    with pytest.raises(ValueError, match=r"sizes must be positive numbers, got \(0,\)"):
        replace(sizes.smoke(), sizes=(0,))
    with pytest.raises(ValueError, match="sizes must be at most the 1437 training images, got"):
        sizes.run(replace(config_of("dataset_size", single_run), sizes=(1438,)))
    with pytest.raises(ValueError, match="long_steps must be at least 20, got 19"):
        replace(curves.smoke(), long_steps=19)
    for times in ((), (0,), (2, 2)):
        with pytest.raises(ValueError, match="times must be different positive numbers, got"):
            replace(capacity.smoke(), times=times)


def test_gaps_and_estimates_are_those_at_the_end(outcomes: dict[str, Outcome]) -> None:
    rows, tensors = outcomes["dataset_size"].rows, outcomes["dataset_size"].tensors
    for size in (100, 1000):
        for method, name in (("true", "gap"), ("NC direct", "predicted/direct")):
            row = number(rows, method, f"{size} training images", "gap")
            assert row.value == pytest.approx(tensors[f"{size}/{name}"][-1].mean().item())
            assert row.n == 2
    gaps, own = (
        torch.cat([tensors[f"{size}/{name}"][-1] for size in (100, 1000)])
        for name in ("gap", "predicted/posterior")
    )
    fit = number(rows, "NC posterior", "endpoints", "R2")
    assert fit.value == pytest.approx(r_squared(own, gaps).item(), rel=1e-4)
    assert gaps[:2].mean() > gaps[2:].mean()  # fewer images are overfitted more


def test_learners_with_and_without_nc_are_those_of_the_table(
    single_run: FinishedRun, outcomes: dict[str, Outcome]
) -> None:
    table = single_run.outcome.rows
    for method in (PLAIN, *NC_METHODS):
        wanted = number(table, method, "digits, MLP learner", "accuracy")
        for name, setting in (("single_curves", "20 steps"), ("capacity", wanted.setting)):
            own = number(outcomes[name].rows, method, setting, "accuracy")
            assert own.value == pytest.approx(wanted.value)


def test_the_first_step_as_good_is_the_first_look_below_the_error(
    outcomes: dict[str, Outcome], single_run: FinishedRun
) -> None:
    module = experiment("single_curves")
    found = {
        PLAIN: {
            "step": torch.tensor([0, 1, 4]),
            "error": torch.tensor([[1.0, 1], [0.5, 0.6], [0.3, 0.5]]),
        },
        LONG: {"step": torch.tensor([0, 8]), "error": torch.tensor([[1.0, 1], [0.1, 0.1]])},
        "NC direct, inductive": {
            "step": torch.tensor([0, 1, 4]),
            "error": torch.tensor([[1.0, 1], [0.4, 0.7], [0.05, 0.2]]),
        },
    }
    rows = module._reach_rows(module.smoke(), found)
    ours = "NC direct, inductive"
    assert number(rows, ours, f"{PLAIN}, 4 steps", "runs as good").value == 2
    assert number(rows, ours, f"{PLAIN}, 4 steps", "first step as good").value == 2.5
    assert number(rows, ours, f"{LONG}, 8 steps", "runs as good").value == 1
    assert find(rows, ours, f"{LONG}, 8 steps", "first step as good") is None
    longest = outcomes["single_curves"].tensors[f"{LONG}/step"]
    assert longest[-1] == 40


def test_reported_looks_are_spread_and_hold_the_last() -> None:
    for looks in range(2, 40):
        places = reported(torch.arange(looks))
        assert places[-1] == looks - 1
        assert places[0] > 0
        assert len(places) <= 4


def test_larger_learners_have_a_multiple_of_the_parameters(outcomes: dict[str, Outcome]) -> None:
    module, rows = experiment("capacity"), outcomes["capacity"].rows
    setting = "digits, MLP learner"
    one = (64 + 1) * 16 + (16 + 1) * 10
    for times in (1, 2, 4):
        row = number(rows, module.larger(times), setting, "parameters")
        assert row.value == times * one
    for method in NC_METHODS:
        assert number(rows, method, setting, "parameters").value == one
    assert module.PAPER["cifar-10"] == {
        module.larger(1): 79.76,
        module.larger(2): 79.64,
        module.larger(4): 80.47,
        "NC": 81.15,
    }
