"""Where collections are made: in this process, or in others while NC learns."""

import atexit
import queue
import shutil
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from os import _exit
from pathlib import Path
from typing import Protocol, Self

import torch
from torch import Tensor

from neural_complexity.files import read_tensors, write_tensors
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.snapshot import Snapshot

__all__ = ["Collection", "Collector", "Engine", "Here", "Job", "Processes"]

Collection = tuple[Snapshot, Tensor]  # rows for the bank and their Y_te, (B, N, C)

DEATHS = 3  # of workers at one job, before it is given up
PATIENCE = 0.5  # seconds between two looks at a worker that has nothing to do


@dataclass(frozen=True, order=True)
class Job:
    """One collection to be made; the earlier one comes first."""

    index: int  # which collection of the run
    version: int  # of NC, whose weights regularize the learners
    weight: float  # of NC in their objective


class Collector(Protocol):
    """Makes collections, as a pure function of NC's weights and the job: its seed is its own."""

    def __call__(self, nc: NeuralComplexity, job: Job) -> Collection:
        """Makes one collection.

        Args:
            nc: Has the weights of the job's version. It may be moved to the device that the
                collector chooses, and is otherwise left as it is.
            job: What to make.

        Returns:
            Rows for the bank and their test targets, on any device; learners that diverged are left
            to the bank to refuse.
        """
        ...


