"""Where meta-learning gets its tasks: a training source, and held-out tasks that NC never sees."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

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

__all__ = ["FINISHED", "Part", "Source", "SplitSource", "TaskList", "TaskSource", "make_source"]

Part = Literal["validation", "report"]
FINISHED = 2  # of so many held-out learners, the first is trained to the end
SHARES = (0.7, 0.1, 0.2)  # of a dataset: to learn from, to choose by, to report on
BATCH = 32  # training points of a learner's step, on splits


def _at_random_steps(seen: Sequence[Snapshot], generator: torch.Generator) -> Snapshot:
    """Takes each learner at one of the recorded steps, every other at the last."""
    device = seen[0].H_te.device
    step = torch.randint(len(seen), (len(seen[0]),), generator=generator).to(device)
    step[::FINISHED] = len(seen) - 1  # users mostly ask about learners trained to the end
    row = torch.arange(len(step), device=device)
    H_tr, H_te = (torch.stack([getattr(s, n) for s in seen])[step, row] for n in ("H_tr", "H_te"))
    return replace(seen[0], H_tr=H_tr, H_te=H_te)


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
class TaskSource:
    """Tasks drawn from a family, all of them new, or some of a list."""

    family: TaskFamily  # to learn from
    held_out: dict[Part, TaskFamily]  # the family itself where it never runs out of new tasks

    def limit(self, part: Part) -> int:
        """Returns how many held-out learners can have a task of their own."""
        family = self.held_out[part]
        return len(family.task) if isinstance(family, TaskList) else sys.maxsize

    def collector(self, recipe: Recipe, *, tasks: int, seed: int, device: str) -> Collector:
        """Returns what trains learners on tasks to learn from."""
        own = {"tasks": tasks, "seed": seed}
        return TaskCollector(family=self.family, recipe=recipe, device=device, **own)

    def learners(
        self, recipe: Recipe, part: Part, *, tasks: int, seed: int, index: int, device: str
    ) -> Collection:
        """Trains learners on held-out tasks, one for each, other ones for other indices.

        Every other is recorded when it is trained, the others at a step of their own before.
        """
        task = self.held_out[part].sample(tasks, stream(seed, part, "tasks", index)).to(device)
        task, seen = task.loaded(), list[Snapshot]()
        learning = stream(seed, part, "learners", index)
        recipe.train(task, learning, observe=lambda _, snapshot: seen.append(snapshot))
        return _at_random_steps(seen, stream(seed, part, "moments", index)), task.Y_te


@dataclass(frozen=True, eq=False)
class SplitSource:
    """Random splits of one dataset, of which some points are held out.

    NC is tested as it will be used: on learners of points that it knows, and on test points that
    it does not.
    """

    family: Splits
    held_out: dict[Part, Tensor]  # indices of points
    largest: int  # training points of a held-out learner, at most

    def limit(self, part: Part) -> int:  # noqa: ARG002
        """Returns that there can be any number."""
        return sys.maxsize

    def collector(self, recipe: Recipe, *, tasks: int, seed: int, device: str) -> Collector:
        """Returns what trains learners on splits to learn from."""
        sizes = {"tasks": tasks, "looks": 12, "batch": BATCH, "smallest": self.family.M}
        sizes |= {"unlabelled": 256, "context_size": 256, "seed": seed}
        return SplitCollector(splits=self.family, recipe=recipe, device=device, **sizes)

    def learners(
        self, recipe: Recipe, part: Part, *, tasks: int, seed: int, index: int, device: str
    ) -> Collection:
        """Trains learners on splits of one size, with test points that NC has never seen."""
        splits, held_out = self.family, self.held_out[part]
        low, high = splits.M, self.largest
        share = torch.rand((), generator=stream(seed, part, "size", index)).item()
        m, n = round(low * (high / low) ** share), max(1, (len(held_out) + 1) // 2)
        generator = stream(seed, part, "tasks", index)
        tr, te = (
            indices[torch.rand(tasks, len(indices), generator=generator).topk(size).indices]
            for indices, size in ((splits.pool, m), (held_out, n))
        )
        task = splits.task(tr, te).to(device)
        loaded, seen = task.loaded(), list[Snapshot]()

        def visit(_: int, h: BatchedLearner) -> None:
            seen.append(take_snapshot(h, loaded, joined=not h.has_modes).detach())

        recipe.train(
            Minibatches(task, M=BATCH, N=1, seed=seed + index),
            stream(seed, part, "learners", index),
            visit=visit,
            visits=set(log_steps(recipe.steps, 12)),
        )
        return _at_random_steps(seen, stream(seed, part, "moments", index)), task.Y_te


Source = TaskSource | SplitSource


def make_source(tasks: Splits | TaskFamily | Task, seed: int) -> Source:
    """Returns the source of what `meta_learn` is given."""
    if isinstance(tasks, Splits):
        return _split_source(tasks, seed)
    if isinstance(tasks, Task):
        if len(tasks) < 10:
            raise ValueError(f"tasks must be at least 10, to hold some out, got {len(tasks)}")
        order = torch.randperm(len(tasks), generator=stream(seed, "held out"))
        few = max(1, len(tasks) // 10)
        parts = order.split([len(tasks) - 3 * few, few, 2 * few])
        own, validation, report = (TaskList(tasks[rows]) for rows in parts)
        return TaskSource(own, {"validation": validation, "report": report})
    if not callable(getattr(tasks, "sample", None)) or hasattr(tasks, "columns"):  # no data frame
        raise TypeError(
            "tasks must be made by split_tasks, be a family of tasks or a Task, got "
            f"{type(tasks).__name__}"
        )
    return TaskSource(tasks, {"validation": tasks, "report": tasks})


def _split_source(splits: Splits, seed: int) -> SplitSource:
    """Holds out some points of a dataset.

    The shares of training and validation points stay where they are of all points, otherwise their
    numbers.
    """
    P = len(splits.pool)
    order = splits.pool[torch.randperm(P, generator=stream(seed, "held out"))]
    sizes = [max(2, round(share * P)) for share in SHARES[1:]]
    pool, validation, report = order.split([P - sum(sizes), *sizes])
    share = round(len(pool) * splits.train / (splits.train + splits.test))
    train = max(1, min(len(pool) - 1, share))
    train, test = min(splits.train, train), min(splits.test, len(pool) - train)
    M, N = min(splits.M, max(1, train // 2)), min(splits.N, test)
    own = replace(splits, pool=pool, train=train, test=test, M=M, N=N)
    held_out: dict[Part, Tensor] = {"validation": validation, "report": report}
    return SplitSource(own, held_out, min(splits.train, len(pool)))
