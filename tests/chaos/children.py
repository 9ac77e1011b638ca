"""Children of the campaign: forked from one process that has imported all, watched, and killed."""

import json
import os
import re
import resource
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import neural_complexity

__all__ = ["LIMIT_BYTES", "LIMIT_SECONDS", "Attempt", "Child", "Tally", "fuzz", "refused"]
__all__ += ["wrong_refusal"]

LIMIT_SECONDS, LIMIT_BYTES = 10.0, 2**30  # of a fuzzed input
PATIENCE = 60.0  # seconds on the clock on the wall, where others may work, too
KINDS = 20  # of failures that are kept, each with its first example
MARK = "\x1e"  # begins a line about an attempt
PACKAGE = Path(neural_complexity.__file__).parent
# What is said where the limit of memory was in the way: without one, it would have been taken.
MEMORY = re.compile(r"alloc|out of memory|not enough memory|bad_alloc", re.IGNORECASE)
SENTENCES = (ValueError, TypeError, OSError)


@dataclass
class Tally:
    """What an attack tried and what failed, as one line of the log."""

    attack: str
    seed: int
    tried: int = 0
    failed: int = 0
    failures: dict[str, list[Any]] = field(default_factory=dict)  # count and first, by kind
    seconds: float = 0.0  # the most that one took
    megabytes: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)  # what else was counted
    spent: float = 0.0  # seconds of the attack

    def add(
        self, which: object, failure: str | None = None, seconds: float = 0, megabytes: float = 0
    ) -> None:
        """Counts an attempt, and keeps the first failure of each kind."""
        self.tried += 1
        self.seconds = round(max(self.seconds, seconds), 3)
        self.megabytes = round(max(self.megabytes, megabytes), 1)
        if failure is not None:
            self.fail(which, failure)

    def fail(self, which: object, failure: str) -> None:
        """Keeps what failed, without another attempt."""
        self.failed += 1
        kind = re.sub(r"/\S*|0x\w+|[-+]?\d[\d.e+-]*", "*", failure)[:160]
        if kind in self.failures:
            self.failures[kind][0] += 1
        elif len(self.failures) < KINDS:
            self.failures[kind] = [1, f"{which}: {failure}"[:600]]

    def count(self, name: str, by: int = 1) -> None:
        """Counts something else."""
        self.counts[name] = self.counts.get(name, 0) + by


def refused(text: str, mention: str = "") -> str | None:
    """Returns what is wrong with a message that must be one sentence without a full stop."""
    if MEMORY.search(text):
        return f"would take more memory than allowed: {text}"
    if not text.strip() or "\n" in text.strip() or text.rstrip().endswith("."):
        return f"is no sentence without a full stop: {text!r}"
    if mention not in text:
        return f"does not name the file: {text}"
    return None


def wrong_refusal(error: BaseException, mention: str = "") -> str | None:
    """Returns what is wrong with an error, which must be a sentence about what was given."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)] or frames
    place = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "?"
    if "Invalid thread pool" in str(error):
        return None  # PyTorch's own threads, seldom, after the fork by which the campaign works
    if not isinstance(error, SENTENCES) or isinstance(error, UnicodeError):
        return f"{type(error).__name__} at {place}: {str(error)[:200]}"
    wrong = refused(str(error), mention)
    return wrong and f"{type(error).__name__} at {place} {wrong[:300]}"


class Child:
    """A forked process that does some work, and what it says on its standard streams.

    Its exit code is what the work returns; an error is its sentence, and the code 1.
    """

    def __init__(self, work: Callable[[], int | None]) -> None:
        reader, writer = os.pipe()
        self.started = time.perf_counter()
        self.pid = os.fork()
        if not self.pid:
            _work(work, writer)
        os.close(writer)
        os.set_blocking(reader, False)
        self._reader, self._alive, self._said = reader, os.pidfd_open(self.pid), b""
        self.seconds = 0.0

    def wait(self, seconds: float) -> int | None:
        """Returns the exit code, negative for a signal, or `None` if it still works then."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            ready, _, _ = select.select([self._reader, self._alive], [], [], left)
            if self._alive in ready:
                return self._end()
            if self._reader in ready and not self._read():
                time.sleep(min(left, 0.005))  # it closed its streams
        return None

    def kill(self) -> int:
        """Kills it, if it still works; returns the exit code."""
        os.kill(self.pid, signal.SIGKILL)
        select.select([self._alive], [], [])
        return self._end()

    @property
    def said(self) -> str:
        """What it said."""
        return self._said.decode(errors="replace")

    def _read(self) -> bytes:
        try:
            part = os.read(self._reader, 65536)
        except BlockingIOError:
            return b""
        self._said += part
        return part

    def _end(self) -> int:
        while self._read():
            pass
        _, status = os.waitpid(self.pid, 0)
        self.seconds = time.perf_counter() - self.started
        os.close(self._reader)
        os.close(self._alive)
        return os.waitstatus_to_exitcode(status)


