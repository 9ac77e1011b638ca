import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from pickle import PicklingError
from typing import Any

import pytest
import torch
from torch import Tensor

import unlucky
from neural_complexity.learners.fit import Recipe
from neural_complexity.meta.bank import Collection
from neural_complexity.meta.collect import Job, TimeLimit
from neural_complexity.meta.executor import CollectionQueue, ProcessPool
from neural_complexity.meta.trainer import MetaLearner, MetaTraining, meta_train
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import indexed
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.workspace import Workspace
from unlucky import TASKS, Unlucky, family, plain, recipe

ROWS = TASKS * (recipe.steps + 1)
ITERATIONS = 6


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums of several threads differ in their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_nc() -> NeuralComplexity:
    torch.manual_seed(0)
    return NeuralComplexity.for_tasks(family.sample(64, stream(0, "units")), width=16)


def learner(
    collections: CollectionQueue | None = None,
    lag: int = 0,
    workspace: Workspace | None = None,
    recipe: Recipe | None = None,
) -> MetaLearner:
    training = MetaTraining(
        iterations=ITERATIONS,
        updates=3,
        batch=16,
        tasks=TASKS,
        lr=0.01,
        capacity=100,  # wraps
        lag=lag,
        interval=3,
    )
    return MetaLearner(
        make_nc(),
        family,
        recipe,
        seed=0,
        training=training,
        collections=collections,
        workspace=workspace,
    )


Trained = tuple[dict[str, Tensor], Tensor, float]


def outcome(meta: MetaLearner) -> Trained:
    """Returns NC's weights, what the bank holds and the last loss."""
    snapshot, _ = meta.bank.sample(400, stream(0, "rows"))
    return meta.nc.state_dict(), snapshot.H_te, meta.loss


def train(meta: MetaLearner, between: Callable[[int], None] = lambda _: None) -> Trained:
    while not meta.done:
        meta.iterate()
        between(meta.iteration)
    return outcome(meta)


def assert_same(one: Trained, other: Trained) -> None:
    assert one[0].keys() == other[0].keys()
    assert all(torch.equal(other[0][name], value) for name, value in one[0].items())
    assert torch.equal(one[1], other[1])
    assert one[2] == other[2]


def differ(one: Trained, other: Trained) -> bool:
    return any(not torch.equal(other[0][name], value) for name, value in one[0].items())


