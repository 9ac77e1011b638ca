"""Collections: learners trained under the current NC, recorded as rows for the bank."""

import faulthandler
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.learners.fit import Recipe, diverged
from neural_complexity.meta.bank import Arrays, Collection, from_arrays, to_arrays
from neural_complexity.model.cached import CachedEmbeddings, cache, embed_store, subsample
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import Embeddings, Points, join
from neural_complexity.regularizers.nc import minibatch_penalty, nc_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, take_snapshot
from neural_complexity.task import Task, TaskFamily
from neural_complexity.tasks.families import check_sizes
from neural_complexity.tasks.splits import Minibatches, Splits

__all__ = ["Collector", "Job", "LearnerCollector", "SplitCollector", "TaskCollector"]
__all__ += ["TimeLimit", "log_steps", "received", "sent"]


@dataclass(frozen=True)
class Job:
    """One collection to be made."""

    index: int  # which collection of the run
    version: int  # of NC, whose weights regularize the learners
    weight: float  # of NC in their objective


Collector = Callable[[NeuralComplexity, Job], Any]
"""Returns rows for the bank, a `Collection`, as a pure function of the job and of NC, which has the
weights of the job's version and may be moved to another device. Rows of learners that diverged are
returned, too. What is not for a bank is returned as arrays by name.
"""


def sent(made: Collection | Arrays) -> Arrays:
    """Returns what a collector made as processes send it to each other."""
    return made if isinstance(made, dict) else to_arrays(*made)


def received(arrays: Arrays) -> Any:
    """Undoes `sent`."""
    return from_arrays(arrays) if "Y_te" in arrays else arrays


@dataclass(frozen=True)
class TimeLimit:
    """A collector for workers that end themselves, as if they had died, when one takes too long.

    They print where they were. Not for an executor of threads, which would end this process.
    """

    collector: Collector
    seconds: float  # for a collection
    caller: int = field(default_factory=os.getpid)

    def __call__(self, nc: NeuralComplexity, job: Job) -> Any:
        """Makes a collection in time."""
        if os.getpid() == self.caller:
            raise ValueError("a time limit must be for other processes, got this one")
        faulthandler.dump_traceback_later(self.seconds, exit=True)
        try:
            return self.collector(nc, job)
        finally:
            faulthandler.cancel_dump_traceback_later()


@dataclass(frozen=True, eq=False, kw_only=True)
class LearnerCollector:
    """What collectors share; each is a pure function of NC's weights, the seed and the job."""

    recipe: Recipe  # how learners learn
    seed: int  # the run's
    tasks: int = 4  # of a collection
    # Whether each learner draws its own weight of NC between 0 and the scheduled one: a bank of
    # fully regularized learners alone would make NC forget plain ones.
    spread_weights: bool = True
    frozen: bool = False  # whether NC's image encoder is not trained: inputs are embedded only once
    device: str = "cpu"  # where NC and learners live
    # Of all inputs, one item; made when they are first needed if it is frozen and this is empty.
    embeddings: list[Embeddings] = field(default_factory=list)

    def _rows(self, steps: Sequence[Snapshot], Y_te: Sequence[Tensor]) -> Collection:
        """Joins steps, with NaN for what diverged learners predict, so that the bank refuses it.

        A half-trained NC may drive its own learners away. Their losses, in the bank, would be all
        that it learns from, and drive the next ones farther. The first step is the learners' start.
        """
        loss, s, Y = self.recipe.loss, Snapshot.join(steps), torch.cat(list(Y_te))
        curve = loss(s.H_tr, s.Y_tr).mean(dim=1) + loss(s.H_te, Y).mean(dim=1)  # (steps * B,)
        lost = diverged(curve.unflatten(0, (len(steps), -1))).flatten()[:, None, None]
        return replace(s, H_te=s.H_te.masked_fill(lost, torch.nan)), Y

    def _weights(self, job: Job) -> Tensor:
        """Returns the weight of NC for each learner, (B,)."""
        weights = torch.full((self.tasks,), job.weight)
        if self.spread_weights:
            generator = stream(self.seed, "collect weights", job.index)
            weights *= torch.rand(self.tasks, generator=generator)
        return weights.to(self.device)

    def _embedded(self, nc: NeuralComplexity, task: Task, every: Tensor) -> Embeddings:
        """Embeds the inputs of tasks, or once all that may ever occur if the encoder is frozen."""
        X = join([task.X_tr, task.X_te], dim=1)
        assert isinstance(X, Points)
        if not self.frozen:
            return embed_store(nc, X.store, X.indices)
        if not self.embeddings:
            self.embeddings.append(embed_store(nc, X.store, every.to(X.device)))
        return self.embeddings[0]


