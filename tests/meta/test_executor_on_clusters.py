"""The same contract for real clusters on the loopback interface: two workers, one of which dies."""

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from distributed import Client

import unlucky
from neural_complexity.meta.bank import to_arrays
from neural_complexity.meta.collect import Job
from neural_complexity.meta.executor import CollectionQueue, RayExecutor, connect
from neural_complexity.meta.pretrain import Pretraining, pretrain
from neural_complexity.meta.trainer import MetaLearner, MetaTraining
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.tasks.synthetic_tables import Tables
from unlucky import TASKS, Unlucky, family, plain

# Both libraries leave sockets to the garbage collector when a peer dies.
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

PATH = os.pathsep.join([str(Path(unlucky.__file__).parent), *sys.path])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class DaskCluster:
    """A scheduler and workers, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        self.file = folder / "scheduler.json"
        self.start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        end = time.monotonic() + 60
        while not (self.file.exists() and self.file.read_text().endswith("}")):
            assert time.monotonic() < end, "the scheduler did not start"
            time.sleep(0.05)
        self.address = json.loads(self.file.read_text())["address"]

    def start(self, kind: str, *options: str) -> None:
        line = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *options]
        own = {**os.environ, "PYTHONPATH": PATH, "OMP_NUM_THREADS": "1"}
        more = {"env": own, "cwd": self.folder, "stderr": subprocess.DEVNULL}
        self.processes.append(
            subprocess.Popen([*line, "--scheduler-file", str(self.file)], **more)  # type: ignore[call-overload]
        )

    def add_worker(self) -> None:
        here = ["--host", "127.0.0.1", "--local-directory", str(self.folder)]
        self.start("worker", *here, "--nthreads", "1", "--no-nanny", "--no-dashboard")

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[DaskCluster]:
    cluster = DaskCluster(tmp_path)
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def ray_executor() -> Iterator[Executor]:
    with tempfile.TemporaryDirectory(prefix="nc") as folder, pytest.MonkeyPatch.context() as patch:
        # A token of this cluster alone: Ray would leave one in the home directory.
        token = Path(folder) / "token"
        token.write_text(secrets.token_hex(32))
        patch.setenv("RAY_AUTH_MODE", "")
        patch.delenv("RAY_AUTH_MODE")  # which Ray sets itself when it finds the token
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.setenv("PYTHONPATH", PATH)
        options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
        options |= {"_node_ip_address": "127.0.0.1", "_temp_dir": folder}
        with ray.init(num_cpus=2, object_store_memory=10**8, **options):
            yield RayExecutor()


def make_nc() -> NeuralComplexity:
    torch.manual_seed(0)
    return NeuralComplexity.for_tasks(family.sample(64, stream(0, "units")), width=16)


def train(queue: CollectionQueue) -> list[torch.Tensor]:
    sizes = MetaTraining(iterations=6, updates=2, batch=16, tasks=TASKS, capacity=100, lag=2)
    meta = MetaLearner(make_nc(), family, seed=0, training=sizes, collections=queue)
    while not meta.done:
        meta.iterate()
    return [meta.bank.sample(50, stream(0, "rows"))[0].H_te, *meta.nc.state_dict().values()]


def check_contract(executor: Executor, marks: Path) -> None:
    """Checks that NC is the same, bit for bit, when a worker dies, and that failures are told."""
    found = train(CollectionQueue(Unlucky(marks, dies=(2,)), executor))
    assert all(map(torch.equal, found, train(CollectionQueue(plain()))))
    asked = [(marks / f"asked-{i}").read_text().splitlines() for i in range(6)]
    assert len(asked[2]) == 2  # what else the worker had not handed over may be made again, too
    assert {line.split()[1] for lines in asked for line in lines} == {"1"}  # threads
    assert str(os.getpid()) not in {line.split()[2] for lines in asked for line in lines}
    queue = CollectionQueue(Unlucky(marks, fails=(7,)), executor)
    queue.publish(0, make_nc())
    queue.submit(Job(7, 0, 0.5))
    with pytest.raises(RuntimeError, match="(?s)^collection 7 failed: .*ValueError.*I cannot") as e:
        queue.take(7)
    assert "in __call__" in "".join(traceback.format_exception(e.value))


def check_pretraining(executor: Executor) -> None:
    """Checks that gradients of tables are the same, bit for bit, wherever they are computed."""
    settings = Pretraining(updates=3, tables=4, together=2, held_out=2)
    sizes = {"for_tables": True, "table_layers": 1, "extra_rows": 1, "loss": "cross_entropy"}
    trained = []
    for own in (None, executor):
        torch.manual_seed(0)
        nc = NeuralComplexity(4, 3, width=8, heads=2, **sizes)
        family = Tables(classes=3, train_points=(8, 20), features=(2, 4), test_points=10)
        pretrain(nc, family, settings, seed=0, executor=own)
        trained.append(nc.state_dict().values())
    assert all(map(torch.equal, *trained))


def test_ray(ray_executor: Executor, tmp_path: Path) -> None:
    check_contract(ray_executor, tmp_path)
    check_pretraining(ray_executor)
    assert ray_executor.submit(abs, -3).result() == 3  # which Ray itself does not take


def test_dask(dask: DaskCluster, tmp_path: Path) -> None:
    dask.add_worker()
    dask.add_worker()
    with connect(dask.address) as executor:
        check_contract(executor, tmp_path)
        check_pretraining(executor)
    with Client(dask.address) as client:
        wait_for(lambda: not client.run_on_scheduler(tasks))  # nothing is left there


def tasks(dask_scheduler: Any) -> list[str]:
    return list(dask_scheduler.tasks)


def test_workers_may_come_later_and_the_scheduler_may_go(dask: DaskCluster) -> None:
    with connect(dask.address) as executor:
        queue, nc = CollectionQueue(plain(), executor), make_nc()
        queue.publish(0, nc)
        queue.submit(Job(0, 0, 0.5))
        dask.add_worker()
        found, here = (to_arrays(*made) for made in (queue.take(0), plain()(nc, Job(0, 0, 0.5))))
        assert {k: v.tobytes() for k, v in found.items()} == {
            k: v.tobytes() for k, v in here.items()
        }
        queue = CollectionQueue(Unlucky(dask.folder, hangs=(1,)), executor)
        queue.publish(0, nc)
        queue.submit(Job(1, 0, 0.5))
        wait_for((dask.folder / "asked-1").exists)
        dask.processes[0].kill()
        with pytest.raises(RuntimeError, match="^collection 1 failed: .* is its scheduler gone?"):
            queue.take(1)


def wait_for(happens: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
