"""Attacks on work under way: kills, two processes in one folder, a full disk."""

import errno
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from chaos.children import Child, Tally, refused
from chaos.runs import NEEDED, Work, leftovers

__all__ = ["double", "fill_disk", "kill", "kill_workers", "references"]

PATIENCE = 600.0  # seconds that work may take in one go
MOST_KILLS = 12  # of one run
ORPHANS = 10.0  # seconds in which workers end after their parent


@dataclass
class Reference:
    """Work, what it leaves if nothing happens, and how long it takes."""

    work: Work
    left: object
    seconds: float
    largest: int  # bytes of the largest file that it writes
    spent: dict[str, float] = field(default_factory=dict)  # by attack


def references(tally: Tally, works: list[Work], folder: Path) -> list[Reference]:
    """Does each work once, uninterrupted; what others need stays in the folder."""
    found = []
    for work in sorted(works, key=lambda work: work.name not in NEEDED):
        own = folder / work.name
        child = Child(partial(work.go, own))
        code = child.wait(PATIENCE)
        if code:
            tally.fail(work.name, f"uninterrupted, ended with {code}: {child.said[-300:]}")
            continue
        sizes = [path.stat().st_size for path in own.rglob("*") if path.is_file()]
        found.append(Reference(work, work.left(own), child.seconds, max(sizes)))
        if work.name not in NEEDED:
            shutil.rmtree(own)
    return found


Attack = Callable[[Tally, Reference, Path, np.random.Generator], None]


def attack(
    tally: Tally, references: list[Reference], folder: Path, until: float, once: Attack
) -> None:
    """Attacks the work that had least of the time so far, again and again."""
    number = 0
    while time.perf_counter() < until and references:
        reference = min(references, key=lambda each: each.spent.get(tally.attack, 0.0))
        own, start = folder / f"{tally.attack}-{number}", time.perf_counter()
        random = np.random.default_rng([tally.seed, number])
        once(tally, reference, own, random)
        shutil.rmtree(own, ignore_errors=True)
        spent = reference.spent.get(tally.attack, 0.0) + time.perf_counter() - start
        reference.spent[tally.attack], number = spent, number + 1


def finish(tally: Tally, reference: Reference, folder: Path, why: str) -> None:
    """Goes on to the end, and compares what is left with what an uninterrupted run leaves."""
    work = reference.work
    child = Child(partial(work.go, folder))
    code = child.wait(PATIENCE)
    if code is None:
        child.kill()
    if code != 0:
        tally.fail(work.name, f"{why} and resumed, ended with {code}: {child.said[-400:]}")
        return
    try:
        same = work.left(folder) == reference.left
    except Exception as error:
        tally.fail(work.name, f"{why} and resumed, {type(error).__name__}: {error}")
        return
    if not same:
        tally.fail(work.name, f"{why} and resumed, left something else than an uninterrupted run")
    elif unused := leftovers(folder):
        tally.fail(work.name, f"{why} and resumed, left {', '.join(unused)[:200]}")


def kill(tally: Tally, reference: Reference, folder: Path, random: np.random.Generator) -> None:
    """Kills a run some times at random moments, and resumes it in between and to its end."""
    tally.count("runs")
    for _ in range(random.integers(1, MOST_KILLS + 1)):
        child = Child(partial(reference.work.go, folder))
        code = child.wait(random.uniform(0, reference.seconds))
        if code == 0:
            break
        if code is not None:
            tally.fail(reference.work.name, f"resumed, ended with {code}: {child.said[-400:]}")
            return
        known = _children(child.pid)
        child.kill()
        tally.add(reference.work.name, _orphans(known), child.seconds)
    finish(tally, reference, folder, "killed")


def kill_workers(
    tally: Tally, reference: Reference, folder: Path, random: np.random.Generator
) -> None:
    """Kills workers of a run at random moments; it goes on by itself."""
    tally.count("runs")
    child, code = Child(partial(reference.work.go, folder)), None
    while code is None and child.seconds < PATIENCE:
        code = child.wait(random.uniform(0, reference.seconds / 3))
        workers = [] if code is not None else _children(child.pid)
        if workers:
            with_luck(partial(os.kill, int(random.choice(workers)), signal.SIGKILL))
            tally.add(reference.work.name)
    if code:
        said = child.said[-400:]
        if "workers in turn died" in said:  # as it says it will, when unlucky: it resumes
            tally.count("gave up")
        else:
            tally.fail(reference.work.name, f"without some workers, ended with {code}: {said}")
    finish(tally, reference, folder, "its workers killed")


def double(tally: Tally, reference: Reference, folder: Path, random: np.random.Generator) -> None:
    """Starts the same work twice in one folder: one does it, the other is refused."""
    first = Child(partial(reference.work.go, folder))
    begun = first.wait(random.uniform(0, reference.seconds / 2))
    second = Child(partial(reference.work.go, folder))
    codes = [begun if begun is not None else first.wait(PATIENCE), second.wait(PATIENCE)]
    failure = None
    if sorted(map(bool, codes)) == [False, True]:
        loser = second if codes[1] else first
        said = loser.said.strip().splitlines()[-1:] or [""]
        wrong = refused(said[0]) if said[0].startswith("error: ") else f"said {loser.said[-300:]}"
        failure = wrong and f"the refusal {wrong}"
    elif codes != [0, 0] or second.started < first.started + first.seconds:
        failure = f"of two processes at once, exit codes {codes}: {second.said[-200:]}"
    tally.add(reference.work.name, failure, max(first.seconds, second.seconds))
    finish(tally, reference, folder, "done by two processes")


def fill_disk(
    tally: Tally, reference: Reference, folder: Path, random: np.random.Generator
) -> None:
    """Lets files be too large, or the disk full, from a random moment on; then there is space."""
    work, full = reference.work, random.random() < 0.5
    size, moment = int(reference.largest * random.random() ** 3), int(random.integers(60))

    def go() -> int | None:
        if full:
            _fill(moment)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        return work.go(folder)

    child = Child(go)
    code = child.wait(PATIENCE)
    failure = None
    if code:
        said = [line for line in child.said.splitlines() if line.startswith("error: ")]
        wrong = refused(said[-1], str(folder)) if said else f"said {child.said[-300:]}"
        how = f"disk full at sync {moment}" if full else f"files of at most {size} bytes"
        failure = wrong and f"{how}: {wrong}"
    tally.add(work.name, failure, child.seconds)
    tally.count("refused", int(bool(code)))
    finish(tally, reference, folder, "without space on the disk")


def _fill(moment: int) -> None:
    """Makes the disk be full, in this process, when so many files were brought to it."""
    sync, calls = os.fsync, iter(range(moment))

    def fsync(file: int) -> None:
        if next(calls, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)

    os.fsync = fsync  # type: ignore[assignment]


def _children(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def _works(pid: int) -> bool:
    """Says whether a process has not ended, whether or not somebody asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _orphans(pids: list[int]) -> str | None:
    """Waits for processes to end after their parent; says if they do not."""
    end = time.perf_counter() + ORPHANS
    while any(map(_works, pids)):
        if time.perf_counter() > end:
            for pid in pids:
                with_luck(partial(os.kill, pid, signal.SIGKILL))
            return f"{len(pids)} workers outlived their parent by {ORPHANS} s"
        time.sleep(0.02)
    return None


def with_luck(action: Callable[[], None]) -> None:
    """Does something to a process that may have ended."""
    with suppress(ProcessLookupError):
        action()
