"""The training of one network on a user's points, and the choice of NC's weight in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

import torch
from torch import Tensor

from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.learners.fit import Recipe, Regularizer, evaluate
from neural_complexity.model.cached import CachedEmbeddings, Encoder, cache, embed_store
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import indexed, join, raw, values
from neural_complexity.regularizers.nc import minibatch_penalty, trust
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.splits import Minibatches

__all__ = ["RegularizedTraining", "Training"]

HELD_OUT = 4  # one training point of so many is held out, to judge on and to choose a weight by
FEWEST = 8  # training points that are left to learn from, to choose a weight


@dataclass(frozen=True)
class Training:
    """How a network learns from points of one dataset, given by their indices."""

    X: Tensor  # all inputs, those with targets first
    Y: Tensor  # targets of these, (points,) or (points, 1)
    recipe: Recipe
    batch: int
    seed: int

    def task(self, points: Tensor, judged: Tensor) -> Task:
        """Returns the task to learn from points, (n,), and to be judged on others."""
        blank = self.Y.new_zeros((1, len(judged), *self.Y.shape[1:]))  # nobody looks at it
        X_tr, X_te = (indexed(some[None], self.X.__getitem__) for some in (points, judged))
        return Task(X_tr, self.Y[None, points], X_te, blank)

    def train(self, task: Task, regularizer: Regularizer | None = None) -> BatchedLearner:
        """Trains a new network."""
        batches = Minibatches(task, M=self.batch, N=self.batch, seed=self.seed)
        return self.recipe.train(batches, stream(self.seed, "network"), regularizer=regularizer)


@dataclass(frozen=True)
class RegularizedTraining(Training):
    """A training with NC as the regularizer."""

    nc: NeuralComplexity
    classes: int | None  # of labels, if not as many as NC was made for
    floor: float | None  # see `nc_penalty`

    def arrange(self, points: Tensor, judged: Tensor) -> tuple[Task, Task]:
        """Returns what is learned from and judged on, and what NC sees of it.

        Where there are no points to judge on, these are some training points, whose targets NC does
        not see.
        """
        n, order = len(points), self._shuffle(points, "shown")
        size = min(n, self.nc.card.context_size)
        if not len(judged):
            if n < 2:
                wanted = "at least 2 points, one for NC to judge on, without X_unlabelled"
                raise ValueError(f"X must have {wanted}, got n_samples={n}")
            held_out = -(-n // HELD_OUT)
            size, judged = min(size, n - held_out), order[n - held_out :]
        return self.task(points, judged), self.task(order[:size].sort().values, judged)

    def trust(self, seen: Task) -> float:
        """Measures trust on the points that NC sees."""
        return float(trust(self.nc, values(seen.X_tr), seen.Y_tr, classes=self.classes))

    def encoder(self, seen: Task) -> Encoder:
        """Prepares all of NC's work that does not depend on the network."""
        X_tr, X_te = values(seen.X_tr), values(seen.X_te)
        self.nc.check(classes=self.classes, X_tr=X_tr, Y_tr=seen.Y_tr, X_te=X_te)
        if self.nc.head.sees_predictions:
            return CachedEmbeddings(self.nc, fixed=(seen.X_tr, seen.Y_tr))
        indices = raw(join([seen.X_tr, seen.X_te], dim=1))
        embeddings = embed_store(self.nc, self.X.__getitem__, indices)
        return cache(self.nc, seen, embeddings, classes=self.classes)

    def penalty(self, encode: Encoder, task: Task, weight: float) -> Regularizer | None:
        """Returns the penalty, or nothing where NC has no weight, so that it changes no bit."""
        train, test = raw(task.X_tr), raw(task.X_te)
        if torch.isin(test, train).all():
            # Labels speak for all training points, NC for those that it judges on. At weight 1 the
            # training loss cancels out, and with it the labels of all others.
            weight *= test.shape[1] / train.shape[1]
        if not weight:
            return None
        return minibatch_penalty(self.nc, encode, weight=weight, floor=self.floor)

    @torch.no_grad()
    def gap(self, encode: Encoder, task: Task, h: BatchedLearner) -> float:
        """Predicts the gap of a network."""
        return float(minibatch_penalty(self.nc, encode, floor=None)(h, evaluate(h, task)))

    def choose(
        self, weights: Sequence[float], factor: float, points: Tensor, *, transductive: bool
    ) -> float:
        """Returns the weight, times a factor, that does best on training points held out.

        Trust says whether NC understands the task; but who has many labels may know more than NC.
        It is the first where there are too few points. If `transductive`, NC judges on the held-out
        points themselves.
        """
        order, size = self._shuffle(points, "held out"), -(-len(points) // HELD_OUT)
        if len(weights) == 1 or len(points) - size < FEWEST:
            return weights[0]
        # Points that NC learned from would flatter it; if too few others are there, NC is held to
        # what its file says that it believes of new ones: a network that does better without NC is
        # not to be taught by it.
        new = order[~self.nc.card.knows(self.X[order])]
        honest = 2 * len(new) >= size
        least = 0.0 if honest else self.nc.card.belief_loss
        if least is None:
            return min(weights)
        held_out = (new if honest else order)[:size]
        rest = order[~torch.isin(order, held_out)]
        task, seen = self.arrange(rest, held_out if transductive else held_out[:0])
        test, encode, found = self.task(held_out, held_out), self.encoder(seen), []
        for weight in weights:
            h = self.train(task, self.penalty(encode, task, weight * factor))
            with torch.no_grad():
                value = float(self.recipe.loss(h(test.X_tr), test.Y_tr).mean())
            value = value if isfinite(value) else inf
            found.append((max(value, least) if weight else value, value, weight))
        return min(found)[-1]  # the smaller of two that are as good

    def _shuffle(self, points: Tensor, name: str) -> Tensor:
        order = torch.randperm(len(points), generator=stream(self.seed, name))
        return points[order.to(points.device)]
