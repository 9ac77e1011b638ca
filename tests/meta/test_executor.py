import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from pickle import PicklingError

import pytest
import torch
from torch import Tensor

import unlucky
from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta.collect import TaskCollector
from neural_complexity.meta.executor import Collection, Engine, Here, Job, Processes
from neural_complexity.meta.trainer import MetaLearner
from neural_complexity.meta.training_loop import Resume, meta_train
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.tasks.few_shot import FewShot
from unlucky import TASKS, Unlucky, family, moody, plain, recipe

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
    engine: Engine | None, lag: int = 0, recipe: Recipe | None = None, **options: object
) -> MetaLearner:
    settings = {
        "seed": 0,
        "iterations": ITERATIONS,
        "updates": 3,
        "batch": 16,
        "lr": 0.01,
        "capacity": 100,  # wraps
        **options,
    }
    return MetaLearner(make_nc(), family, recipe, engine=engine, lag=lag, **settings)  # type: ignore[arg-type]


Trained = tuple[dict[str, Tensor], Tensor, float]


def outcome(meta: MetaLearner) -> Trained:
    """Gives NC's weights, what the bank holds and the last loss."""
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


def test_without_lag_an_engine_changes_nothing() -> None:
    assert_same(train(learner(None, recipe=recipe, tasks=TASKS)), train(learner(Here(plain()))))


def test_on_images_without_lag_an_engine_changes_nothing(
    few_shot: FewShot, image_recipe: Recipe
) -> None:
    found = []
    for asynchronous in (False, True):
        torch.manual_seed(0)
        units = few_shot.sample(16, stream(0, "units"))
        nc = NeuralComplexity.for_tasks(
            units, loss="cross_entropy", width=8, channels=4, image_layers=2
        )
        collector = TaskCollector(family=few_shot, recipe=image_recipe, tasks=4, seed=0)
        meta = MetaLearner(
            nc,
            few_shot,
            None if asynchronous else image_recipe,
            tasks=0 if asynchronous else 4,
            engine=Here(collector) if asynchronous else None,
            seed=0,
            iterations=3,
            updates=2,
            batch=8,
            lr=0.01,
            capacity=100,
        )
        found.append(train(meta))
    assert_same(*found)


class Diary:
    """Does as `Here` does, and writes down the jobs and the weights they come with."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.weights: dict[int, Tensor] = {}
        self.engine = Here(self.collect)

    def collect(self, nc: NeuralComplexity, job: Job) -> Collection:
        self.jobs.append(job)
        self.weights[job.index] = next(nc.parameters()).clone()
        return plain()(nc, job)


@pytest.mark.parametrize("lag", [0, 1, 2, 10])
def test_a_collection_is_made_with_the_nc_of_lag_iterations_before(lag: int) -> None:
    diary = Diary()
    meta = learner(diary.engine, lag)
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
    engine: Engine, folder: Path | None = None, between: Callable[[int], None] = lambda _: None
) -> Trained:
    """Trains with a lag of two and a checkpoint every three iterations."""
    found = []

    def build(bank: Path | None, resume: Resume | None) -> MetaLearner:
        found.append(learner(engine, 2, bank_folder=bank, keep=3, resume=resume))
        return found[0]

    meta_train(
        build,
        validate=lambda nc: next(nc.parameters()).sum().item(),
        validate_every=2,
        save_every=3,
        folder=folder,
        watch=lambda moment: between(moment.iteration),
    )
    return outcome(found[0])


def interrupt(after: int, iteration: int) -> None:
    if iteration == after:
        raise KeyboardInterrupt


@pytest.mark.parametrize("stops", [[1], [2, 3], [4], [3, 5, 6]])
def test_resumed_equals_uninterrupted(tmp_path: Path, stops: list[int]) -> None:
    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            session(Here(plain()), tmp_path, partial(interrupt, stop))
    assert_same(session(Here(plain())), session(Here(plain()), tmp_path))


def test_neither_processes_nor_their_deaths_nor_an_interruption_change_anything(
    tmp_path: Path,
) -> None:
    run, folder = tmp_path / "run", tmp_path / "engine"
    expected = session(Here(plain()))
    assert differ(expected, train(learner(Here(plain()), 1)))  # so there is something to change
    make = partial(Unlucky, tmp_path, dies_writing=(1,))
    (folder / "engine-killed").mkdir(parents=True)  # of an earlier process
    with Processes(make, folder=folder) as engine, pytest.raises(KeyboardInterrupt):
        session(engine, run, partial(interrupt, 4))
    assert not list(folder.iterdir())

    with Processes(make, workers=2, folder=folder) as engine:
        first = engine.pids

        def kill(iteration: int) -> None:
            if iteration == 4:
                os.kill(first[0], signal.SIGKILL)  # whatever it does
            assert not [p for p in engine.folder.glob(".*") if "000000001" in p.name]

        assert_same(expected, session(engine, run, kill))
        assert not list(engine.folder.glob("collection-*"))  # all taken and forgotten
        assert not list(engine.folder.glob("version-*"))
        # Replaced, though there is nothing left to do; a killed process takes a while to go.
        wait_for(lambda: first[0] not in engine.pids and len(engine.pids) == 2)
        second = engine.pids

    assert len({*first, *second}) == 3
    asked = {i: (tmp_path / f"asked-{i}").read_text().splitlines() for i in range(ITERATIONS)}
    lines = [line.split() for index in asked for line in asked[index]]
    assert len(asked[1]) == 2
    assert {threads for _, threads, _ in lines} == {"1"}
    assert not [pid for pid in {*first, *second, *(int(pid) for *_, pid in lines)} if lives(pid)]


def test_what_goes_wrong_in_a_worker_is_said_where_it_is_taken(tmp_path: Path) -> None:
    nc = make_nc()
    make = partial(moody, tmp_path, always_dies=(2,), fails=(1,), hangs=(4,))
    with Processes(make) as engine:
        with pytest.raises(ValueError, match="version 0 must be published before job 2 is"):
            engine.submit(Job(2, 0, 0.0))
        engine.publish(0, nc)
        for index in range(5):
            engine.submit(Job(index, 0, 0.5))
        with pytest.raises(RuntimeError, match="^collection 0 failed: ValueError: there are no im"):
            engine.take(0)
        with pytest.raises(RuntimeError) as failed:
            engine.take(1)
        assert str(failed.value) == "collection 1 failed: ValueError: I cannot"
        assert "in __call__" in "".join(failed.value.__notes__)  # where it happened
        said = "3 workers in turn died of it, the last one with exit code 7"
        with pytest.raises(RuntimeError, match=f"^collection 2 failed: {said}"):
            engine.take(2)
        snapshot, Y_te = engine.take(3)  # the rest is untouched
        expected, same = plain()(nc, Job(3, 0, 0.5))
        assert all(map(torch.equal, snapshot.tensors(), expected.tensors()))
        assert torch.equal(Y_te, same)
        with pytest.raises(ValueError, match="job 9 must be submitted before it is taken"):
            engine.take(9)
        wait_for((tmp_path / "asked-4").exists)
        (pid,) = engine.pids
    assert not lives(pid)  # also in the middle of a job
    assert not engine.folder.exists()
    with pytest.raises(RuntimeError, match="got none, because the engine was closed"):
        engine.take(4)


ORPHAN = """
import time
from functools import partial
from pathlib import Path
import sys
from unlucky import Unlucky, family
from neural_complexity.meta.executor import Job, Processes
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream
if __name__ == "__main__":
    engine = Processes(partial(Unlucky, Path(sys.argv[1]), hangs=(0,)), folder=Path(sys.argv[1]))
    engine.publish(0, NeuralComplexity.for_tasks(family.sample(8, stream(0, "units")), width=8))
    engine.submit(Job(0, 0, 0.0))
    time.sleep(60)
