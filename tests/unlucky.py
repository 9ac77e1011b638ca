"""Collectors that worker processes can import, some of them unlucky."""

import os
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from neural_complexity.learners.fit import Recipe
from neural_complexity.learners.networks import mlp
from neural_complexity.meta.bank import Collection
from neural_complexity.meta.collect import Job, TaskCollector
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.tasks.families import Sinusoids

family = Sinusoids(train_points=5, test_points=7)
recipe = Recipe(make=partial(mlp, 1, (8, 8), 1), steps=3, lr=0.05)
TASKS = 8


def plain() -> TaskCollector:
    return TaskCollector(family=family, recipe=recipe, tasks=TASKS, seed=0)


@dataclass(frozen=True)
class Unlucky:
    """Dies the first time it is asked for some of the collections; fails at others."""

    marks: Path  # a file per death
    dies: tuple[int, ...] = ()
    always_dies: tuple[int, ...] = ()
    fails: tuple[int, ...] = ()
    hangs: tuple[int, ...] = ()

    def __call__(self, nc: NeuralComplexity, job: Job) -> Collection:
        with (self.marks / f"asked-{job.index}").open("a") as file:
            file.write(f"{job.version} {torch.get_num_threads()} {os.getpid()}\n")
        if job.index in self.dies and first(self.marks / f"died-{job.index}"):
            os.kill(os.getpid(), signal.SIGKILL)
        if job.index in self.always_dies:
            os._exit(7)
        if job.index in self.fails:
            raise ValueError("I cannot")
        if job.index in self.hangs:
            signal.pause()
        return plain()(nc, job)


def first(mark: Path) -> bool:
    """Returns whether this is the first time that anyone asks, in any process."""
    is_first = not mark.exists()
    mark.touch()
    return is_first
