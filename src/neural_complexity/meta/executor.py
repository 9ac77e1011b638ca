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
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import raw
from neural_complexity.snapshot import Snapshot
from neural_complexity.tasks.families import check_sizes

__all__ = ["Collection", "CollectionQueue", "Collector", "Job", "process_pool"]

Collection = tuple[Snapshot, Tensor]  # rows for the bank and their Y_te, (B, N, C)
Arrays = dict[str, np.ndarray]  # a collection on its way here
R = TypeVar("R")
COLLECTOR, FILE = "collector.pickle", "version-{:09d}.safetensors"  # for workers


@dataclass(frozen=True)
class Job:
    """One collection to be made."""

    index: int  # which collection of the run
    version: int  # of NC, whose weights regularize the learners
    weight: float  # of NC in their objective


Collector = Callable[[NeuralComplexity, Job], Collection]
"""Returns rows for the bank and their test targets, as a pure function of NC's weights and the job.

NC has the weights of the job's version, and may be moved to another device. Rows of learners that
diverged are returned too."""


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
        retries: How often a collection is begun again after a worker died.
    """

    def __init__(
        self,
        collector: Collector,
        executor: Executor | None = None,
        *,
        folder: Path | None = None,
        retries: int = 2,
    ) -> None:
        if retries < 0:
            raise ValueError(f"retries must not be negative, got {retries}")
        self.collector, self.executor, self.retries = collector, executor, retries
        self.networks: dict[int, NeuralComplexity] = {}  # by version
        self._jobs: dict[int, Job] = {}
        self._futures: dict[int, Future[Arrays]] = {}
        self.folder: Path | None = None
        if executor is not None:
            content = pickle.dumps(collector)
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                for earlier in folder.glob("queue-*"):
                    shutil.rmtree(earlier)
            self.folder = Path(tempfile.mkdtemp(prefix="queue-", dir=folder))
            (self.folder / COLLECTOR).write_bytes(content)

    def publish(self, version: int, nc: NeuralComplexity) -> None:
        """Makes the weights that NC has now available to jobs, as a version."""
        self.networks[version] = deepcopy(nc)
        if self.folder is not None:
            nc.save(self.folder / FILE.format(version))

    def submit(self, job: Job) -> None:
        """Asks for a collection; its version must have been published."""
        version, index = job.version, job.index
        if version not in self.networks:
            told = f"version {version} must be published before job {index} is submitted"
            raise ValueError(f"{told}, got no such version")
        self._start(job)
        self._jobs[index] = job

    def _start(self, job: Job) -> None:
        future = Future[Arrays]()  # which `take` fulfils, if there is no executor
        if self.executor is not None and self.folder is not None:
            path, dtype = self.folder / FILE.format(job.version), torch.get_default_dtype()
            future = self.executor.submit(_collect, path, job, dtype)
        self._futures[job.index] = future

    def take(self, index: int) -> Collection:
        """Waits for a collection; may be repeated until it is forgotten.

        Raises:
            RuntimeError: If the collector failed in a worker, whose traceback is the cause, or
                ended its process again and again.
        """
        if index not in self._jobs:
            raise ValueError(f"job {index} must be submitted before it is taken, got no such job")
        job, future = self._jobs[index], self._futures[index]
        if self.executor is None and not future.done():
            future.set_result(_arrays(*self.collector(self.networks[job.version], job)))
        tensors = {name: torch.from_numpy(array) for name, array in self._wait(job).items()}
        Y_te = tensors.pop("Y_te")
        return Snapshot(**tensors), Y_te

    def _wait(self, job: Job) -> Arrays:
        """Waits for a worker's result; begins again what was lost when a worker died."""
        for attempt in range(self.retries + 1):
            if attempt:
                self._start(job)  # alone: if a worker dies again, it is this job that ended it
            try:
                result = self._futures[job.index].result()
            except BrokenExecutor as error:
                died = error
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise RuntimeError(f"collection {job.index} failed: {reason}") from error
            else:
                for index in sorted(i for i in self._jobs if i > job.index):
                    future = self._futures[index]
                    if future.done() and isinstance(future.exception(), BrokenExecutor):
                        self._start(self._jobs[index])
                return result
        raise RuntimeError(
            f"collection {job.index} failed: {self.retries + 1} workers in turn died of it; was "
            f"there too little memory? The job was {job}"
        ) from died

    def forget(self, *, index: int, version: int) -> None:
        """Drops the collections below an index and the versions below a version."""
        for old in [i for i in self._jobs if i < index]:
            del self._jobs[old]
            self._futures.pop(old).cancel()
        for old in [v for v in self.networks if v < version]:
            del self.networks[old]
            if self.folder is not None:
                (self.folder / FILE.format(old)).unlink(missing_ok=True)

    def close(self) -> None:
        """Drops all that is kept, and what has not begun."""
        self.forget(index=sys.maxsize, version=sys.maxsize)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            _load.cache_clear()

    def __exit__(self, *_: object) -> None:
        self.close()


def _collect(network: Path, job: Job, dtype: torch.dtype) -> Arrays:
    """Makes a collection in a worker, with tasks and learners of the caller's default type."""
    torch.set_default_dtype(dtype)
    return _arrays(*_load(network.with_name(COLLECTOR))(_load(network), job))


def _arrays(snapshot: Snapshot, Y_te: Tensor) -> Arrays:
    # As arrays: tensors would travel through shared memory, which dies with the worker.
    tensors = {**vars(snapshot), "Y_te": Y_te}
    return {name: raw(tensor).detach().cpu().numpy() for name, tensor in tensors.items()}


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

    def __init__(self, make: Callable[[], Executor], alive: Connection) -> None:
        self._make, self._alive, self._pool = make, alive, make()

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
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


def _begin(line: Connection, threads: int) -> None:
    """Prepares a worker, which ends when the line breaks, also in the middle of a job."""

    def watch() -> None:
        connection.wait([line])
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when its parent wants it to
    threading.Thread(target=watch, daemon=True).start()
    torch.set_num_threads(threads)