class Engine(Protocol):
    """Has collections made. What comes back depends on the collector alone, not on the engine."""

    def publish(self, version: int, nc: NeuralComplexity) -> None:
        """Makes the weights that NC has now available to jobs, as a version."""
        ...

    def submit(self, job: Job) -> None:
        """Asks for a collection; its version must have been published."""
        ...

    def take(self, index: int) -> Collection:
        """Waits for a collection that was asked for; may be repeated until it is forgotten."""
        ...

    def forget(self, *, index: int, version: int) -> None:
        """Drops the collections below an index and the versions below a version."""
        ...

    def close(self) -> None:
        """Ends all that was started and drops all that is kept."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Here(Engine):
    """Makes collections in this process, when they are taken.

    Args:
        collector: Makes them.
    """

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self._versions: dict[int, NeuralComplexity] = {}
        self._jobs: dict[int, Job] = {}
        self._made: dict[int, Collection] = {}

    def publish(self, version: int, nc: NeuralComplexity) -> None:
        """Keeps a copy of NC."""
        self._versions[version] = deepcopy(nc)

    def submit(self, job: Job) -> None:
        """Notes the job down."""
        _check_published(job, job.version in self._versions)
        self._jobs[job.index] = job

    def take(self, index: int) -> Collection:
        """Makes the collection, the first time it is taken."""
        _check_submitted(index, index in self._jobs)
        if index not in self._made:
            job = self._jobs[index]
            self._made[index] = self.collector(self._versions[job.version], job)
        return self._made[index]

    def forget(self, *, index: int, version: int) -> None:
        """Drops the collections below an index and the versions below a version."""
        self._jobs = {i: job for i, job in self._jobs.items() if i >= index}
        self._made = {i: made for i, made in self._made.items() if i >= index}
        self._versions = {v: nc for v, nc in self._versions.items() if v >= version}

    def close(self) -> None:
        """Drops all that is kept."""
        for kept in (self._versions, self._jobs, self._made):
            kept.clear()


class Processes(Engine):
    """Makes collections in worker processes of this machine.

    Weights and collections travel as safetensors files that are whole or absent. A worker that dies
    is replaced, and its job given out again; workers end with this process, however it ends.

    Args:
        make: Makes the collector, once in each worker. It is sent there by pickle, so it is a
            function or class of a module that can be imported, or a `partial` of one. A script
            that calls this needs `if __name__ == "__main__":`.
        workers: How many processes.
        threads: How many threads PyTorch has in each.
        folder: Where the files are while it runs; what earlier engines left there is removed, so
            only one at a time can have it. Nothing in it is needed afterwards. A temporary folder
            if `None`.

    Raises:
        ValueError: If there is less than one worker or thread.
        AttributeError: If `make` cannot be pickled.
        pickle.PicklingError: Likewise.
    """

    def __init__(
        self,
        make: Callable[[], Collector],
        *,
        workers: int = 1,
        threads: int = 1,
        folder: Path | None = None,
    ) -> None:
        for name, number in {"workers": workers, "threads": threads}.items():
            if number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")
        self._make, self._threads = make, threads
        self.folder = _own_folder(folder)
        self._jobs: queue.PriorityQueue[Job] = queue.PriorityQueue()
        self._asked: set[int] = set()
        self._deaths: dict[int, int] = {}  # of workers, by the index of their job
        self._results: dict[int, _Failure | None] = {}  # of finished jobs, by index
        self._news = threading.Condition()  # guards the above; told when a job is finished
        self._closing = False
        self._broken: BaseException | None = None  # why there are no workers any more
        self._workers: dict[int, _Worker] = {}  # by place
        self._places: list[threading.Thread] = []
        atexit.register(self.close)
        try:
            for place in range(workers):
                # Started here, where a `make` that cannot be sent is found out at once.
                arguments = (place, self._hire(place))
                thread = threading.Thread(target=self._staff, args=arguments, daemon=True)
                thread.start()
                self._places.append(thread)
        except BaseException:
            self.close()
            raise

    def publish(self, version: int, nc: NeuralComplexity) -> None:
        """Writes NC to a file."""
        nc.save(_version_path(self.folder, version))

    def submit(self, job: Job) -> None:
        """Puts the job where free workers look; they do those of smaller index first."""
        _check_published(job, _version_path(self.folder, job.version).exists())
        with self._news:
            self._asked.add(job.index)
        self._jobs.put(job)

    def take(self, index: int) -> Collection:
        """Waits for a collection.

        Raises:
            ValueError: If it was not asked for.
            RuntimeError: If the collector raised an exception, which a note then shows, or ended
                its process again and again.
        """
        _check_submitted(index, index in self._asked)
        with self._news:
            self._news.wait_for(lambda: self._ended or index in self._results)
            if index not in self._results:
                raise RuntimeError(
                    f"collection {index} must be taken while there are workers, got none, "
                    f"because {self._broken or 'the engine was closed'}"
                ) from self._broken
            failure = self._results[index]
        if failure is not None:
            error = RuntimeError(f"collection {index} failed: {failure.reason}")
            error.add_note(failure.details)
            raise error
        fields, _ = read_tensors(_result_path(self.folder, index))
        Y_te = fields.pop("Y_te")
        return Snapshot(**fields), Y_te

    def forget(self, *, index: int, version: int) -> None:
        """Removes the files of collections below an index and of versions below a version."""
        with self._news:
            for old in [i for i in self._results if i < index]:
                del self._results[old]
                self._asked.discard(old)
                self._deaths.pop(old, None)
                _result_path(self.folder, old).unlink(missing_ok=True)
        for path in self.folder.glob("version-*"):
            if path < _version_path(self.folder, version):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Ends the workers, whatever they are doing, and removes the files."""
        with self._news:
            self._closing = True
            for worker in self._workers.values():
                worker.process.kill()  # there is nothing that it could lose
            self._news.notify_all()
        for thread in self._places:
            thread.join()
        for worker in self._workers.values():
            worker.process.join()
        atexit.unregister(self.close)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def pids(self) -> list[int]:
        """The process numbers of the workers that live."""
        with self._news:
            processes = [worker.process for worker in self._workers.values()]
        return [p.pid for p in processes if p.pid is not None and p.is_alive()]

    @property
    def _ended(self) -> bool:
        return self._closing or self._broken is not None

    def _staff(self, place: int, worker: "_Worker | None") -> None:
        """Keeps one place filled and busy; runs in a thread.

        A thread, because a worker that dies should be replaced also while NC learns.
        """
        try:
            self._keep_busy(place, worker)
        except BaseException as error:  # no process can be started, say: none shall wait forever
            with self._news:
                self._broken = error
                self._news.notify_all()

    def _keep_busy(self, place: int, worker: "_Worker | None") -> None:
        while worker is not None:
            job = None
            with suppress(queue.Empty):
                job = self._jobs.get(timeout=PATIENCE)
            if not worker.process.is_alive():  # this job has nothing to do with it
                if job is not None:
                    self._jobs.put(job)
                worker = self._replace(place, worker)
                continue
            if job is None:
                continue
            try:
                worker.line.send(job)
                failure = worker.line.recv()
            except (EOFError, OSError):
                worker.process.join()
                self._give_back(job, worker.process)
                worker = self._replace(place, worker)
            else:
                self._finish(job.index, failure)

    def _hire(self, place: int) -> "_Worker | None":
        """Starts a worker, unless all is about to end."""
        if self._closing:
            return None
        worker = _Worker(self._make, self.folder, self._threads)
        with self._news:
            self._workers[place] = worker
            if self._closing:  # meanwhile
                worker.process.kill()
        return worker

    def _replace(self, place: int, worker: "_Worker") -> "_Worker | None":
        worker.process.join()
        worker.line.close()
        return self._hire(place)

    def _give_back(self, job: Job, process: SpawnProcess) -> None:
        """Gives the job of a dead worker out again, unless it is done or hopeless."""
        path = _result_path(self.folder, job.index)
        if path.exists():  # it died between the work and the word
            self._finish(job.index, None)
            return
        for unfinished in self.folder.glob(f".{path.name}.*"):
            unfinished.unlink(missing_ok=True)
        with self._news:
            deaths = self._deaths[job.index] = self._deaths.get(job.index, 0) + 1
        if deaths < DEATHS:
            self._jobs.put(job)
        else:
            ends = _describe(process.exitcode)
            reason = f"{deaths} workers in turn died of it, the last one {ends}"
            self._finish(job.index, _Failure(reason, f"The job was {job}."))

    def _finish(self, index: int, failure: "_Failure | None") -> None:
        with self._news:
            self._results[index] = failure
            self._news.notify_all()


