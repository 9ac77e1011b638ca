from pathlib import Path

import pytest

from neural_complexity.experiments.base.config import BaseConfig
from neural_complexity.experiments.base.run_folder import RunFolder
from neural_complexity.experiments.base.run_report import (
    compare_runs,
    experiment_of,
    write_report,
)
from smoke_runs import SmokeRuns


def test_a_report_is_a_function_of_what_the_run_left(smoke_runs: SmokeRuns) -> None:
    folder = RunFolder(smoke_runs("curves").folder)
    write_report(folder)
    page, tables = folder.report.read_text(), (folder.path / "tables.md").read_text()
    folder.report.unlink()
    assert experiment_of(folder).name == "curves"
    write_report(folder)
    assert folder.report.read_text() == page
    assert (folder.path / "tables.md").read_text() == tables


def test_runs_of_others_are_refused(smoke_runs: SmokeRuns, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.start("weather", BaseConfig())
    with pytest.raises(ValueError, match="must be a run of .*sinusoid.*, got weather"):
        experiment_of(folder)
    curves = RunFolder(smoke_runs("curves").folder)
    with pytest.raises(ValueError, match="several runs must be of single, got runs of curves, cu"):
        compare_runs([curves, curves])
