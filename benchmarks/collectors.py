"""Collecting elsewhere against collecting in turn with NC's updates, and the cost of the seam."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask
import ray
import torch
from distributed import Client, LocalCluster
from torch.optim import SGD

from neural_complexity.cores import hold_memory
from neural_complexity.experiments.base.one_dataset import split_training
from neural_complexity.learners.fit import Recipe
from neural_complexity.learners.networks import image_mlp
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.bank import Collection
from neural_complexity.meta.collect import Job, SplitCollector
from neural_complexity.meta.executor import CollectionQueue, ProcessPool, RayExecutor
from neural_complexity.meta.trainer import MetaLearner
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import seeded, stream
from neural_complexity.tasks.images import Images, SingleDataset
from neural_complexity.tasks.splits import Splits
from timing import Ratio, seconds_each, show

SHAPE, CLASSES, ITERATIONS = (1, 28, 28), 10, 6
# One heap for all threads of a worker, and no profiler that looks at them every 10 ms.
DASK = {"distributed.nanny.pre-spawn-environ.MALLOC_ARENA_MAX": 1}
DASK |= {"distributed.worker.profile.enabled": False}
TRAINING = split_training("posterior", channels=32, width=64)


def splits() -> Splits:
    """Makes splits of noise: what is in an image costs nothing."""
    pixels = torch.randint(256, (6000, *SHAPE), generator=stream(0, "pixels"), dtype=torch.uint8)
    dataset = SingleDataset("noise", Images(pixels, torch.arange(6000) % CLASSES), 5900)
    numbers = dataset.train_indices
    return Splits(dataset, numbers, train=4000, test=1000, M=TRAINING.M, N=TRAINING.N)


def collector() -> SplitCollector:
    tasks = splits()
    make = partial(image_mlp, SHAPE, [500], CLASSES)
    sgd = partial(SGD, momentum=0.9, foreach=True)
    recipe = Recipe(make=make, loss=cross_entropy, steps=60, lr=0.01, optimizer=sgd)
    return SplitCollector(
        splits=tasks,
        recipe=recipe,
        seed=0,
        tasks=2,
        looks=16,
        smallest=4000,
        unlabelled=1000,
        context_size=500,
    )


def learner(collections: CollectionQueue, lag: int, updates: int) -> MetaLearner:
    tasks = splits()
    with seeded(0, "weights"):
        nc = NeuralComplexity.for_tasks(
            tasks.sample(4, stream(0, "units")),
            loss="cross_entropy",
            **TRAINING.architecture("posterior"),
        )
    return MetaLearner(
        nc,
        tasks,
        seed=0,
        iterations=10**6,
        updates=updates,
        batch=1,
        lr=1e-4,
        ramp=0.0,  # all learners are regularized: each collection costs the same
        capacity=5000,
        collections=collections,
        lag=lag,
    )


def balance() -> int:
    """Returns how many updates of NC take as long as one collection."""
    alone, both = (learner(CollectionQueue(collector()), 0, updates) for updates in (0, 4))
    collecting, whole = seconds_each(alone.iterate, both.iterate, rounds=4)
    return max(1, round(4 * collecting / (whole - collecting)))


def advance(meta: MetaLearner) -> None:
    """Does some iterations, and waits for all that has been begun elsewhere."""
    for _ in range(ITERATIONS):
        meta.iterate()
    if meta.training.lag:
        wait([future for _, future in meta.collections.asked.values()])


@dataclass(frozen=True)
class Same:
    """A collector that returns the same rows at once: all that is left is the seam."""

    rows: Collection

    def __call__(self, *_: object) -> Collection:
        """Returns the rows."""
        return self.rows


def seam_seconds(meta: MetaLearner, executor: Executor, rounds: int) -> float:
    """Returns the time to publish weights and to ask for and take rows that cost nothing."""
    meta._submit()
    queue = CollectionQueue(Same(meta.collections.take(meta.iteration)), executor)
    index = iter(range(10**6))

    def seam() -> None:
        i = next(index)
        queue.publish(i, meta.nc)
        queue.submit(Job(i, i, 1.0))
        queue.take(i)
        queue.forget(index=i + 1, version=i + 1)

    return seconds_each(seam, rounds=rounds)[0]


@contextmanager
def dask_workers() -> Iterator[Executor]:
    with (
        dask.config.set(DASK),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.run(hold_memory)
        yield client.get_executor()


@contextmanager
def ray_workers() -> Iterator[Executor]:
    hook = {"worker_process_setup_hook": hold_memory}
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
    with ray.init(num_cpus=2, runtime_env=hook, **options):
        yield RayExecutor()  # whose workers have a thread for each core that a task asks for


EXECUTORS: dict[str, tuple[Callable[[], AbstractContextManager[Executor]], int, float]] = {
    "a second process": (ProcessPool, 1, 1.7),  # how to start it, lag, bar
    "2 local workers": (partial(ProcessPool, 2), 4, 1.7),
    "2 Dask workers": (dask_workers, 4, 1.6),
    "2 Ray workers": (ray_workers, 4, 1.6),
}


def compare(name: str, in_turn: MetaLearner, updates: int) -> list[Ratio]:
    """Measures an executor in turns with one process.

    With two workers two thirds of the work is collecting: the trainer has a third of it then, and
    all three share two cores.
    """
    start, lag, bar = EXECUTORS[name]
    with start() as executor:
        apart = learner(CollectionQueue(collector(), executor), lag, updates)
        one, other = seconds_each(
            partial(advance, in_turn), partial(advance, apart), rounds=3, warmup=1
        )
        seam = seam_seconds(apart, executor, rounds=30) * ITERATIONS / one
    rows = ITERATIONS * apart.rows_per_iteration
    note = f"{updates} updates a collection; snapshots/s {rows / one:.0f} and {rows / other:.0f}"
    faster = one / other
    return [
        Ratio(f"snapshots/s: {name} over one", faster, f">= {bar}", faster >= bar, note),
        Ratio(f"seam over an iteration: {name}", seam, "< 0.03", seam < 0.03, ""),
    ]


def main() -> None:
    hold_memory()
    torch.set_num_threads(1)
    updates = balance()
    for name in sys.argv[1:] or EXECUTORS:
        few = updates if EXECUTORS[name][1] == 1 else max(1, updates // 2)
        show(compare(name, learner(CollectionQueue(collector()), 0, few), few))


if __name__ == "__main__":
    import collectors  # workers must be able to import what they run

    collectors.main()
