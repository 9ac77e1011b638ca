"""Where collections are made: in this process, or by any `concurrent.futures.Executor`."""

import concurrent.futures as cf
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from multiprocessing import connection, get_context
from typing import Any
from uuid import uuid4

import torch

from neural_complexity.cores import hold_memory, passive_threads
from neural_complexity.meta.bank import Arrays
from neural_complexity.meta.collect import Collector, Job, received, sent
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.tasks.families import check_sizes

__all__ = ["CollectionQueue", "ProcessPool", "RayExecutor", "connect"]

ATTEMPTS = 3  # at a collection of which workers die
_kept: dict[str, Any] = {}  # in a worker: its last collector and network, by name


class CollectionQueue:
    """Collections that were asked for; they depend on the collector alone, not on the executor.

    Args:
        collector: Makes them. An executor gets it pickled: workers must be able to import it.
        executor: Runs it, and is the caller's to shut down; if `None`, `take` runs it.
    """

    def __init__(self, collector: Collector, executor: cf.Executor | None = None) -> None:
        self.collector, self.executor = collector, executor
        self.networks: dict[int, NeuralComplexity] = {}  # by version
        self.asked: dict[int, tuple[Job, cf.Future[Arrays | None]]] = {}  # by index
        self._sent = set[str]()  # unique names of what is pickled for workers, by version
        self._pickled = {} if executor is None else {-1: (uuid4().hex, pickle.dumps(collector))}

    def publish(self, version: int, nc: NeuralComplexity) -> None:
        """Makes the weights that NC has now available to jobs, as a version."""
        self.networks[version] = deepcopy(nc)
        if self.executor is not None:
            self._pickled[version] = uuid4().hex, pickle.dumps(nc)

    def submit(self, job: Job) -> None:
        """Asks for a collection, perhaps again; its version must have been published."""
        if job.version not in self.networks:
            raise ValueError(f"job {job.index} must be of a published version, got {job.version}")
        future = cf.Future[Arrays | None]()  # which `take` fulfils, if there is no executor
        if self.executor is not None:
            needed = dict(self._pickled[v] for v in (-1, job.version))
            # Weights travel with the first job of their version, and again where they are missed.
            new = needed.keys() - (set() if job.index in self.asked else self._sent)
            self._sent |= new
            how = list(needed), {n: needed[n] for n in new}, torch.get_default_dtype()
            future = self.executor.submit(_collect, job, *how)
        self.asked[job.index] = job, future

    def take(self, index: int) -> Any:
        """Waits for a collection, with indices for `Points`; may be repeated until it is forgotten.

        A `RuntimeError` says that the collector failed in a worker, whose traceback is the cause,
        that it ended its process again and again, or that the executor gave up.
        """
        if index not in self.asked:
            raise ValueError(f"job {index} must be submitted before it is taken, got no such job")
        job, future = self.asked[index]
        if self.executor is None and not future.done():
            future.set_result(sent(self.collector(self.networks[job.version], job)))
        for attempt in range(ATTEMPTS):
            if attempt:
                self.submit(job)  # alone: if a worker dies again, it is this job that ended it
            try:
                return received(self._wait(index))
            except cf.BrokenExecutor as error:
                died = error
            except Exception as error:
                reason = str(error) or "the executor gave it up; is its scheduler gone?"
                told = f"collection {index} failed: {type(error).__name__}: {reason}"
                raise RuntimeError(told) from error
        raise RuntimeError(f"collection {index} failed: {ATTEMPTS} workers died of it") from died

    def _wait(self, index: int) -> Arrays:
        while True:
            self._resubmit(index, type(None))  # their workers lacked something
            if (future := self.asked[index][1]).done() and (found := future.result()) is not None:
                self._resubmit(index, cf.BrokenExecutor)  # lost with a worker that died
                return found
            cf.wait([f for _, f in self.asked.values() if not f.done()], None, cf.FIRST_COMPLETED)

    def _resubmit(self, index: int, kind: type) -> None:
        """Submits jobs from an index on again whose result or exception is of a kind."""
        for job, future in list(self.asked.values()):
            ended = job.index >= index and future.done() and not future.cancelled()
            if ended and isinstance(future.exception() or future.result(), kind):
                self.submit(job)

    def forget(self, *, index: float = float("inf"), version: float = float("inf")) -> None:
        """Drops the collections below an index and the versions below a version."""
        for old in [i for i in self.asked if i < index]:
            self.asked.pop(old)[1].cancel()
        for old in [v for v in self.networks if v < version]:
            del self.networks[old]
            self._pickled.pop(old, None)


