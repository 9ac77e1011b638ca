from functools import partial
from pathlib import Path

import pytest
import torch

from neural_complexity.experiments.base.config import BaseConfig
from neural_complexity.experiments.base.experiment import Parts, load_experiment
from neural_complexity.experiments.base.run_folder import (
    HEADS,
    RunFolder,
    compare_runs,
    load_network,
    load_networks,
    load_tensors,
    write_report,
)
from neural_complexity.files import PART, write_tensors
from neural_complexity.locks import LOCK, lock_folder
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.workspace import Workspace
from smoke_runs import SmokeRuns

EXPERIMENT = load_experiment("sinusoid")


def test_a_folder_is_claimed_once(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.start("sinusoid", BaseConfig(seed=3))
    assert folder.read_config()["experiment"] == "sinusoid"
    assert folder.read_config()["config"]["seed"] == 3
    assert not folder.finished
    with pytest.raises(ValueError, match="--out must be a new or empty folder"):
        folder.start("sinusoid", BaseConfig())


def test_a_start_that_was_killed_leaves_room_for_the_next(tmp_path: Path) -> None:
    (tmp_path / f".config.json.x3f{PART}").touch()
    (tmp_path / LOCK).touch()
    RunFolder(tmp_path).start("sinusoid", BaseConfig())
    assert RunFolder(tmp_path).read_config()["experiment"] == "sinusoid"


def test_folders_without_a_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be the folder of a run, got no config.json there"):
        RunFolder(tmp_path).read_config()
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="must be of a run, got other content"):
        RunFolder(tmp_path).read_config()
    with pytest.raises(ValueError, match="must hold the rows of a finished run"):
        RunFolder(tmp_path).results()


def test_a_report_is_a_function_of_what_the_run_left(smoke_runs: SmokeRuns) -> None:
    folder = RunFolder(smoke_runs("curves").folder)
    write_report(folder)
    page, tables = folder.report.read_text(), (folder.path / "tables.md").read_text()
    folder.report.unlink()
    assert folder.experiment.name == "curves"
    write_report(folder)
    assert folder.report.read_text() == page
    assert (folder.path / "tables.md").read_text() == tables


def test_runs_of_others_are_refused(smoke_runs: SmokeRuns, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.start("weather", BaseConfig())
    with pytest.raises(ValueError, match="must be a run of .*sinusoid.*, got weather"):
        _ = folder.experiment
    curves = RunFolder(smoke_runs("curves").folder)
    with pytest.raises(ValueError, match="several runs must be of single, got runs of curves, cu"):
        compare_runs([curves, curves])


def test_the_shipped_networks_are_asked_unless_a_run_is_given(tmp_path: Path) -> None:
    shipped = load_networks("", "cpu")
    assert tuple(shipped) == HEADS
    for head, nc in shipped.items():
        assert nc.architecture.head == head
        nc.save(tmp_path / f"nc-{head}.safetensors")
    again = load_networks(str(tmp_path), "cpu")["direct"].state_dict()
    weights = NeuralComplexity.pretrained("sinusoid-direct").state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in weights.items())
    parts = Parts(Workspace(None), 1, None)
    parts.do("a", lambda: {"x": torch.ones(1)})
    facts = parts.facts(shipped)
    assert set(facts["networks"]) == set(HEADS)
    assert set(facts["seconds"]) == {"a"}


def test_folders_without_networks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="networks must be a finished run of sinusoid, got no"):
        load_network(str(tmp_path), "direct", "sinusoid", "cpu")
    with pytest.raises(ValueError, match="must be a finished run of omniglot with a/, got no such"):
        load_tensors(str(tmp_path), "a/", "omniglot")
    write_tensors(tmp_path / "figures.safetensors", {"a/x": torch.ones(2), "b": torch.ones(1)}, {})
    assert set(load_tensors(str(tmp_path), "a/", "omniglot")) == {"x"}


def test_a_folder_is_used_by_one_run_at_a_time(tmp_path: Path) -> None:
    folder, config = RunFolder(tmp_path), BaseConfig()
    with lock_folder(tmp_path):
        for use in (
            partial(folder.start, "sinusoid", config),
            partial(folder.perform, EXPERIMENT, config, lambda *_: None),
        ):
            with pytest.raises(BlockingIOError, match="must be used by one run at a time, got"):
                use()


def test_work_that_a_kill_left_is_removed_and_not_done_again(tmp_path: Path) -> None:
    folder, done = RunFolder(tmp_path), (tmp_path / "rows.jsonl")
    done.touch()
    assert folder.finished
    folder.work.mkdir()  # killed between the rows and the end
    assert not folder.finished
    folder.perform(EXPERIMENT, BaseConfig(), lambda *_: None)
    assert folder.finished
    assert list(tmp_path.iterdir()) == [done]


def test_a_config_of_another_version_is_refused_by_its_file(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.start("tilts", load_experiment("tilts").presets["smoke"]())
    path = tmp_path / "run" / "config.json"
    path.write_text(path.read_text().replace('"tables"', '"tabler"'))
    with pytest.raises(ValueError, match="config.json must be of this version, got .*tabler"):
        folder.config()
