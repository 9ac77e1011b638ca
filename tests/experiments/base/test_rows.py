import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import neural_complexity
from neural_complexity.experiments.base import rows as module
from neural_complexity.experiments.base.rows import (
    Key,
    Row,
    commit,
    distinct,
    find,
    pivot,
    read_rows,
    select,
    show,
    write_rows,
)
from neural_complexity.meta.scores import Estimate

ROW = Row(
    experiment="sinusoid",
    metric="test loss",
    keys={"method": "none", "step": 1, "share": 0.5, "shared": True},
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
        "metric",
        "keys",
        "value",
        "ci95",
        "n",
        "paper",
        "seed",
        "commit",
    }


def test_a_row_has_the_keys_that_there_are() -> None:
    row = Row.of("e", 3, "R2", Estimate(0.5, None, 8), 0.9, method="NC", head=None)
    assert (row.keys, row.value, row.n, row.paper, row.seed) == ({"method": "NC"}, 0.5, 8, 0.9, 3)
    assert row.commit == commit()


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
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ValueError, match="must hold the rows of a finished run, got an empty file"):
        read_rows(tmp_path / "empty.jsonl")
    with pytest.raises(ValueError, match="must hold the rows of a finished run, got no such file"):
        read_rows(tmp_path / "rows.jsonl")


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True
    )


def test_the_commit_is_that_of_the_package_and_says_if_it_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "neural_complexity"
    (package / "meta").mkdir(parents=True)
    for name in ("__init__.py", "meta/train.py"):
        (package / name).touch()
    git(tmp_path, "init")
    (tmp_path / "other").touch()
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "-m", "Another project's")
    monkeypatch.setattr(neural_complexity, "__file__", str(package / "__init__.py"))
    commit.cache_clear()
    assert commit().startswith("release ")  # copied into it, not a part of it
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "Ours")
    commit.cache_clear()
    clean = commit()
    assert re.fullmatch("[0-9a-f]{12}", clean)
    (package / "meta" / "train.py").write_text("changed")
    commit.cache_clear()
    assert commit() == clean + "-changed"
    commit.cache_clear()


def test_the_commit_is_known_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_git(*_: object) -> str:
        raise OSError("no git here")

    monkeypatch.setattr(module, "_git", no_git)
    commit.cache_clear()
    assert commit().startswith("release ")
    commit.cache_clear()


def test_rows_of_an_earlier_version_are_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"method": "none", "setting": "1 steps", "value": 1}\n')
    with pytest.raises(ValueError, match="got those of an earlier version: run it again"):
        read_rows(tmp_path / "rows.jsonl")


def row(value: float, metric: str = "loss", **keys: Key) -> Row:
    return replace(ROW, metric=metric, value=value, ci95=None, keys=keys)


ROWS = [
    row(1.0, method="none", step=2),
    row(2.0, method="none", step=1),
    row(3.0, method="NC", head="direct", step=1),
    row(4.0, "gap", method="none", step=1),
]


def test_numbers_come_with_their_interval() -> None:
    some = replace(ROW, value=4.123, ci95=0.056)
    assert show(some) == "4.12 ± 0.06"
    assert show(replace(some, ci95=None), digits=1) == "4.1"
    assert show(row(-0.001)) == "0.00"
    assert show(None) == ""


def test_rows_are_found_by_metric_and_keys() -> None:
    assert select(ROWS, step=1) == ROWS[1:]
    assert select(ROWS, "loss", head=None) == ROWS[:2]  # those without a head
    assert find(ROWS, "gap", method="none") is ROWS[3]
    assert find(ROWS, "loss", method="NC", step=2) is None
    with pytest.raises(AssertionError, match="must be one row, got 2"):
        find(ROWS, "loss", step=1)


def test_distinct_keys_come_in_order_of_appearance() -> None:
    assert distinct(ROWS, "method", "head") == [
        {"method": "none"},
        {"method": "NC", "head": "direct"},
    ]


def test_a_pivot_has_a_line_per_name_and_a_cell_per_column() -> None:
    lines = pivot(
        ROWS,
        distinct(ROWS, "method"),
        [("loss", {"step": 1}), ("gap", {})],
        lambda keys: str(keys["method"]),
    )
    assert lines == [("none", "2.00", "4.00"), ("NC", "3.00", "")]


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"experiment": "\xc3"}\n')
    with pytest.raises(ValueError, match="rows.jsonl must hold rows in UTF-8, got other bytes"):
        read_rows(tmp_path / "rows.jsonl")
