"""A tiny version of the campaign of `make chaos`, and what it would be worth nothing without."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chaos.children import Tally, fuzz, wrong_refusal
from chaos.damage import HOSTILE, OFTEN, damage, flip_bits, send_hostile
from chaos.odd_calls import call_oddly
from chaos.specimens import SPECIMENS, collect

pytestmark = [
    pytest.mark.usefixtures("single_precision"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
RUN = Path(__file__).with_name("run.py")


def test_a_short_campaign_kills_runs_and_they_end_as_if_nothing_had_been(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    options = ["--minutes", "0.2", "--only", "kills", "--work", "simple", "--log", str(log)]
    done = subprocess.run(
        [sys.executable, str(RUN), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (kills,) = map(json.loads, log.read_text().splitlines())
    assert kills["failed"] == 0
    assert kills["counts"]["runs"] >= 1
    assert {"seed", "commit", "tried", "failures", "seconds", "megabytes"} <= set(kills)
    assert "seed 0" in done.stdout


def test_what_fails_dies_hangs_or_takes_memory_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.children.PATIENCE", 2.0)
    ways: dict[int, Callable[[], str | None]] = {
        1: lambda: "another number",
        3: lambda: os._exit(3),
        4: lambda: time.sleep(1000),
        6: lambda: str(np.ones(2**28).sum()),
    }
    tally = Tally("tests", 0)
    fuzz(tally, lambda number: ways.get(number, lambda: None), range(8))
    assert (tally.tried, tally.failed) == (8, 4)
    told = " ".join(first for _, first in tally.failures.values())
    for said in ("another number", "ended its process with 3", "did not end", "MemoryError"):
        assert said in told


@pytest.mark.parametrize(
    ("error", "wrong"),
    [
        (ValueError("x must be 1, got 2"), False),
        (ValueError("Something is wrong."), True),
        (ValueError("one\ntwo"), True),
        (ValueError("malloc of size 55 failed"), True),
        (KeyError("x"), True),
        (MemoryError(), True),
    ],
)
def test_errors_must_be_sentences(error: Exception, wrong: bool) -> None:
    assert (wrong_refusal(error) is not None) == wrong
    assert wrong_refusal(ValueError("a must be b"), "file.csv") is not None


def test_damage_changes_most_files_a_little() -> None:
    content = bytes(range(256)) * 4
    found = [damage(content, np.random.default_rng(seed)) for seed in range(200)]
    assert sum(each != content for each in found) > 180
    assert damage(content, np.random.default_rng(1)) == found[1]
    assert damage(b"", np.random.default_rng(1)) is not None


@pytest.mark.parametrize("name", SPECIMENS)
def test_every_kind_of_file_is_read_whole_and_damaged(name: str, tmp_path: Path) -> None:
    (specimen,) = collect(tmp_path, [name])
    assert specimen.files
    attempt = flip_bits([specimen], tmp_path, 0)
    said = [attempt(number)() for number in range(3)]
    assert not [s for s in said if s is not None and "in the campaign" in s]


def test_hostile_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in set(HOSTILE) - {"container", "IDX", "cells"}:  # which take no time
        monkeypatch.delitem(HOSTILE, kind)
    attempt = send_hostile(tmp_path, 0)
    assert {attempt(number)() for number in range(2 * OFTEN + 1)} == {None}


def test_odd_calls_of_one_thread_are_mostly_refused_or_right() -> None:
    attempt = call_oddly(0)
    found = [attempt(number)() for number in range(24)]
    assert found.count(None) > 18, found