def wait_for(happens: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except OSError:
        return False


def test_without_a_queue_it_has_one_of_its_own() -> None:
    assert_same(train(learner(recipe=recipe)), train(learner(CollectionQueue(plain()))))
    with pytest.raises(ValueError, match="a recipe must be given where there are no collections"):
        learner()


class Diary:
    """Collects in this process, and writes down the jobs and the weights they come with."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.weights: dict[int, Tensor] = {}
        self.queue = CollectionQueue(self.collect)

    def collect(self, nc: NeuralComplexity, job: Job) -> Collection:
        self.jobs.append(job)
        self.weights[job.index] = next(nc.parameters()).clone()
        return plain()(nc, job)


@pytest.mark.parametrize("lag", [0, 1, 2, 10])
def test_a_collection_is_made_with_the_nc_of_lag_iterations_before(lag: int) -> None:
    diary = Diary()
    meta = learner(diary.queue, lag)
    at_start = []
    while not meta.done:
        at_start.append(next(meta.nc.parameters()).clone())
        meta.iterate()
    weights = [0, 1 / 3, 2 / 3, 1, 1, 1]
    assert [job.index for job in diary.jobs] == list(range(ITERATIONS))
    assert [job.version for job in diary.jobs] == [max(0, i - lag) for i in range(ITERATIONS)]
    assert [job.weight for job in diary.jobs] == pytest.approx(weights)
    for index, seen in diary.weights.items():
        assert torch.equal(seen, at_start[max(0, index - lag)])
    assert meta.rows_per_iteration == ROWS
    assert meta.bank.count == ITERATIONS * ROWS


def session(
    queue: CollectionQueue,
    folder: Path | None = None,
    between: Callable[[int], None] = lambda _: None,
) -> Trained:
    """Trains with a lag of two and a checkpoint every three iterations."""
    meta = learner(queue, 2, Workspace(folder))
    meta_train(
        meta,
        lambda nc: next(nc.parameters()).sum().item(),
        callback=lambda _, done, *__: between(done),
    )
    return outcome(meta)


def interrupt(after: int, iteration: int) -> None:
    if iteration == after:
        raise KeyboardInterrupt


@pytest.mark.parametrize("stops", [[1], [2, 3], [4], [3, 5, 6]])
def test_resumed_equals_uninterrupted(tmp_path: Path, stops: list[int]) -> None:
    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            session(CollectionQueue(plain()), tmp_path, partial(interrupt, stop))
    assert_same(session(CollectionQueue(plain())), session(CollectionQueue(plain()), tmp_path))


@pytest.mark.usefixtures("forked_workers")
def test_neither_processes_nor_their_deaths_nor_an_interruption_change_anything(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    expected = session(CollectionQueue(plain()))
    assert differ(expected, train(learner(CollectionQueue(plain()), 1)))  # something can change
    unlucky = Unlucky(tmp_path, dies=(1,))
    with ProcessPool() as pool, pytest.raises(KeyboardInterrupt):
        session(CollectionQueue(unlucky, pool), run, partial(interrupt, 4))

    def kill(iteration: int) -> None:
        if iteration == 4:
            os.kill(alive(tmp_path)[0], signal.SIGKILL)  # whatever it does

    with ProcessPool(2) as pool:
        assert_same(expected, session(CollectionQueue(unlucky, pool), run, kill))
    assert len((tmp_path / "asked-1").read_text().splitlines()) == 2
    assert {threads for _, threads, _ in jobs_done(tmp_path)} == {"1"}
    assert not alive(tmp_path)


@pytest.mark.parametrize("forked", [False, True])
def test_no_collection_is_lost_or_doubled_when_workers_are_killed_at_random(
    forked: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """KILLS=200 kills so many: of forked workers in minutes, of others in half an hour or so."""
    if forked:
        request.getfixturevalue("forked_workers")
    kills, choosing = int(os.environ.get("KILLS", "1")), random.Random(0)
    most, killed = 10 * (kills + 1), list[int]()

    def rows(queue: CollectionQueue, enough: Callable[[int], bool]) -> tuple[int, Tensor]:
        sizes = {"tasks": TASKS, "capacity": ROWS * most, "lag": 2}
        own: dict[str, Any] = {"iterations": most, "updates": 0, "collections": queue, **sizes}
        meta = MetaLearner(make_nc(), family, seed=0, **own)
        while not enough(meta.iteration) and not meta.done:
            meta.iterate()
        assert meta.bank.count == ROWS * meta.iteration
        return meta.iteration, meta.bank.sample(400, stream(0, "rows"))[0].H_te

    def kill(iteration: int) -> bool:
        time.sleep(0.2 * choosing.random())  # anything may be under way
        # None is alive if the last one had done all that was asked.
        if iteration and (workers := sorted(alive(tmp_path))):
            worker = choosing.choice(workers)
            with suppress(ProcessLookupError):  # the pool ends them when one has died
                os.kill(worker, signal.SIGKILL)
                killed.append(worker)
        return len(killed) > kills  # the last one may die of no consequence

    with ProcessPool(2) as pool:
        iterations, found = rows(CollectionQueue(Unlucky(tmp_path), pool), kill)
    assert len(killed) > kills
    assert torch.equal(found, rows(CollectionQueue(plain()), lambda i: i == iterations)[1])


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("told", [True, False])
def test_a_pool_that_breaks_while_a_call_is_submitted_is_restarted(
    told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, first = ProcessPoolExecutor.submit, [True]

    def breaks_once(self: ProcessPoolExecutor, /, *given: Any) -> Any:
        future = submit(self, *given)
        if not first:
            return future
        first.clear()
        if told:
            raise OSError("handle is closed")  # as pickling a queue that the pool has just closed
        self._broken = True
        return Future()  # which the pool has forgotten: it failed all others just before

    monkeypatch.setattr(ProcessPoolExecutor, "submit", breaks_once)
    with ProcessPool(1) as pool:
        assert pool.submit(abs, -2).result(timeout=60) == 2


@pytest.mark.usefixtures("forked_workers")
def test_a_worker_that_a_broken_pool_does_not_end_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The pool ends those that it knows of when one dies, but waits for one just started, too.
    monkeypatch.setattr(BaseProcess, "terminate", lambda _: None)

    def again() -> int:
        while True:
            with suppress(BrokenExecutor):
                return int(pool.submit(abs, -2).result())

    with ThreadPoolExecutor() as aside, ProcessPool(2) as pool:
        for done in [pool.submit(time.sleep, 0.2) for _ in range(2)]:
            done.result()
        os.kill(pool.submit(os.getpid).result(), signal.SIGKILL)
        assert aside.submit(again).result(timeout=60) == 2


def jobs_done(marks: Path) -> list[list[str]]:
    """Returns version, threads and process of each job that an unlucky collector was given."""
    files = sorted(marks.glob("asked-*"))
    return [line.split() for path in files for line in path.read_text().splitlines()]


def alive(marks: Path) -> list[int]:
    """Returns the processes that an unlucky collector ran in and that live."""
    return [pid for pid in {int(pid) for *_, pid in jobs_done(marks)} if lives(pid)]


def assert_equal(one: Collection, other: Collection) -> None:
    assert all(map(torch.equal, one[0].tensors(), other[0].tensors()))
    assert torch.equal(one[1], other[1])


@pytest.mark.parametrize("make", [nullcontext, lambda: ThreadPoolExecutor(2), ProcessPool])
def test_every_executor_returns_what_the_collector_does(
    make: Callable[[], AbstractContextManager[Executor | None]],
) -> None:
    nc, jobs = make_nc(), [Job(0, 0, 0.0), Job(1, 0, 0.5), Job(2, 1, 0.5)]
    with make() as pool:
        queue = CollectionQueue(plain(), pool)
        queue.publish(0, nc)
        with torch.no_grad():
            next(nc.parameters()).zero_()
        queue.publish(1, nc)
        for job in jobs:
            queue.submit(job)
        made = [queue.take(job.index) for job in reversed(jobs)][::-1]
        assert_equal(queue.take(0), made[0])
        queue.forget(index=2, version=1)
        with pytest.raises(ValueError, match="job 1 must be submitted before it is taken"):
            queue.take(1)
        with pytest.raises(ValueError, match="job 3 must be of a published version, got 0"):
            queue.submit(Job(3, 0, 0.0))
        assert_equal(queue.take(2), made[2])
    for job, version, collection in zip(jobs, (make_nc(), make_nc(), nc), made, strict=True):
        assert_equal(collection, plain()(version, job))


@pytest.mark.usefixtures("forked_workers")
def test_another_run_on_the_same_queue_has_its_own_weights() -> None:
    one, other, job = make_nc(), make_nc(), Job(0, 0, 0.5)
    with torch.no_grad():
        next(other.parameters()).zero_()
    with ProcessPool() as pool:
        queue = CollectionQueue(plain(), pool)
        for nc in (one, other):  # both are version 0 to them
            queue.forget()
            queue.publish(0, nc)
            queue.submit(job)
            assert_equal(queue.take(0), plain()(nc, job))


class Counting(ThreadPoolExecutor):
    """Counts what is sent to workers."""

    sent = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.sent += len(args[2])
        return super().submit(fn, *args, **kwargs)


def test_weights_travel_once_for_each_version_not_for_each_job() -> None:
    with Counting(1) as pool:
        queue = CollectionQueue(plain(), pool)
        for version in range(2):
            queue.publish(version, make_nc())
            for index in range(4):
                queue.submit(Job(index + 4 * version, version, 0.5))
        for index in range(8):
            queue.take(index)
        assert pool.sent == 3  # the collector and two versions


@pytest.mark.usefixtures("forked_workers")
def test_a_worker_that_lacks_the_weights_is_sent_them(tmp_path: Path) -> None:
    with ProcessPool(2) as pool:
        queue = CollectionQueue(Unlucky(tmp_path, hangs=(0,)), pool)
        queue.publish(0, make_nc())
        queue.submit(Job(0, 0, 0.5))  # brings the weights to one worker, which is busy for good
        queue.submit(Job(1, 0, 0.5))
        assert_equal(queue.take(1), plain()(make_nc(), Job(1, 0, 0.5)))


def test_inputs_by_index_come_back_as_indices() -> None:
    store = torch.arange(6.0).unsqueeze(-1)

    def collect(nc: NeuralComplexity, job: Job) -> Collection:
        X = indexed(torch.tensor([[1, 2]]), store.__getitem__)
        zeros = torch.zeros(1, 2, 1)
        return Snapshot(X, zeros, zeros, X, zeros), zeros

    queue = CollectionQueue(collect)
    queue.publish(0, make_nc())
    queue.submit(Job(0, 0, 0.0))
    snapshot, _ = queue.take(0)
    assert torch.equal(snapshot.X_tr, torch.tensor([[1, 2]]))


@pytest.mark.usefixtures("forked_workers")
def test_what_goes_wrong_in_a_worker_is_said_where_it_is_taken(tmp_path: Path) -> None:
    nc = make_nc()
    collector = Unlucky(tmp_path, always_dies=(1,), fails=(0,), hangs=(3,))
    with ProcessPool() as pool:
        queue = CollectionQueue(collector, pool)
        queue.publish(0, nc)
        for index in range(4):
            queue.submit(Job(index, 0, 0.5))
        with pytest.raises(RuntimeError) as failed:
            queue.take(0)
        assert str(failed.value) == "collection 0 failed: ValueError: I cannot"
        assert "in __call__" in "".join(traceback.format_exception(failed.value))
        with pytest.raises(RuntimeError, match="^collection 1 failed: 3 workers died of it"):
            queue.take(1)
        assert_equal(queue.take(2), plain()(nc, Job(2, 0, 0.5)))  # the rest is untouched
        wait_for((tmp_path / "asked-3").exists)
        wait_for(lambda: (tmp_path / "asked-3").read_text().endswith("\n"))
    assert not alive(tmp_path)  # also in the middle of a job
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(print)


@pytest.mark.usefixtures("forked_workers")
def test_jobs_lost_with_a_worker_are_begun_again_before_they_are_taken(tmp_path: Path) -> None:
    with ProcessPool() as pool:
        queue = CollectionQueue(Unlucky(tmp_path, dies=(0,)), pool)
        queue.publish(0, make_nc())
        for index in range(3):
            queue.submit(Job(index, 0, 0.5))
        queue.take(0)
        wait_for((tmp_path / "asked-2").exists)


def test_a_collection_that_takes_too_long_is_tried_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hung = Unlucky(tmp_path, hangs=(0,))
    with ProcessPool() as pool:
        queue = CollectionQueue(TimeLimit(hung, 0.2), pool)
        queue.publish(0, make_nc())
        queue.submit(Job(0, 0, 0.5))
        with pytest.raises(RuntimeError, match="^collection 0 failed: 3 workers died of it"):
            queue.take(0)
    assert "unlucky.py" in capfd.readouterr().err  # where it was
    assert len(jobs_done(tmp_path)) == 3


ORPHAN = """
import sys, time
from pathlib import Path
from unlucky import Unlucky, family
from neural_complexity.meta.collect import Job
from neural_complexity.meta.executor import CollectionQueue, ProcessPool
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    queue = CollectionQueue(Unlucky(folder, hangs=(0,)), ProcessPool())
    queue.publish(0, NeuralComplexity.for_tasks(family.sample(8, stream(0, "units")), width=8))
    queue.submit(Job(0, 0, 0.0))
    time.sleep(60)
"""


def test_workers_end_with_their_parent_however_it_ends(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(ORPHAN)
    (tmp_path / "temporary").mkdir()
    path = os.pathsep.join([str(Path(unlucky.__file__).parent), *sys.path])
    own = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path / "temporary")}
    parent = subprocess.Popen([sys.executable, tmp_path / "run.py", tmp_path], env=own)
    try:
        wait_for((tmp_path / "asked-0").exists)
        wait_for(lambda: (tmp_path / "asked-0").read_text().endswith("\n"))
        assert alive(tmp_path)
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not alive(tmp_path))
    assert not list((tmp_path / "temporary").iterdir())  # nor are files left


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        ProcessPool(0)
    with pytest.raises(ValueError, match="threads must be at least 1, got -1"):
        ProcessPool(threads=-1)
    with ProcessPool() as pool, pytest.raises((AttributeError, PicklingError), match="pickle"):
        CollectionQueue(lambda *_: None, pool)
    meta = learner(CollectionQueue(plain()), 1, Workspace(tmp_path))
    meta.iterate()
    meta.save()
    with pytest.raises(ValueError, match="lag must be 1 as it was so far, got 2"):
        learner(CollectionQueue(plain()), 2, Workspace(tmp_path))


def test_a_collection_of_another_size_is_refused() -> None:
    def shrinking(nc: NeuralComplexity, job: Job) -> Collection:
        snapshot, Y_te = plain()(nc, job)
        return snapshot[job.index :], Y_te[job.index :]

    meta = learner(CollectionQueue(shrinking))
    meta.iterate()
    with pytest.raises(ValueError, match="collection 1 must have 32 rows like the first, got 31"):
        meta.iterate()
