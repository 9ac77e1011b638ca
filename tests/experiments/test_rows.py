import json
from dataclasses import replace
from pathlib import Path

import pytest

from neural_complexity.experiments import rows as module
from neural_complexity.experiments.rows import Row, commit, read_rows, write_rows

ROW = Row(
    experiment="sinusoid",
    method="none",
    setting="1 steps",
    metric="test loss",
    value=4.1,
    ci95=0.1,
    n=10,
    paper=None,
    seed=0,
    commit="abc",
)


def test_rows_survive_the_file(tmp_path: Path) -> None:
    rows = [ROW, replace(ROW, ci95=None, paper=4.17)]
    write_rows(tmp_path / "rows.jsonl", rows)
    assert read_rows(tmp_path / "rows.jsonl") == rows
    fields = set(json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0]))
    assert fields == {
        "experiment",
        "method",
        "setting",
        "metric",
        "value",
        "ci95",
        "n",
        "paper",
        "seed",
        "commit",
    }


def test_numbers_that_are_not_finite_are_not_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_rows(tmp_path / "rows.jsonl", [replace(ROW, value=float("nan"))])
    assert not (tmp_path / "rows.jsonl").exists()


@pytest.mark.parametrize("line", ["{", "[]", '{"experiment": "x"}'])
def test_lines_that_are_no_rows_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, [ROW])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(
        ValueError, match="must hold one row per line, got something else in line 2"
    ):
        read_rows(path)


def test_a_run_without_rows_is_not_finished(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must hold the rows of a finished run, got no such file"):
        read_rows(tmp_path / "rows.jsonl")


def test_the_commit_is_known_with_and_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    commit.cache_clear()
    assert commit()

    def no_git(*_: object) -> str:
        raise OSError("no git here")

    monkeypatch.setattr(module, "_git", no_git)
    commit.cache_clear()
    assert commit().startswith("release ")
    commit.cache_clear()
