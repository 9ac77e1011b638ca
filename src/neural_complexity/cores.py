"""Threads on a machine that others use too: how they wait, and how many there are."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["free_cores", "passive_threads"]

POLICY = "OMP_WAIT_POLICY"
COUNTS = "OMP_NUM_THREADS", "MKL_NUM_THREADS"  # by which users say how many threads they want
STAT = Path("/proc/stat")


@contextmanager
def passive_threads() -> Iterator[None]:
    """Lets OpenMP's threads sleep where they wait, if it is loaded or a process started meanwhile.

    They spin by default. Beside one other busy process on two cores, each then waits, spinning, for
    one that has no core: an iteration takes tens of times as long. A user's own setting wins.
    """
    given = POLICY in os.environ
    os.environ.setdefault(POLICY, "PASSIVE")
    try:
        yield
    finally:
        if not given:
            del os.environ[POLICY]


def free_cores(seconds: float = 0.2) -> int | None:
    """Returns how many cores are free for threads; `None` if the user or the system decides.

    The rule: of the cores that this process may run on, as many as others leave idle, rounded, and
    at least one. Idle time is measured over a moment, because the load average remembers a minute:
    of two commands in a row the second would make way for the first, which has ended.
    """
    if any(name in os.environ for name in COUNTS) or not STAT.is_file():
        return None
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    start, before = time.monotonic(), _idle(cores)
    time.sleep(seconds)
    idle = (_idle(cores) - before) / (time.monotonic() - start)
    return max(1, min(len(cores), round(idle)))


def _idle(cores: set[str]) -> float:
    """Returns for how many seconds cores have been idle since the system started, in all."""
    lines = (line.split() for line in STAT.read_text().splitlines())
    # user, nice, system, idle and waiting for a disk
    ticks = sum(int(line[4]) + int(line[5]) for line in lines if line[0] in cores)
    return ticks / os.sysconf("SC_CLK_TCK")
