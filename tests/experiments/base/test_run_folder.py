from pathlib import Path

import pytest

from neural_complexity.experiments.base.config import BaseConfig
from neural_complexity.experiments.base.run_folder import RunFolder, compare_runs, write_report
from smoke_runs import SmokeRuns


def test_a_folder_is_claimed_once(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.start("sinusoid", BaseConfig(seed=3))
    assert folder.read_config()["experiment"] == "sinusoid"
    assert folder.read_config()["config"]["seed"] == 3
    assert not folder.finished
    with pytest.raises(ValueError, match="--out must be a new or empty folder"):
        folder.start("sinusoid", BaseConfig())


def test_a_start_that_was_killed_leaves_room_for_the_next(tmp_path: Path) -> None:
    (tmp_path / ".config.json.x3f").touch()
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
