"""Collecting in a second process against collecting in turn with NC's updates."""

from functools import partial

import torch
from torch.optim import SGD

from neural_complexity.experiments.base.one_dataset import split_training
from neural_complexity.experiments.base.training import hold_memory
from neural_complexity.learners.fit import Recipe
from neural_complexity.learners.networks import image_mlp
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.collect import SplitCollector
from neural_complexity.meta.executor import CollectionQueue, ProcessPool
from neural_complexity.meta.trainer import MetaLearner
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import seeded, stream
from neural_complexity.tasks.images import Images, SingleDataset
from neural_complexity.tasks.splits import Splits
from timing import Ratio, seconds_each, show

SHAPE, CLASSES, ITERATIONS = (1, 28, 28), 10, 3
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


def advance(meta: MetaLearner, threads: int) -> None:
    """Does some iterations, and waits for what has been begun in another process."""
    torch.set_num_threads(threads)
    for _ in range(ITERATIONS):
        meta.iterate()
    if meta.training.lag:
        meta.collections.take(meta.iteration)
    torch.set_num_threads(1)


def main() -> None:
    hold_memory()
    torch.set_num_threads(1)
    updates = balance()
    with ProcessPool() as pool:
        apart = learner(CollectionQueue(collector(), pool), 1, updates)
        in_turn, threaded = (learner(CollectionQueue(collector()), 0, updates) for _ in range(2))
        one, two, second = seconds_each(
            partial(advance, in_turn, 1),
            partial(advance, threaded, 2),
            partial(advance, apart, 1),
            rounds=3,
            warmup=1,
        )
    rows = ITERATIONS * apart.rows_per_iteration
    rates = {"in turn": rows / one, "in turn, 2 threads": rows / two, "apart": rows / second}
    note = f"{updates} updates a collection; snapshots/s " + ", ".join(
        f"{name} {rate:.0f}" for name, rate in rates.items()
    )
    threads = f"2 threads in one process give {one / two:.2f}x"
    show(
        [
            Ratio(
                "snapshots per second: collector in a second process over in turn",
                one / second,
                ">= 1.7",
                one / second >= 1.7,
                f"{note}; {threads}",
            )
        ]
    )


if __name__ == "__main__":
    main()
