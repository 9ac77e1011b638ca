"""What every experiment must do: each is found, run, killed, resumed and rendered here."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from golden.behaviour import EXPERIMENTS, golden, row_numbers
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
# How much a row moved at most when the same run was made by other processors, or with other
# arithmetic, stands beside it, and ten times that is allowed. Thirty-four rows of 4,713 that moved
# by more than this (losses of learners about to diverge, shares of almost equal numbers) are left
# out. In double precision the rows of `sinusoid` stayed the same to 1e-14.
CHAOTIC = 1e-2


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


# Here and not in `test_golden.py`: two processes would wait for each other's runs.
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_smoke_rows_are_what_they_were(name: str, smoke_runs: SmokeRuns) -> None:
    assert_smoke_rows(name, smoke_runs(name).outcome.rows)


def assert_smoke_rows(name: str, rows: list[Any]) -> None:
    """Compares the rows of a smoke run, whatever their keys, with the golden ones.

    Rows of one metric must come in the order they had; where metrics were renamed, all rows.
    """
    found = [[r["metric"], r["value"], r["ci95"], r["n"], r["paper"]] for r in row_numbers(rows)]
    expected = golden("smoke")[name]
    assert len(found) == len(expected)
    if {row[0] for row in found} == {row[0] for row in expected}:
        found, expected = (sorted(rows, key=lambda row: row[0]) for rows in (found, expected))
    for index, (row, (metric, value, ci95, n, paper, moved)) in enumerate(
        zip(found, expected, strict=True)
    ):
        at = f"{name}, row {index}, {metric}"
        assert row[4] == paper, at
        if moved > CHAOTIC:
            continue
        assert row[3] == n, at
        rtol = max(1e-4, 10 * moved)
        assert row[1] == pytest.approx(value, rel=rtol, abs=1e-6), at
        assert (row[2] is None) == (ci95 is None), at
        if ci95 is not None:
            assert row[2] == pytest.approx(ci95, rel=10 * rtol, abs=1e-6), at


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
