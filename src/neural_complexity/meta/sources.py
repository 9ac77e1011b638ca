"""Where meta-learning gets its tasks: a training source, and held-out tasks that NC never sees."""

import sys
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta.collect import SplitCollector, TaskCollector, log_steps
from neural_complexity.meta.executor import Collection, Collector
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, take_snapshot
from neural_complexity.task import Task, TaskFamily
from neural_complexity.tasks.splits import Minibatches, Splits

__all__ = ["FINISHED", "Part", "Source", "TaskList", "make_source"]

Part = Literal["validation", "report"]
FINISHED = 2  # of so many held-out learners, the first is trained to the end
SHARES = (0.7, 0.1, 0.2)  # of a dataset: to learn from, to choose by, to report on
BATCH, LOOKS = 32, 12  # training points of a learner's step and times it is seen, on splits


@dataclass(frozen=True, eq=False)
class TaskList:
    """Tasks that a user has, as a family: drawn from without replacement as far as they go."""

    task: Task

    def sample(self, batch: int, generator: torch.Generator) -> Task:
        """Draws `batch` of the tasks."""
        times = -(-batch // len(self.task))
        order = [torch.randperm(len(self.task), generator=generator) for _ in range(times)]
        return self.task[torch.cat(order)[:batch]]


@dataclass(frozen=True, eq=False)
class Source:
    """Tasks that NC learns from, and held-out tasks: new ones, others of a list, or splits.

    Of a dataset that is split, points are held out. NC is then tested as it will be used: on
    learners of points that it knows, and on test points that it does not.
    """

    family: TaskFamily  # to learn from; itself held out where it never runs out of new tasks
    held_out: dict[Part, TaskFamily | Tensor]  # families, or indices of points
    largest: int = 0  # training points of a held-out learner on a split, at most

    def limit(self, part: Part) -> int:
        """Returns how many held-out learners can have a task of their own."""
        family = self.held_out[part]
        return len(family.task) if isinstance(family, TaskList) else sys.maxsize

    def collector(self, recipe: Recipe, *, tasks: int, seed: int, device: str) -> Collector:
        """Returns what trains learners on the tasks to learn from."""
        own: dict[str, Any] = {"recipe": recipe, "tasks": tasks, "seed": seed, "device": device}
        if not isinstance(self.family, Splits):
            return TaskCollector(family=self.family, **own)
        own |= {"looks": LOOKS, "batch": BATCH, "smallest": self.family.M}
        return SplitCollector(splits=self.family, unlabelled=256, context_size=256, **own)

    def learners(
        self, recipe: Recipe, part: Part, *, tasks: int, seed: int, index: int, device: str
    ) -> Collection:
        """Trains learners on held-out tasks, one for each, other ones for other indices.

        Every other is recorded when it is trained, the others at a step of their own before.
        """
        held_out, seen = self.held_out[part], list[Snapshot]()
        drawing, learning = (stream(seed, part, name, index) for name in ("tasks", "learners"))
        if isinstance(held_out, Tensor):
            assert isinstance(self.family, Splits)
            splits, low = self.family, self.family.M
            share = torch.rand((), generator=stream(seed, part, "size", index)).item()
            m, n = round(low * (self.largest / low) ** share), max(1, (len(held_out) + 1) // 2)
            tr, te = (
                indices[torch.rand(tasks, len(indices), generator=drawing).topk(size).indices]
                for indices, size in ((splits.pool, m), (held_out, n))
            )
            points = splits.task(tr, te).to(device)
            task = points.loaded()

            def visit(_: int, h: BatchedLearner) -> None:
                seen.append(take_snapshot(h, task, joined=not h.has_modes).detach())

            batches = Minibatches(points, M=BATCH, N=1, seed=seed + index)
            visits = set(log_steps(recipe.steps, LOOKS))
            recipe.train(batches, learning, visit=visit, visits=visits)
        else:
            task = held_out.sample(tasks, drawing).to(device).loaded()
            recipe.train(task, learning, observe=lambda _, snapshot: seen.append(snapshot))
        moments = stream(seed, part, "moments", index)
        step = torch.randint(len(seen), (len(task),), generator=moments).to(device)
        step[::FINISHED] = len(seen) - 1  # users mostly ask about learners trained to the end
        row, both = torch.arange(len(step), device=device), ("H_tr", "H_te")
        H = {name: torch.stack([getattr(s, name) for s in seen])[step, row] for name in both}
        return replace(seen[0], **H), task.Y_te


def make_source(tasks: Splits | TaskFamily | Task, seed: int) -> Source:
    """Returns the source of what `meta_learn` is given."""
    own: TaskFamily
    validation: TaskFamily | Tensor
    report: TaskFamily | Tensor
    held_out, largest = stream(seed, "held out"), 0
    if isinstance(tasks, Splits):
        P = len(tasks.pool)
        order = tasks.pool[torch.randperm(P, generator=held_out)]
        sizes = [max(2, round(share * P)) for share in SHARES[1:]]
        pool, validation, report = order.split([P - sum(sizes), *sizes])
        # The shares of training and validation points stay where they are of all points, otherwise
        # their numbers.
        share = round(len(pool) * tasks.train / (tasks.train + tasks.test))
        train = max(1, min(len(pool) - 1, share))
        train, test = min(tasks.train, train), min(tasks.test, len(pool) - train)
        M, N = min(tasks.M, max(1, train // 2)), min(tasks.N, test)
        own = replace(tasks, pool=pool, train=train, test=test, M=M, N=N)
        largest = min(tasks.train, len(pool))
    elif isinstance(tasks, Task):
        if len(tasks) < 10:
            raise ValueError(f"tasks must be at least 10, to hold some out, got {len(tasks)}")
        order, few = torch.randperm(len(tasks), generator=held_out), max(1, len(tasks) // 10)
        parts = order.split([len(tasks) - 3 * few, few, 2 * few])
        own, validation, report = (TaskList(tasks[rows]) for rows in parts)
    elif not callable(getattr(tasks, "sample", None)) or hasattr(tasks, "columns"):  # a data frame
        raise TypeError(
            "tasks must be made by split_tasks, be a family of tasks or a Task, got "
            f"{type(tasks).__name__}"
        )
    else:
        own = validation = report = tasks
    return Source(own, {"validation": validation, "report": report}, largest)
