"""What meta-learning stands on: tasks to learn from, and others that NC is tested on."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta.collect import TaskCollector
from neural_complexity.meta.collect_splits import SplitCollector, log_steps
from neural_complexity.meta.executor import Collection, Collector
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, take_snapshot
from neural_complexity.task import Task, TaskFamily, digest
from neural_complexity.tasks.splits import Minibatches, Splits

__all__ = ["FINISHED", "Ground", "Part", "SplitGround", "TaskGround", "TaskList", "split_ground"]

Part = Literal["validation", "report"]
FINISHED = 2  # of so many held-out learners, the first is trained to the end
SHARES = (0.7, 0.1, 0.2)  # to learn from, to choose by, to report on


class Ground(Protocol):
    """Tasks that NC learns from, and tasks that it never sees."""

    @property
    def family(self) -> TaskFamily:
        """Where the tasks to learn from come from."""
        ...

    def most(self, part: Part) -> int:
        """Tells how many learners can be on a task of their own."""
        ...

    def collector(self, recipe: Recipe, *, tasks: int, seed: int, device: str) -> Collector:
        """Makes what lets learners loose on the tasks to learn from, `tasks` at a time."""
        ...

    def learners(
        self, recipe: Recipe, part: Part, *, tasks: int, seed: int, index: int, device: str
    ) -> Collection:
        """Trains learners on tasks that NC is not trained on, one for each task.

        Every other is recorded when it is trained, the others at a moment of their own before.

        Args:
            recipe: How they learn.
            part: What they are for.
            tasks: How many.
            seed: The run's seed.
            index: Other numbers give other tasks.
            device: Where they live.

        Returns:
            The learners with their inputs, and their test targets.
        """
        ...


def _at_random_moments(seen: Sequence[Snapshot], generator: torch.Generator) -> Snapshot:
    """Takes each learner at one of the moments at which all were seen, every other at the last."""
    device = seen[0].H_te.device
    moment = torch.randint(len(seen), (len(seen[0]),), generator=generator).to(device)
    moment[::FINISHED] = len(seen) - 1  # what users ask about is mostly trained to the end
    row = torch.arange(len(moment), device=device)
    H_tr, H_te = (
        torch.stack(every)[moment, row]
        for every in ([s.H_tr for s in seen], [s.H_te for s in seen])
    )
    return Snapshot(seen[0].X_tr, seen[0].Y_tr, H_tr, seen[0].X_te, H_te)


@dataclass(frozen=True, eq=False)
class TaskGround:
    """Tasks that are all new, drawn from a family, or some of those that there are.

    Args:
        family: To learn from.
        held: Of what NC is tested on; the family itself where it never runs out of new tasks.
    """

    family: TaskFamily
    held: dict[Part, TaskFamily]

    def most(self, part: Part) -> int:
        """Tells how many learners can be on a task of their own."""
        family = self.held[part]
        return len(family.task) if isinstance(family, TaskList) else sys.maxsize

    def collector(self, recipe: Recipe, *, tasks: int, seed: int, device: str) -> Collector:
        """Makes what lets learners loose."""
        return TaskCollector(
            family=self.family, recipe=recipe, tasks=tasks, seed=seed, device=device
        )

    def learners(
        self, recipe: Recipe, part: Part, *, tasks: int, seed: int, index: int, device: str
    ) -> Collection:
        """Trains learners on other tasks."""
        task = self.held[part].sample(tasks, stream(seed, part, "tasks", index)).to(device)
        seen: list[Snapshot] = []
        recipe.train(
            task,
            stream(seed, part, "learners", index),
            observe=lambda _, snapshot: seen.append(snapshot),
        )
        return _at_random_moments(seen, stream(seed, part, "moments", index)), task.Y_te


@dataclass(frozen=True, eq=False)
class TaskList:
    """Tasks that a user has, as a family: drawn from without replacement as far as they go."""

    task: Task

    def sample(self, batch: int, generator: torch.Generator) -> Task:
        """Draws `batch` of the tasks."""
        times = -(-batch // len(self.task))
        order = [torch.randperm(len(self.task), generator=generator) for _ in range(times)]
        return self.task[torch.cat(order)[:batch]]

    def __repr__(self) -> str:
        """Names number and content, so that equal texts mean equal tasks."""
        task = self.task
        content = digest(task.X_tr, task.Y_tr, task.X_te, task.Y_te)
        return f"TaskList({len(task)}, {content})"


@dataclass(frozen=True, eq=False)
class SplitGround:
    """Random splits of one dataset, of which some points are kept from NC.

    NC is tested as it will be used: on learners of points that it knows, and on test points that
    it does not.
    """

    family: Splits
    held: dict[Part, Tensor]  # numbers of points
    batch: int
    largest: int  # training points of a held-out learner, at most

    def most(self, part: Part) -> int:  # noqa: ARG002
        """Tells how many learners can be on a split of their own: any number."""
        return sys.maxsize

    def collector(self, recipe: Recipe, *, tasks: int, seed: int, device: str) -> Collector:
        """Makes what lets learners loose."""
        splits = self.family
        return SplitCollector(
            splits,
            replace(recipe, look_up=splits.look_up),
            seed=seed,
            tasks=tasks,
            looks=12,
            batch=self.batch,
            smallest=splits.M,
            unlabelled=256,
            shown=256,
            device=device,
        )

    def learners(
        self, recipe: Recipe, part: Part, *, tasks: int, seed: int, index: int, device: str
    ) -> Collection:
        """Trains learners on splits of one size, with test points that NC has never seen."""
        splits, held = self.family, self.held[part]
        low, high = splits.M, self.largest
        share = torch.rand((), generator=stream(seed, part, "size", index)).item()
        m, n = round(low * (high / low) ** share), max(1, (len(held) + 1) // 2)
        generator = stream(seed, part, "tasks", index)
        tr, te = (
            numbers[torch.rand(tasks, len(numbers), generator=generator).topk(size).indices]
            for numbers, size in ((splits.pool, m), (held, n))
        )
        labels = splits.store.labels
        task = Task(tr, labels[tr], te, labels[te]).to(device)
        inputs = Task(splits.look_up(task.X_tr), task.Y_tr, splits.look_up(task.X_te), task.Y_te)
        seen: list[Snapshot] = []

        def visit(_: int, h: BatchedLearner) -> None:
            record = take_snapshot(h.predict, inputs, joined=not h.has_modes)
            seen.append(record.detach())

        recipe = replace(recipe, look_up=splits.look_up)
        recipe.train(
            Minibatches(task, M=self.batch, N=1, seed=seed + index),
            stream(seed, part, "learners", index),
            visit=visit,
            visits=set(log_steps(recipe.steps, 12)),
        )
        return _at_random_moments(seen, stream(seed, part, "moments", index)), task.Y_te


def split_ground(splits: Splits, *, seed: int, batch: int) -> SplitGround:
    """Keeps some points of a dataset from NC.

    Args:
        splits: Of the whole dataset; the shares of training and validation points stay where they
            are of all points, otherwise their numbers.
        seed: Decides which points.
        batch: Training points of a learner's step.
    """
    P = len(splits.pool)
    order = splits.pool[torch.randperm(P, generator=stream(seed, "held out"))]
    sizes = [max(2, round(share * P)) for share in SHARES[1:]]
    pool, validation, report = order.split([P - sum(sizes), *sizes])
    share = round(len(pool) * splits.train / (splits.train + splits.test))
    train = max(1, min(len(pool) - 1, share))
    train, test = min(splits.train, train), min(splits.test, len(pool) - train)
    own = replace(
        splits,
        pool=pool,
        train=train,
        test=test,
        M=min(splits.M, max(1, train // 2)),
        N=min(splits.N, test),
    )
    held: dict[Part, Tensor] = {"validation": validation, "report": report}
    return SplitGround(own, held, batch, min(splits.train, len(pool)))
