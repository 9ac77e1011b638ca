"""How a program uses a machine: its threads, beside those of others, and its memory."""

import ctypes
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["free_cores", "hold_memory", "passive_threads"]

POLICY, SPINS = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"
# Long enough that threads which work in turns do not fall asleep in between, which costs up to half
# of the time on a quiet machine, and short enough that a busy one takes twice the time at most.
USUAL = {POLICY: "PASSIVE", SPINS: "2000"}
COUNTS = "OMP_NUM_THREADS", "MKL_NUM_THREADS"  # by which users say how many threads they want
STAT = Path("/proc/stat")


@contextmanager
def passive_threads() -> Iterator[None]:
    """Lets OpenMP's threads sleep where they wait, if it is loaded or a process started meanwhile.

    They spin by default. Beside one other busy process on two cores, each then waits, spinning, for
    one that has no core: an iteration takes tens of times as long. A user's own setting wins.
    """
    given = any(name in os.environ for name in USUAL)
    os.environ.update({} if given else USUAL)
    try:
        yield
    finally:
        for name in () if given else USUAL:
            del os.environ[name]


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


def hold_memory() -> bool:
    """Makes this process keep the memory it frees; returns whether it can (glibc on Linux).

    Training on a CPU is some 10 % faster: a step claims and frees the same hundred megabytes, which
    else come back page by page. Where two processes train, each of them is 30 % faster. The whole
    process changes, so programs and our own workers call it, never the library.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD and M_ARENA_MAX of glibc's malloc.h. Heaps of
    # threads hold no more than 64 MB, whatever is asked for: all have that of the process.
    options = {-3: 1 << 30, -1: (1 << 31) - 1, -2: 1 << 28, -8: 1}
    return mallopt is not None and all(mallopt(*option) == 1 for option in options.items())


def _idle(cores: set[str]) -> float:
    """Returns for how many seconds cores have been idle since the system started, in all."""
    lines = (line.split() for line in STAT.read_text().splitlines())
    # user, nice, system, idle and waiting for a disk
    ticks = sum(int(line[4]) + int(line[5]) for line in lines if line[0] in cores)
    return ticks / os.sysconf("SC_CLK_TCK")