def _work(work: Callable[[], int | None], writer: int) -> None:
    """Does the work in a child, which never returns."""
    code = 1
    try:
        for stream in (1, 2):
            os.dup2(writer, stream)
        os.close(writer)
        warnings.simplefilter("ignore")
        code = work() or 0
    except SENTENCES as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


Attempt = Callable[[int], Callable[[], str | None]]
"""Prepares one fuzzed thing by its number; what it returns does it, and says what failed."""


def fuzz(tally: Tally, attempt: Attempt, numbers: range, *, threads: int = 1) -> None:
    """Makes attempts in a child with little memory; goes on with the rest if it dies or hangs."""
    left = numbers
    while left:
        last = _fuzz(tally, attempt, left, threads)
        left = left[:0] if last is None else left[left.index(last) + 1 :]


def _fuzz(tally: Tally, attempt: Attempt, numbers: range, threads: int) -> int | None:
    """Makes attempts until one ends the child; returns the last one begun, or `None` at the end."""
    child = Child(lambda: _attempts(attempt, numbers, threads))
    begun: dict[int, float] = {}
    last, rest, why = None, "", ""
    while True:
        code = child.wait(0.5)
        *lines, rest = (rest + child.said).split("\n")
        child._said = b""
        for line in lines:
            if not line.startswith(MARK):  # what libraries say
                continue
            number, *found = json.loads(line[1:])
            if found:
                begun.pop(number, None)
                tally.add(number, *found)
            else:
                begun[number], last = time.perf_counter(), number
        if code is not None:
            break
        oldest = min(begun.values(), default=child.started if last is None else time.perf_counter())
        if time.perf_counter() - oldest > PATIENCE:
            code, why = child.kill(), "did not end"
            break
    for number in begun:
        tally.add(number, f"{why or f'ended its process with {code}'} {rest[-300:]}", PATIENCE)
    if code and not begun:
        tally.fail(last, f"the process ended with {code} between inputs {rest[-300:]}")
    return last if code else None


def _attempts(attempt: Attempt, numbers: range, threads: int) -> None:
    """Makes attempts in this process and reports each as a line."""
    resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + LIMIT_BYTES,) * 2)
    queue, lock = iter(numbers), threading.Lock()
    usual, clock = _memory("VmRSS"), time.process_time if threads == 1 else time.thread_time

    def report(*fields: object) -> None:
        with lock:
            os.write(1, f"\n{MARK}{json.dumps(fields)}\n".encode())

    def work() -> None:
        while (number := _next(queue, lock)) is not None:
            report(number)
            start = clock()
            try:
                go = attempt(number)
                if threads == 1:
                    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
                start = clock()
                failure = go()
            except BaseException:
                failure = f"in the campaign itself: {traceback.format_exc()[-500:]}"
            seconds, peak = clock() - start, _memory("VmHWM") - usual
            if failure is None and seconds > LIMIT_SECONDS:
                failure = f"took {seconds:.1f} s"
            if failure is None and peak > LIMIT_BYTES:
                failure = f"took {peak / 2**20:.0f} MB"
            report(number, failure, seconds, peak / 2**20)

    workers = [threading.Thread(target=work) for _ in range(threads - 1)]
    for worker in workers:
        worker.start()
    work()
    for worker in workers:
        worker.join()


def _next(queue: Iterator[int], lock: threading.Lock) -> int | None:
    with lock:
        return next(queue, None)


def _memory(name: str) -> int:
    """Returns a number of bytes that the kernel knows of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)
