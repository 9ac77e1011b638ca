"""Collections: learners trained under the current NC, recorded as rows for the bank."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.learners.fit import Recipe, Regularizer
from neural_complexity.learners.trajectory import diverged
from neural_complexity.meta.executor import Collection, Job
from neural_complexity.model.cached import CachedEmbeddings, cache, embed_store, subsample
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import Embeddings, Points, Store, join
from neural_complexity.regularizers.nc import minibatch_penalty, nc_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, take_snapshot
from neural_complexity.task import Task, TaskFamily
from neural_complexity.tasks.families import check_sizes
from neural_complexity.tasks.splits import Minibatches, Splits

__all__ = ["LearnerCollector", "SplitCollector", "TaskCollector", "log_steps"]


@dataclass(frozen=True, eq=False, kw_only=True)
class LearnerCollector(ABC):
    """Trains learners and records them: a pure function of NC's weights, the seed and the job.

    Args:
        recipe: How learners learn.
        seed: The run's seed.
        tasks: Tasks of a collection.
        spread_weights: Whether each learner draws its own weight of NC between 0 and the scheduled
            one: a bank of fully regularized learners alone would make NC forget plain ones.
        frozen: Whether NC's image encoder is not trained, so that inputs are embedded only once.
        device: Where NC and learners live.
    """

    recipe: Recipe
    seed: int
    tasks: int = 4
    spread_weights: bool = True
    frozen: bool = False
    device: str = "cpu"
    _embeddings: list[Embeddings] = field(default_factory=list, init=False)  # if frozen

    def __call__(self, nc: NeuralComplexity, job: Job) -> Collection:
        """Makes a collection: rows for the bank, without predictions of learners that diverged."""
        return self.collect(nc.to(self.device), job)

    @abstractmethod
    def collect(self, nc: NeuralComplexity, job: Job) -> Collection:
        """Makes a collection with an NC that is on the device."""

    def without_diverged(self, steps: Sequence[Snapshot], Y_te: Sequence[Tensor]) -> list[Snapshot]:
        """Puts NaN in the place of what diverged learners predict, so that the bank refuses it.

        A half-trained NC may drive its own learners away. Their losses, in the bank, would be all
        that it learns from, and drive the next ones farther.

        Args:
            steps: The learners at the start and later, B each.
            Y_te: Their test targets each time.
        """
        loss = self.recipe.loss
        curve = [
            loss(s.H_tr, s.Y_tr).mean(dim=1) + loss(s.H_te, Y).mean(dim=1)
            for s, Y in zip(steps, Y_te, strict=True)
        ]
        lost = diverged(torch.stack(curve))[:, :, None, None]  # (steps, B, 1, 1)
        return [
            replace(s, H_te=s.H_te.masked_fill(gone, torch.nan))
            for s, gone in zip(steps, lost, strict=True)
        ]

    def weights(self, job: Job) -> Tensor:
        """Returns the weight of NC for each learner, (B,)."""
        weights = torch.full((self.tasks,), job.weight)
        if self.spread_weights:
            generator = stream(self.seed, "collect weights", job.index)
            weights *= torch.rand(self.tasks, generator=generator)
        return weights.to(self.device)

    def embeddings(self, nc: NeuralComplexity, task: Task, every: Tensor) -> Embeddings:
        """Embeds the inputs of tasks, or once all that may ever occur if the encoder is frozen."""
        X = join([task.X_tr, task.X_te], dim=1)
        assert isinstance(X, Points)
        if not self.frozen:
            return embed_store(nc, X.store, X.indices)
        if not self._embeddings:
            self._embeddings.append(embed_store(nc, X.store, every.to(X.device)))
        return self._embeddings[0]


@dataclass(frozen=True, eq=False, kw_only=True)
class TaskCollector(LearnerCollector):
    """Trains learners on new tasks of a family and records every one of their steps.

    A collection has `tasks * (recipe.steps + 1)` rows.
    """

    family: TaskFamily

    def collect(self, nc: NeuralComplexity, job: Job) -> Collection:
        """Makes a collection."""
        task = self.family.sample(self.tasks, stream(self.seed, "collect tasks", job.index))
        task = task.to(self.device)
        steps: list[Snapshot] = []
        self.recipe.train(
            task.loaded(),
            stream(self.seed, "collect learners", job.index),
            regularizer=self._regularizer(nc, task, job) if job.weight else None,
            observe=lambda _, snapshot: steps.append(snapshot),
        )
        steps = self.without_diverged(steps, [task.Y_te] * len(steps))
        if isinstance(task.X_tr, Points):
            return _join_by_task(task, steps, stream(self.seed, "collect order", job.index))
        sizes = [1] * (task.Y_te.ndim - 1)
        return Snapshot.join(steps), task.Y_te.repeat(len(steps), *sizes)

    def _regularizer(self, nc: NeuralComplexity, task: Task, job: Job) -> Regularizer:
        with torch.no_grad():
            if self.frozen and isinstance(task.X_tr, Points):
                store: Store = task.X_tr.store
                every = torch.arange(len(store))
                context = CachedEmbeddings(nc, self.embeddings(nc, task, every))(task)
            else:
                context = nc.encode(task.X_tr, task.Y_tr, task.X_te)
        return nc_penalty(nc, task, weight=self.weights(job), safeguard=False, context=context)


def _join_by_task(task: Task, steps: list[Snapshot], generator: torch.Generator) -> Collection:
    """Puts indices instead of inputs, and the steps of each task side by side in random order.

    Rows that are drawn together then show one task at different steps.
    """
    B, S = len(task), len(steps)
    order = torch.rand(B, S, generator=generator).argsort(dim=1)
    each = torch.arange(B).repeat_interleave(S)

    def rows(stacked: list[Tensor]) -> Tensor:  # (B S, points, C)
        whole = torch.stack([t.cpu() for t in stacked], dim=1)
        return whole[torch.arange(B)[:, None], order].flatten(0, 1)

    H_tr, H_te = rows([s.H_tr for s in steps]), rows([s.H_te for s in steps])
    kept = task.to("cpu")[each]
    return Snapshot(kept.X_tr, kept.Y_tr, H_tr, kept.X_te, H_te), kept.Y_te


def log_steps(steps: int, count: int) -> list[int]:
    """Returns up to `count` numbers of updates from 0 to `steps`, evenly spaced in their log."""
    spaced = torch.logspace(0, torch.log10(torch.tensor(float(max(steps, 1)))).item(), count - 1)
    return sorted({0, steps, *(min(steps, round(s)) for s in spaced.tolist())})


@dataclass(frozen=True, eq=False, kw_only=True)
class SplitCollector(LearnerCollector):
    """Trains learners on random splits of one dataset, and records them at a few points at a time.

    Splits are of different sizes: small training sets show NC learners that overfit, long before
    large ones would. A collection has `tasks * looks` rows.

    Args:
        splits: The dataset and how it is split.
        looks: How often each learner is recorded.
        batch: Training points of a learner's step, and as many unlabelled ones with NC.
        smallest: The fewest training points of a split.
        unlabelled: How many of its validation points a learner may see without their labels.
        context_size: Training points that a head which does not see predictions is given.
        floor: See `nc_penalty`.
    """

    splits: Splits
    looks: int = 16
    batch: int = 128
    smallest: int = 1000
    unlabelled: int = 2000
    context_size: int = 500
    floor: float | None = -0.1

    def __post_init__(self) -> None:
        check_sizes(tasks=self.tasks, batch=self.batch, unlabelled=self.unlabelled)
        if self.looks < 2:
            raise ValueError(f"looks must be at least 2, got {self.looks}")
        if not self.splits.M <= self.smallest <= self.splits.train:
            raise ValueError(
                f"smallest must be from {self.splits.M}, the points that NC sees at a time, to "
                f"{self.splits.train}, the training points of a split, got {self.smallest}"
            )

    def collect(self, nc: NeuralComplexity, job: Job) -> Collection:
        """Makes a collection."""
        splits, index = self.splits, job.index
        low, high = self.smallest, splits.train
        share = torch.rand((), generator=stream(self.seed, "collect sizes", index)).item()
        m = round(low * (high / low) ** share)
        task = splits.split(self.tasks, stream(self.seed, "collect tasks", index), train=m)
        task, n = task.to(self.device), max(self.unlabelled, splits.N)
        task = Task(task.X_tr, task.Y_tr, task.X_te[:, :n], task.Y_te[:, :n])
        looks = Minibatches(task, M=splits.M, N=splits.N, seed=_seed(self.seed, "looks", index))
        seen: list[tuple[Snapshot, Tensor]] = []

        def visit(_: int, h: BatchedLearner) -> None:
            points = looks(len(seen))
            snapshot = take_snapshot(h, points, joined=not h.has_modes)
            seen.append((snapshot, points.Y_te))

        self.recipe.train(
            Minibatches(task, M=self.batch, N=self.batch, seed=_seed(self.seed, "batches", index)),
            stream(self.seed, "collect learners", index),
            regularizer=self._regularizer(nc, task, job) if job.weight else None,
            visit=visit,
            visits=set(log_steps(self.recipe.steps, self.looks)),
        )
        snapshots, Y_te = zip(*seen, strict=True)
        return Snapshot.join(self.without_diverged(snapshots, Y_te)), torch.cat(Y_te)

    def _regularizer(self, nc: NeuralComplexity, task: Task, job: Job) -> Regularizer:
        if not nc.head.sees_predictions:
            generator = stream(self.seed, "collect shown", job.index)
            task = subsample(task, self.context_size, generator)
        encode = cache(nc, task, self.embeddings(nc, task, self.splits.pool))
        return minibatch_penalty(nc, encode, weight=self.weights(job), floor=self.floor)


def _seed(seed: int, *names: str | int) -> int:
    return stream(seed, *names).initial_seed()
