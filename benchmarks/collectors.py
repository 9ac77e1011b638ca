"""Collecting in a second process against collecting in turn with NC's updates."""

from functools import partial

import torch

from neural_complexity.experiments.machine import hold_memory
from neural_complexity.learners.networks import image_mlp
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.collect import TaskCollector
from neural_complexity.meta.engine import Engine, Here, Processes
from neural_complexity.meta.train import MetaLearner
from neural_complexity.model.complexity import NeuralComplexity
from neural_complexity.seeding import seeded, stream
from neural_complexity.tasks.few_shot import FewShot
from neural_complexity.tasks.images import Images
from timing import Ratio, seconds_each, show

SHAPE, CLASSES, ITERATIONS = (1, 28, 28), 10, 3


def family() -> FewShot:
    """Makes tasks of noise: what is in an image costs nothing."""
    pixels = torch.randint(256, (2000, *SHAPE), generator=stream(0, "pixels"), dtype=torch.uint8)
    return FewShot(Images(pixels, torch.arange(2000) % CLASSES), ways=CLASSES, shots=5, queries=5)


def collector() -> TaskCollector:
    make = partial(image_mlp, SHAPE, [500], CLASSES)
    recipe = Recipe(make=make, loss=cross_entropy, steps=8, lr=0.01)
    return TaskCollector(family=family(), recipe=recipe, tasks=4, seed=0)


def learner(engine: Engine, lag: int, updates: int) -> MetaLearner:
    tasks = family()
    with seeded(0, "weights"):
        nc = NeuralComplexity.for_tasks(
            tasks.sample(16, stream(0, "units")),
            loss="cross_entropy",
            width=64,
            channels=32,
            image_layers=3,
        )
    return MetaLearner(
        nc,
        tasks,
        seed=0,
        iterations=10**6,
        updates=updates,
        batch=4,
        lr=1e-4,
        ramp=0.0,  # all learners are regularized: each collection costs the same
        capacity=5000,
        run=4,
        engine=engine,
        lag=lag,
    )


def balance() -> int:
    """Gives how many updates of NC take as long as one collection."""
    alone, both = (learner(Here(collector()), 0, updates) for updates in (0, 4))
    collecting, whole = seconds_each(alone.iterate, both.iterate, rounds=5)
    return max(1, round(4 * collecting / (whole - collecting)))


def advance(meta: MetaLearner, threads: int) -> None:
    """Does some iterations, and waits for what has been begun in another process."""
    torch.set_num_threads(threads)
    for _ in range(ITERATIONS):
        meta.iterate()
    assert meta.engine is not None
    if meta.lag:
        meta.engine.take(meta.iteration)
    torch.set_num_threads(1)


def main() -> None:
    hold_memory()
    torch.set_num_threads(1)
    updates = balance()
    with Processes(collector) as elsewhere:
        apart = learner(elsewhere, 1, updates)
        in_turn, threaded = (learner(Here(collector()), 0, updates) for _ in range(2))
        one, two, second = seconds_each(
            partial(advance, in_turn, 1),
            partial(advance, threaded, 2),
            partial(advance, apart, 1),
            rounds=4,
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
