"""What every experiment must do: each is found, run, killed, resumed and rendered here."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from neural_complexity.assessment.report import to_markdown
from neural_complexity.experiments.base.config import config_from_dict
from neural_complexity.experiments.base.experiment import experiment_names, load_experiment
from neural_complexity.experiments.base.rows import read_rows
from neural_complexity.experiments.base.run_folder import RunFolder, write_report
from neural_complexity.workspace import Workspace
from smoke_runs import SmokeRuns, as_users_do

NAMES = experiment_names()
# Those that take some seconds only; they go the ways of all others.
SHORT = ("curves", "measures", "simple", "sinusoid", "search")


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_through_kills_and_its_report_is_complete(name: str, smoke_runs: SmokeRuns) -> None:
    experiment, run = load_experiment(name), smoke_runs(name)
    rows = run.outcome.rows
    assert {row.experiment for row in rows} == {name} == {experiment.name}
    assert {row.commit for row in rows} != {""}
    keys = [(row.metric, tuple(sorted(row.keys.items()))) for row in rows]
    assert len(set(keys)) == len(keys)
    assert not (run.folder / "work").exists()
    folder = RunFolder(run.folder)
    tables, training = write_report(folder)
    assert tables
    assert all(table.rows for table in tables)
    assert set(training) == set(run.outcome.history)
    pictures = list(folder.figures.glob("*.png"))
    assert pictures
    assert all(path.stat().st_size > 5_000 for path in pictures)
    page = folder.report.read_text()
    assert page.count("data:image/png") == len(pictures)
    assert experiment.title in page


@pytest.mark.parametrize("name", SHORT)
def test_killed_and_resumed_the_rows_are_those_of_one_go(name: str, smoke_runs: SmokeRuns) -> None:
    config, resumed = smoke_runs.config(name), smoke_runs(name)
    with as_users_do(smoke_runs.data):
        whole = load_experiment(name).run(config, Workspace(None), None)
    assert whole.rows == resumed.outcome.rows


@pytest.mark.parametrize("name", NAMES)
def test_its_presets_are_possible_and_survive_json(name: str) -> None:
    experiment = load_experiment(name)
    assert {"smoke", "cpu"} < set(experiment.presets)  # and one for a GPU
    for preset in experiment.presets.values():
        config = preset()
        assert config_from_dict(experiment.config, json.loads(json.dumps(asdict(config)))) == config


ROOT = Path(__file__).parent.parent.parent
COMMITTED = sorted(path.parent for path in (ROOT / "docs" / "results").glob("*/rows.jsonl"))


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: folder.name)
def test_tables_of_committed_results_are_made_of_their_rows(
    folder: Path,
) -> None:
    experiment = RunFolder(folder).experiment
    tables = experiment.tables(read_rows(folder / "rows.jsonl"))
    written = "\n".join(to_markdown(table) for table in tables)
    assert written == (folder / "tables.md").read_text()