@dataclass(frozen=True)
class _Failure:
    """Why a collection could not be made."""

    reason: str
    details: str


class _Worker:
    """A process that does jobs, and the line to it."""

    def __init__(self, make: Callable[[], Collector], folder: Path, threads: int) -> None:
        # A fork would inherit this process's threads and, perhaps, its GPU in an unusable state.
        context = get_context("spawn")
        self.line, other = context.Pipe()
        arguments = (make, other, folder, threads, torch.get_default_dtype())
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        other.close()  # so that the line breaks when the worker dies


def _work(
    make: Callable[[], Collector],
    line: Connection,
    folder: Path,
    threads: int,
    dtype: torch.dtype,
) -> None:
    """Does jobs until the line breaks; runs in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when its parent wants it to
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)  # in which NC and tasks are made
    collector: Collector | None = None
    version, nc = -1, None
    with suppress(EOFError, OSError):
        while True:
            job: Job = line.recv()
            failure = None
            try:
                if collector is None:
                    collector = make()
                if nc is None or job.version != version:
                    version, nc = job.version, None
                    nc = NeuralComplexity.load(_version_path(folder, version))
                snapshot, Y_te = collector(nc, job)
                fields = {**snapshot.named(), "Y_te": Y_te}
                write_tensors(_result_path(folder, job.index), fields, {})
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                failure = _Failure(reason, traceback.format_exc())
            line.send(failure)


def _end_with_parent() -> None:
    """Ends this process when its parent dies, also in the middle of a job."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    _exit(1)


def _own_folder(folder: Path | None) -> Path:
    """Makes a folder for one engine, inside the given one, which is cleared of earlier ones."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for earlier in folder.glob("engine-*"):
            shutil.rmtree(earlier)
    return Path(tempfile.mkdtemp(prefix="engine-", dir=folder))


def _version_path(folder: Path, version: int) -> Path:
    return folder / f"version-{version:09d}.safetensors"


def _result_path(folder: Path, index: int) -> Path:
    return folder / f"collection-{index:09d}.safetensors"


def _check_published(job: Job, published: bool) -> None:
    if not published:
        raise ValueError(
            f"version {job.version} must be published before job {job.index} is submitted, "
            "got no such version"
        )


def _check_submitted(index: int, submitted: bool) -> None:
    if not submitted:
        raise ValueError(f"job {index} must be submitted before it is taken, got no such job")


def _describe(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"by {signal.Signals(-exitcode).name}"
    return f"with exit code {exitcode}"