@dataclass(frozen=True, eq=False, kw_only=True)
class TaskCollector(LearnerCollector):
    """Trains learners on new tasks of a family and records every one of their steps.

    A collection has `tasks * (recipe.steps + 1)` rows.
    """

    family: TaskFamily  # where tasks come from

    def __call__(self, nc: NeuralComplexity, job: Job) -> Collection:
        """Makes a collection: rows for the bank, without predictions of learners that diverged."""
        nc = nc.to(self.device)
        task = self.family.sample(self.tasks, stream(self.seed, "collect tasks", job.index))
        task = task.to(self.device)
        steps, penalty = list[Snapshot](), None
        if job.weight:
            with torch.no_grad():
                if self.frozen and isinstance(task.X_tr, Points):
                    every = torch.arange(len(task.X_tr.store))
                    context = CachedEmbeddings(nc, self._embedded(nc, task, every))(task)
                else:
                    context = nc.encode(task.X_tr, task.Y_tr, task.X_te)
            weight = self._weights(job)
            penalty = nc_penalty(nc, task, weight=weight, safeguard=False, context=context)
        learning = stream(self.seed, "collect learners", job.index)
        self.recipe.train(
            task.loaded(), learning, regularizer=penalty, observe=lambda _, s: steps.append(s)
        )
        S, B, inputs = len(steps), len(task), {"X_tr": task.X_tr, "X_te": task.X_te}  # or indices
        snapshot, Y_te = self._rows([replace(s, **inputs) for s in steps], [task.Y_te] * S)
        rows = torch.arange(S * B)
        if isinstance(task.X_tr, Points):
            # The steps of each task side by side in random order: rows that are drawn together
            # then show one task at different steps.
            order = torch.rand(B, S, generator=stream(self.seed, "collect order", job.index))
            rows = (order.argsort(dim=1) * B + torch.arange(B)[:, None]).flatten()
        return snapshot.to("cpu")[rows], Y_te.cpu()[rows]


def log_steps(steps: int, count: int) -> list[int]:
    """Returns up to `count` numbers of updates from 0 to `steps`, evenly spaced in their log."""
    spaced = torch.logspace(0, torch.log10(torch.tensor(float(max(steps, 1)))).item(), count - 1)
    return sorted({0, steps, *(min(steps, round(s)) for s in spaced.tolist())})


@dataclass(frozen=True, eq=False, kw_only=True)
class SplitCollector(LearnerCollector):
    """Trains learners on random splits of one dataset, and records them at a few points at a time.

    Splits are of different sizes: small training sets show NC learners that overfit, long before
    large ones would. A collection has `tasks * looks` rows.
    """

    splits: Splits  # the dataset and how it is split
    looks: int = 16  # how often each learner is recorded
    batch: int = 128  # training points of a learner's step, and as many unlabelled ones with NC
    smallest: int = 1000  # the fewest training points of a split
    unlabelled: int = 2000  # validation points that a learner may see without their labels
    context_size: int = 500  # training points for a head which does not see predictions
    floor: float | None = -0.1  # see `nc_penalty`

    def __post_init__(self) -> None:
        check_sizes(tasks=self.tasks, batch=self.batch, unlabelled=self.unlabelled)
        if self.looks < 2:
            raise ValueError(f"looks must be at least 2, got {self.looks}")
        M, train = self.splits.M, self.splits.train
        if not M <= self.smallest <= train:
            told = f"smallest must be from {M}, the points that NC sees at a time, to {train}, the"
            raise ValueError(f"{told} training points of a split, got {self.smallest}")

    def __call__(self, nc: NeuralComplexity, job: Job) -> Collection:
        """Makes a collection: rows for the bank, without predictions of learners that diverged."""
        nc, splits, index = nc.to(self.device), self.splits, job.index
        low, high = self.smallest, splits.train
        share = torch.rand((), generator=stream(self.seed, "collect sizes", index)).item()
        m = round(low * (high / low) ** share)
        task = splits.split(self.tasks, stream(self.seed, "collect tasks", index), train=m)
        task, n = task.to(self.device), max(self.unlabelled, splits.N)
        task = Task(task.X_tr, task.Y_tr, task.X_te[:, :n], task.Y_te[:, :n])
        names = ("looks", "batches")
        looking, batching = (stream(self.seed, name, index).initial_seed() for name in names)
        looks = Minibatches(task, M=splits.M, N=splits.N, seed=looking)
        seen: list[tuple[Snapshot, Tensor]] = []

        def visit(_: int, h: BatchedLearner) -> None:
            points = looks(len(seen))
            seen.append((take_snapshot(h, points, joined=not h.has_modes), points.Y_te))

        penalty, shown = None, task
        if job.weight:
            if not nc.head.sees_predictions:
                drawing = stream(self.seed, "collect shown", index)
                shown = subsample(task, self.context_size, drawing)
            encode = cache(nc, shown, self._embedded(nc, shown, splits.pool))
            penalty = minibatch_penalty(nc, encode, weight=self._weights(job), floor=self.floor)
        batches = Minibatches(task, M=self.batch, N=self.batch, seed=batching)
        learning = stream(self.seed, "collect learners", index)
        visits = set(log_steps(self.recipe.steps, self.looks))
        self.recipe.train(batches, learning, regularizer=penalty, visit=visit, visits=visits)
        return self._rows(*zip(*seen, strict=True))