def _collect(job: Job, names: list[str], new: dict[str, bytes], dtype: Any) -> Arrays | None:
    """Makes a collection in a worker, or none if that was not sent all that is needed."""
    known = _kept | {name: pickle.loads(pickled) for name, pickled in new.items()}
    needed = {name: known[name] for name in names if name in known}
    _kept.clear()  # another thread of this worker may then lack something, and be sent it again
    _kept.update(needed)
    if len(needed) < len(names):
        return None
    collector, nc = needed.values()
    torch.set_default_dtype(dtype)  # the caller's
    return sent(collector(nc, job))


class ProcessPool(cf.ProcessPoolExecutor):
    """Worker processes on this machine, for a `with` statement; when one dies, all are replaced.

    They also end with this process, however it ends, and whatever they are doing. A script that
    uses this needs `if __name__ == "__main__":`. PyTorch has `threads` threads in each worker.
    """

    def __init__(self, workers: int = 1, *, threads: int = 1) -> None:
        check_sizes(workers=workers, threads=threads)
        self._sizes = workers, threads
        self._start()

    def _start(self) -> None:
        # A fork would inherit this process's threads and, perhaps, its GPU in an unusable state.
        context, (workers, threads) = get_context("spawn"), self._sizes
        # Only this process holds the other end: the line breaks when it closes that, or dies.
        line, self._alive = context.Pipe(duplex=False)
        super().__init__(workers, context, _begin, (line, threads))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> cf.Future[Any]:
        """Submits a call, after a restart if need be."""
        if self._alive.closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        with passive_threads():  # in processes that this starts
            with suppress(cf.BrokenExecutor, OSError):  # which breaks while it starts a worker
                future = super().submit(fn, *args, **kwargs)
                if not self._broken:  # only now: it has then forgotten the call
                    return future
            self._alive.close()  # to a worker that it does not know of, and would wait for
            super().shutdown()
            self._start()
            return super().submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """Ends the workers, whatever they are doing."""
        self._alive.close()
        super().shutdown(wait, cancel_futures=cancel_futures)


def _begin(line: connection.Connection, threads: int) -> None:
    """Prepares a worker, which ends when the line breaks, also in the middle of a job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when its parent wants it to
    threading.Thread(target=lambda: connection.wait([line]) and os._exit(1), daemon=True).start()
    torch.set_num_threads(threads)
    hold_memory()


class RayExecutor(cf.Executor):
    """Tasks of Ray, once that is initialized; Ray retries those whose workers die."""

    def __init__(self) -> None:
        import ray

        self._call = ray.remote(max_retries=ATTEMPTS - 1)(lambda fn, *a, **k: fn(*a, **k))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> cf.Future[Any]:
        """Submits a call."""
        return self._call.remote(fn, *args, **kwargs).future()  # type: ignore[no-any-return]


@contextmanager
def connect(address: str) -> Iterator[cf.Executor]:
    """Yields the executor of a cluster: `tcp://host:8786` is a scheduler of Dask (extra: dask).

    `ray://host:10001` is of Ray (extra: ray), and `ray` the one that it finds or starts itself.
    """
    if address.startswith("ray"):
        import ray

        with ray.init(None if address == "ray" else address):
            yield RayExecutor()
    else:
        from distributed import Client

        with Client(address) as client:
            yield client.get_executor()