"""


def test_workers_end_with_their_parent_however_it_ends(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(ORPHAN)
    path = os.pathsep.join([str(Path(unlucky.__file__).parent), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, tmp_path / "run.py", tmp_path], env={**os.environ, "PYTHONPATH": path}
    )
    try:
        wait_for((tmp_path / "asked-0").exists)
        wait_for(lambda: (tmp_path / "asked-0").read_text().endswith("\n"))
        worker = int((tmp_path / "asked-0").read_text().split()[2])
        assert lives(worker)
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not lives(worker))


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        Processes(plain, workers=0)
    with pytest.raises(ValueError, match="threads must be at least 1, got -1"):
        Processes(plain, threads=-1)
    with pytest.raises((AttributeError, PicklingError), match="pickle"):
        Processes(lambda: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match="lag must not be negative, got -1"):
        learner(Here(plain()), -1)
    with pytest.raises(ValueError, match="lag must be 0 without an engine, got 1"):
        learner(None, 1, recipe=recipe, tasks=TASKS)
    with pytest.raises(ValueError, match="without an engine there must be a recipe and at least"):
        learner(None)
    here = Here(plain())
    with pytest.raises(ValueError, match="version 3 must be published before job 0 is submitted"):
        here.submit(Job(0, 3, 0.0))
    with pytest.raises(ValueError, match="job 0 must be submitted before it is taken"):
        here.take(0)
    meta = learner(Here(plain()), 1, bank_folder=tmp_path, keep=1)
    meta.iterate()
    meta.bank.flush()
    with pytest.raises(ValueError, match="lag must be 1 as it was so far, got 2"):
        learner(Here(plain()), 2, bank_folder=tmp_path, keep=1, resume=meta.state())
    tensors, counters = meta.state()
    del counters["lag"]  # as releases before engines wrote it
    with pytest.raises(ValueError, match="must be of this release, got an earlier one"):
        learner(Here(plain()), 1, bank_folder=tmp_path, keep=1, resume=(tensors, counters))


def test_a_collection_of_another_size_is_refused() -> None:
    def shrinking(nc: NeuralComplexity, job: Job) -> Collection:
        snapshot, Y_te = plain()(nc, job)
        return snapshot[job.index :], Y_te[job.index :]

    meta = learner(Here(shrinking))
    meta.iterate()
    with pytest.raises(ValueError, match="collection 1 must have 32 rows like the first, got 31"):
        meta.iterate()
