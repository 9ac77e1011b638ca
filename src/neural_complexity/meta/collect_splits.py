"""Collecting from splits of one large dataset."""

from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor

from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.learners.fit import Regularizer
from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta.executor import Collection, Job
from neural_complexity.model.heads import PosteriorHead
from neural_complexity.model.indexed import Embeddings, believe, by_embeddings, embed, show
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.regularizers.nc import nc_penalty_by_number
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, take_snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.sampling import check_sizes
from neural_complexity.tasks.splits import Minibatches, Splits

__all__ = ["SplitCollector", "log_steps"]


def log_steps(steps: int, looks: int) -> list[int]:
    """Gives up to `looks` different numbers of updates: 0, then evenly spaced in their logarithm.

    The last one is `steps`.
    """
    spaced = torch.logspace(0, torch.log10(torch.tensor(float(max(steps, 1)))).item(), looks - 1)
    return sorted({0, steps, *(min(steps, round(s)) for s in spaced.tolist())})


@dataclass(frozen=True, eq=False)
class SplitCollector:
    """Lets learners loose on random splits, and remembers them at a few points at a time.

    A pure function of NC's weights, the seed and the index. Splits are of different sizes: small
    training sets show NC learners that overfit, long before large ones would.

    Args:
        splits: The dataset and how it is split.
        recipe: How learners learn.
        seed: The run's seed.
        tasks: Splits at a time, all of one size.
        looks: How often each learner is looked at on its way, `tasks * looks` rows in all.
        batch: Training points of a learner's step, and as many unlabelled ones with NC.
        smallest: The fewest training points of a split.
        unlabelled: How many of its validation points a learner may see without their labels.
        shown: How many training points the posterior head sees when it says what it believes.
        floor: See `nc_penalty`.
        spread_weights: Whether each learner draws its own weight of NC below the scheduled one.
        device: Where NC and learners live.
        frozen: Whether NC's image encoder is not trained, so that inputs are embedded only once.
    """

    splits: Splits
    recipe: Recipe
    _: KW_ONLY
    seed: int
    tasks: int = 4
    looks: int = 16
    batch: int = 128
    smallest: int = 1000
    unlabelled: int = 2000
    shown: int = 500
    floor: float | None = -0.1
    spread_weights: bool = True
    frozen: bool = False
    device: str = "cpu"
    _embeddings: list[Embeddings] = field(default_factory=list, init=False)  # if frozen

    def __post_init__(self) -> None:
        check_sizes(tasks=self.tasks, batch=self.batch, unlabelled=self.unlabelled)
        if self.looks < 2:
            raise ValueError(f"looks must be at least 2, got {self.looks}")
        if not self.splits.M <= self.smallest <= self.splits.train:
            raise ValueError(
                f"smallest must be from {self.splits.M}, the points that NC sees at a time, to "
                f"{self.splits.train}, the training points of a split, got {self.smallest}"
            )

    def __call__(self, nc: NeuralComplexity, job: Job) -> Collection:
        """Makes one collection: rows for the bank, as numbers, and their test labels."""
        nc, index, weight = nc.to(self.device), job.index, job.weight
        splits, device = self.splits, self.device
        low, high = self.smallest, splits.train
        share = torch.rand((), generator=stream(self.seed, "collect sizes", index)).item()
        m = round(low * (high / low) ** share)
        task = splits.split(self.tasks, stream(self.seed, "collect tasks", index), train=m)
        task = task.to(device)
        n = max(self.unlabelled, splits.N)
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
            regularizer=self._regularizer(nc, task, index, weight) if weight else None,
            visit=visit,
            visits=set(log_steps(self.recipe.steps, self.looks)),
        )
        snapshots, Y_te = zip(*seen, strict=True)
        columns = zip(*(s.tensors() for s in snapshots), strict=True)
        return Snapshot(*(torch.cat(column) for column in columns)), torch.cat(Y_te)

    def _regularizer(
        self, nc: NeuralComplexity, task: Task, index: int, weight: float
    ) -> Regularizer:
        weights = torch.full((len(task),), weight)  # (B,)
        if self.spread_weights:
            weights *= torch.rand(len(task), generator=stream(self.seed, "collect weights", index))
        posterior = isinstance(nc.head, PosteriorHead)
        if posterior:
            task = show(task, self.shown, stream(self.seed, "collect shown", index))
        if self.frozen and not self._embeddings:
            pool = self.splits.pool.to(task.X_tr.device)
            self._embeddings.append(embed(nc, self.splits.look_up, pool))
        embeddings = (
            self._embeddings[0]
            if self.frozen
            else embed(nc, self.splits.look_up, torch.cat([task.X_tr, task.X_te], dim=1))
        )
        known = believe(nc, embeddings, task) if posterior else by_embeddings(nc, embeddings)
        return nc_penalty_by_number(
            nc, known, weight=weights.to(task.X_tr.device), floor=self.floor
        )


def _seed(seed: int, *names: str | int) -> int:
    return stream(seed, *names).initial_seed()
