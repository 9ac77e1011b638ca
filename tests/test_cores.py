import os
import platform
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from neural_complexity import commands, cores
from neural_complexity.cores import COUNTS, SPINS, USUAL, free_cores, hold_memory, passive_threads

IMPORTS = """
import os, sys
before = dict(os.environ)
import neural_complexity
from neural_complexity import assess, meta_learn
assert dict(os.environ) == before
"""
COMMAND = """
import os, sys
from neural_complexity import cli
seen = []
cli.load_quietly = lambda name: seen.append((name, os.environ["OMP_WAIT_POLICY"]))
assert "torch" not in sys.modules
cli._commands()
print(*seen[0], "OMP_WAIT_POLICY" in os.environ)
"""


def python(code: str, **environment: str) -> str:
    own = {n: v for n, v in os.environ.items() if n not in (*USUAL, *COUNTS)} | environment
    line = [sys.executable, "-c", code]
    return subprocess.run(line, check=True, capture_output=True, text=True, env=own).stdout


def test_importing_the_library_changes_nothing() -> None:
    python(IMPORTS)


def test_commands_load_torch_with_threads_that_sleep_unless_the_user_says_otherwise() -> None:
    assert python(COMMAND).split() == ["neural_complexity.commands", "PASSIVE", "False"]
    assert python(COMMAND, OMP_WAIT_POLICY="ACTIVE").split()[1:] == ["ACTIVE", "True"]


def test_processes_that_start_meanwhile_inherit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in USUAL:
        monkeypatch.delenv(name, raising=False)
    ask: Any = partial(subprocess.run, ["printenv", *USUAL], capture_output=True, text=True)
    with passive_threads():
        assert ask().stdout == "PASSIVE\n2000\n"
    assert not set(USUAL) & set(os.environ)
    monkeypatch.setenv(SPINS, "7")  # the user knows better
    with passive_threads():
        assert ask().stdout == "7\n"
    assert os.environ[SPINS] == "7"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of four cores, of which this process may use the first three."""
    for name in COUNTS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cores, "STAT", tmp_path / "stat")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    return tmp_path / "stat"


@pytest.mark.parametrize(
    ("idle", "threads"),
    [((1, 1, 1), 3), ((1, 0.9, 0.1), 2), ((0, 0, 0), 1), ((0.3, 0.1, 0.2), 1), ((0.8, 0.8, 0), 2)],
)
def test_threads_are_as_many_as_others_leave_idle(
    idle: tuple[float, ...], threads: int, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, ticks = 100.0, os.sysconf("SC_CLK_TCK")

    def write() -> None:
        shares = [*idle, 1]  # the fourth core is not ours
        lines = [f"cpu{i} 7 7 7 {round(s * now * ticks)} 0 7 7" for i, s in enumerate(shares)]
        machine.write_text("\n".join(["cpu 9 9 9 9 9", *lines, "intr 1"]))

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        write()

    write()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", sleep)
    assert free_cores() == threads


def test_users_and_systems_without_such_numbers_decide(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert free_cores() is None
    machine.touch()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert free_cores() is None


@pytest.mark.parametrize(("free", "begun", "expected"), [(2, None, 2), (1, 2, 2), (None, 2, 0)])
def test_a_run_goes_on_with_the_threads_it_was_begun_with(
    free: int | None, begun: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [0]
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr(commands, "free_cores", lambda: free)
    commands._use_free_cores(begun)
    assert chosen[-1] == expected


def test_memory_can_be_held_where_the_c_library_knows_how() -> None:
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        assert hold_memory()
    else:
        assert not hold_memory()
