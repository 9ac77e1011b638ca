"""Where collections are made: in this process, or by any `concurrent.futures.Executor`."""

import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

import torch

from neural_complexity.files import write_bytes
from neural_complexity.meta.bank import Arrays, Collection, from_arrays, to_arrays
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.tasks.families import check_sizes

__all__ = ["Collection", "CollectionQueue", "Collector", "Job", "process_pool"]

ATTEMPTS = 3  # at a collection of which workers die
COLLECTOR, FILE = "collector.pickle", "version-{:09d}.safetensors"  # for workers


@dataclass(frozen=True)
class Job:
    """One collection to be made."""

    index: int  # which collection of the run
    version: int  # of NC, whose weights regularize the learners
    weight: float  # of NC in their objective


Collector = Callable[[NeuralComplexity, Job], Collection]
"""Returns rows for the bank as a pure function of the job and of NC, which has the weights of the
job's version and may be moved to another device. Rows of learners that diverged are returned, too.
"""


class CollectionQueue(AbstractContextManager["CollectionQueue"]):
    """Collections that were asked for; they depend on the collector alone, not on the executor.

    Inputs that are `Points` come back as the bank keeps them: as indices.

    Args:
        collector: Makes them. With an executor it is pickled, so it must be of classes and
            functions that can be imported.
        executor: Runs the collector; the caller's to shut down. If `None`, a collection is made in
            this process when it is taken.
        folder: Where weights are kept for the executor; what earlier queues left there is removed,
            so only one at a time can have it. A temporary folder if `None`.
    """

    def __init__(
        self, collector: Collector, executor: Executor | None = None, *, folder: Path | None = None
    ) -> None:
        self.collector, self.executor = collector, executor
        self.networks: dict[int, NeuralComplexity] = {}  # by version
        self.asked: dict[int, tuple[Job, Future[Arrays]]] = {}  # by index
        self.folder: Path | None = None
        if executor is not None:
            content = pickle.dumps(collector)
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                for earlier in folder.glob("queue-*"):
                    shutil.rmtree(earlier)
            self.folder = Path(tempfile.mkdtemp(prefix="queue-", dir=folder))
            write_bytes(self.folder / COLLECTOR, content)

    def publish(self, version: int, nc: NeuralComplexity) -> None:
        """Makes the weights that NC has now available to jobs, as a version."""
        self.networks[version] = deepcopy(nc)
        if self.folder is not None:
            nc.save(self.folder / FILE.format(version))

    def submit(self, job: Job) -> None:
        """Asks for a collection, perhaps again; its version must have been published."""
        if job.version not in self.networks:
            told = f"version {job.version} must be published before job {job.index} is submitted"
            raise ValueError(f"{told}, got no such version")
        future = Future[Arrays]()  # which `take` fulfils, if there is no executor
        if self.executor is not None and self.folder is not None:
            path, dtype = self.folder / FILE.format(job.version), torch.get_default_dtype()
            future = self.executor.submit(_collect, path, job, dtype)
        self.asked[job.index] = job, future

    def take(self, index: int) -> Collection:
        """Waits for a collection; may be repeated until it is forgotten.

        Raises:
            RuntimeError: If the collector failed in a worker, whose traceback is the cause, or
                ended its process again and again.
        """
        if index not in self.asked:
            raise ValueError(f"job {index} must be submitted before it is taken, got no such job")
        job, future = self.asked[index]
        if self.executor is None and not future.done():
            future.set_result(to_arrays(*self.collector(self.networks[job.version], job)))
        for attempt in range(ATTEMPTS):
            if attempt:
                self.submit(job)  # alone: if a worker dies again, it is this job that ended it
            try:
                result = self.asked[index][1].result()
            except BrokenExecutor as error:
                died = error
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise RuntimeError(f"collection {index} failed: {reason}") from error
            else:
                for other, (lost, future) in sorted(self.asked.items()):
                    broken = future.done() and isinstance(future.exception(), BrokenExecutor)
                    if other > index and broken:  # lost with the worker that died
                        self.submit(lost)
                return from_arrays(result)
        told = f"collection {index} failed: {ATTEMPTS} workers in turn died of it"
        raise RuntimeError(f"{told}; was there too little memory? The job was {job}") from died

    def forget(self, *, index: int = sys.maxsize, version: int = sys.maxsize) -> None:
        """Drops the collections below an index and the versions below a version."""
        for old in [i for i in self.asked if i < index]:
            self.asked.pop(old)[1].cancel()
        for old in [v for v in self.networks if v < version]:
            del self.networks[old]
            if self.folder is not None:
                (self.folder / FILE.format(old)).unlink(missing_ok=True)

    def close(self, *_: object) -> None:
        """Drops all that is kept, and what has not begun."""
        self.forget()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            _load.cache_clear()

    __exit__ = close


def _collect(network: Path, job: Job, dtype: torch.dtype) -> Arrays:
    """Makes a collection in a worker, with tasks and learners of the caller's default type."""
    torch.set_default_dtype(dtype)
    return to_arrays(*_load(network.with_name(COLLECTOR))(_load(network), job))


@lru_cache(maxsize=2)  # the collector and the last network
def _load(path: Path) -> Any:
    """Reads what a queue wrote."""
    collects = path.name == COLLECTOR
    return pickle.loads(path.read_bytes()) if collects else NeuralComplexity.load(path)


def process_pool(workers: int = 1, *, threads: int = 1) -> Executor:
    """Returns an executor of worker processes on this machine, to be used in a `with` statement.

    Shutting it down ends the workers, whatever they are doing; they also end with this process,
    however it ends. When one dies, all are replaced. A script that calls this needs
    `if __name__ == "__main__":`.

    Args:
        workers: How many processes.
        threads: How many threads PyTorch has in each.
    """
    check_sizes(workers=workers, threads=threads)
    # A fork would inherit this process's threads and, perhaps, its GPU in an unusable state.
    context = get_context("spawn")
    # Only this process holds the other end: the line breaks when it closes that, or dies.
    line, alive = context.Pipe(duplex=False)
    make = partial(ProcessPoolExecutor, workers, context, _begin, (line, threads))
    return _RestartingPool(make, alive)


class _RestartingPool(Executor):
    """A standard pool, and a new one when that is broken."""

    def __init__(self, make: Callable[[], Executor], alive: connection.Connection) -> None:
        self._make, self._alive, self._pool = make, alive, make()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._alive.closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        try:
            return self._pool.submit(fn, *args, **kwargs)
        except BrokenExecutor:
            self._pool.shutdown()
            self._pool = self._make()
            return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        self._alive.close()
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


def _begin(line: connection.Connection, threads: int) -> None:
    """Prepares a worker, which ends when the line breaks, also in the middle of a job."""

    def watch() -> None:
        connection.wait([line])
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when its parent wants it to
    threading.Thread(target=watch, daemon=True).start()
    torch.set_num_threads(threads)
