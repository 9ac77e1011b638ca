import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from neural_complexity.locks import LOCK, lock_file, lock_folder, remove_stale_lock

HOLD = """
import sys
from pathlib import Path
from neural_complexity.locks import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def hold(folder: Path) -> "subprocess.Popen[str]":
    """Starts a process that has a folder, and returns when it has."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def test_a_folder_of_a_living_process_is_refused_and_that_of_a_dead_one_is_not(
    tmp_path: Path,
) -> None:
    folder, link = tmp_path / "run", tmp_path / "link"
    link.symlink_to(folder)
    with hold(link) as process:  # which leads nowhere yet
        for path in (folder, link):  # whatever it is called
            sentence = f"{path} must be used by one run at a time, got another by process"
            since = r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$"
            with pytest.raises(BlockingIOError, match=f"{sentence} {process.pid}, {since}"):
                lock_folder(path).__enter__()
        process.kill()
    assert (folder / LOCK).exists()
    with lock_folder(folder):
        assert f"process {os.getpid()}, " in (folder / LOCK).read_text()
    assert list(folder.iterdir()) == []


def test_the_same_process_cannot_have_a_folder_twice(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        with pytest.raises(BlockingIOError, match=f"another by process {os.getpid()}, since"):
            lock_folder(tmp_path).__enter__()
        assert (tmp_path / LOCK).exists()
    with pytest.raises(KeyError), lock_folder(tmp_path):  # an error unlocks it, too
        raise KeyError
    with lock_folder(tmp_path):
        pass


def test_a_lock_that_its_holder_has_just_deleted_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, first = fcntl.flock, [True]

    def slow(handle: int, how: int) -> None:  # between opening and locking, the holder ends
        if first:
            first.clear()
            (tmp_path / LOCK).unlink()
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    with lock_folder(tmp_path), (tmp_path / LOCK).open() as file:
        assert not lock_file(file.fileno())  # the file that others will find is locked


def test_the_lock_of_others_stays_where_a_folder_was_deleted(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        (tmp_path / LOCK).unlink()
        (tmp_path / LOCK).touch()  # of a run that came afterwards
    assert (tmp_path / LOCK).exists()


def test_where_there_are_no_locks_a_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: int) -> None:
        raise OSError(38, os.strerror(38))

    monkeypatch.setattr(fcntl, "flock", missing)
    sentence = rf"{re.escape(str(tmp_path))} cannot be locked \(.*Function not implemented\)"
    with pytest.warns(UserWarning, match=sentence), lock_folder(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_only_a_lock_that_nobody_has_is_removed(tmp_path: Path) -> None:
    remove_stale_lock(tmp_path)  # there is none
    with lock_folder(tmp_path):
        remove_stale_lock(tmp_path)
        assert (tmp_path / LOCK).exists()
    (tmp_path / LOCK).touch()
    remove_stale_lock(tmp_path)
    assert not list(tmp_path.iterdir())
