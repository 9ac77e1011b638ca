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

__all__ = ["Target", "attack", "double", "fill_disk", "kill", "kill_workers"]

PATIENCE = 600.0  # seconds that work may take in one go
MOST_KILLS = 30  # of one run
SCALES = (1.0, 0.3, 0.1, 0.03)  # of an uninterrupted run, in which a kill comes
ORPHANS = 10.0  # seconds in which workers end after their parent


@dataclass
class Target:
    """Work to attack; what it leaves if nothing happens is known once it was done."""

    work: Work
    left: object = None
    seconds: float = 0.0  # that it takes
    largest: int = 0  # bytes of the largest file that it writes
    spent: dict[str, float] = field(default_factory=dict)  # by attack

    def do(self, tally: Tally, folder: Path) -> bool:
        """Does the work uninterrupted; says whether it ended well."""
        child = Child(partial(self.work.go, folder))
        code = child.wait(PATIENCE)
        tally.count("uninterrupted runs")
        if code is None:
            child.kill()
        if code != 0:
            tally.fail(self.work.name, f"uninterrupted, ended with {code}: {child.said[-300:]}")
            return False
        self.left, self.seconds = self.work.left(folder), child.seconds
        self.largest = max(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return True


Attack = Callable[[Tally, Target, Path, np.random.Generator], None]


def attack(tally: Tally, targets: list[Target], folder: Path, until: float, once: Attack) -> None:
    """Attacks the work that had least of the time so far, again and again."""
    # What others need comes first, and stays where they find it. Work is begun one by one, in half
    # of the time: a busy machine does not spend all of it on uninterrupted runs.
    left, number = sorted(targets, key=lambda target: target.work.name not in NEEDED), 0
    begin, count = time.perf_counter(), len(targets)
    while left and (now := time.perf_counter()) < until:
        begun = left[: 1 + int(2 * count * (now - begin) / (until - begin))]
        target = min(begun, key=lambda each: each.spent.get(tally.attack, 0.0))
        own, start = folder / f"{tally.attack.replace(' ', '-')}-{number}", time.perf_counter()
        number += 1
        if target.left is None:
            own = folder / target.work.name if target.work.name in NEEDED else own
            if not target.do(tally, own):
                left.remove(target)
        else:
            once(tally, target, own, np.random.default_rng([tally.seed, number]))
        if own.name not in NEEDED:
            shutil.rmtree(own, ignore_errors=True)
        spent = target.spent.get(tally.attack, 0.0) + time.perf_counter() - start
        target.spent[tally.attack] = spent


def finish(tally: Tally, target: Target, folder: Path, why: str) -> None:
    """Goes on to the end, and compares what is left with what an uninterrupted run leaves."""
    work = target.work
    child = Child(partial(work.go, folder))
    code = child.wait(PATIENCE)
    if code is None:
        child.kill()
    if code != 0:
        tally.fail(work.name, f"{why} and resumed, ended with {code}: {child.said[-400:]}")
        return
    try:
        same = work.left(folder) == target.left
    except Exception as error:
        tally.fail(work.name, f"{why} and resumed, {type(error).__name__}: {error}")
        return
    if not same:
        tally.fail(work.name, f"{why} and resumed, left something else than an uninterrupted run")
    elif unused := leftovers(folder):
        tally.fail(work.name, f"{why} and resumed, left {', '.join(unused)[:200]}")


def kill(tally: Tally, target: Target, folder: Path, random: np.random.Generator) -> None:
    """Kills a run some times at random moments, and resumes it in between and to its end."""
    tally.count("runs")
    most = target.seconds * random.choice(SCALES)
    for _ in range(random.integers(1, MOST_KILLS + 1)):
        child = Child(partial(target.work.go, folder))
        code = child.wait(random.uniform(0, most))
        if code == 0:
            break
        if code is not None:
            tally.fail(target.work.name, f"resumed, ended with {code}: {child.said[-400:]}")
            return
        known = _children(child.pid)
        child.kill()
        tally.add(target.work.name, _orphans(known), child.seconds)
        tally.count(target.work.name)
    finish(tally, target, folder, "killed")


def kill_workers(tally: Tally, target: Target, folder: Path, random: np.random.Generator) -> None:
    """Kills workers of a run at random moments; it goes on by itself."""
    tally.count("runs")
    child, code = Child(partial(target.work.go, folder)), None
    while code is None and time.perf_counter() < child.started + PATIENCE:
        code = child.wait(random.uniform(0, target.seconds / 3))
        workers = [] if code is not None else _children(child.pid)
        if workers:
            with_luck(partial(os.kill, int(random.choice(workers)), signal.SIGKILL))
            tally.add(target.work.name)
    if code is None:
        child.kill()
    elif code:
        said = child.said[-400:]
        if "workers died of it" in said:  # as it says it will, when unlucky: it resumes
            tally.count("gave up")
        else:
            tally.fail(target.work.name, f"without some workers, ended with {code}: {said}")
    finish(tally, target, folder, "its workers killed")


def double(tally: Tally, target: Target, folder: Path, random: np.random.Generator) -> None:
    """Starts the same work twice in one folder: one does it, the other is refused."""
    first = Child(partial(target.work.go, folder))
    begun = first.wait(random.uniform(0, target.seconds / 2))
    second = Child(partial(target.work.go, folder))
    codes = [begun if begun is not None else first.wait(PATIENCE), second.wait(PATIENCE)]
    failure = None
    if sorted(map(bool, codes)) == [False, True]:
        loser = second if codes[1] else first
        said = loser.said.strip().splitlines()[-1:] or [""]
        wrong = refused(said[0]) if said[0].startswith("error: ") else f"said {loser.said[-300:]}"
        failure = wrong and f"the refusal {wrong}"
    elif codes == [0, 0] and second.started < first.started + first.seconds:
        # The second came to the lock when the first had finished; `finish` compares the results.
        tally.count("one after the other")
    elif codes != [0, 0]:
        failure = f"of two processes at once, exit codes {codes}: {second.said[-200:]}"
    tally.add(target.work.name, failure, max(first.seconds, second.seconds))
    finish(tally, target, folder, "done by two processes")


def fill_disk(tally: Tally, target: Target, folder: Path, random: np.random.Generator) -> None:
    """Lets files be too large, or the disk full, from a random moment on; then there is space."""
    work, full = target.work, random.random() < 0.5
    size, moment = int(target.largest * random.random() ** 3), int(random.integers(60))

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
    finish(tally, target, folder, "without space on the disk")


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
