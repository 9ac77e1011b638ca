"""Learners of digits that an NC has not learned from: what the bound of the shipped one is for."""

from functools import partial

import numpy as np
import torch
from torch import Tensor, optim

from neural_complexity.learners.fit import Recipe
from neural_complexity.learners.networks import mlp
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.bank import Collection
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.snapshot import take_snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.splits import Minibatches, own_digits

__all__ = ["NOTE", "RECIPE", "unseen_digits", "unseen_learners"]

CLASSES, BATCH, STEPS = 10, 32, 300
SMALLEST, TEST = 64, 144  # training points at least, and test points of a learner
RECIPE = partial(Recipe, loss=cross_entropy, lr=0.003, optimizer=partial(optim.Adam, fused=True))
NOTE = (
    "it is for MLPs with one hidden layer of 64 units, 300 updates of Adam, and digits that NC has "
    "not learned from; calibration learners share {} of these, so that for others it may hold less "
    "often"
)


def unseen_digits(nc: NeuralComplexity) -> tuple[Tensor, Tensor]:
    """Returns scikit-learn's digits, (points, 64), and labels without those that NC knows."""
    X, y, X_te, y_te = own_digits()
    values = torch.from_numpy(np.concatenate([X, X_te])).to(nc.x_mean)
    new = ~nc.card.knows(values.view(-1, *nc.shape))
    return values[new], torch.from_numpy(np.concatenate([y, y_te]))[new]


def unseen_learners(
    nc: NeuralComplexity, sizes: int, together: int, *, seed: int
) -> list[Collection]:
    """Trains learners on so many sizes of training sets, evenly on a logarithmic scale.

    Training and test points of each are drawn from `unseen_digits`; `together` learners of each
    size run at once.
    """
    X, y = unseen_digits(nc)
    recipe = RECIPE(make=partial(mlp, X.shape[1], (64,), CLASSES), steps=STEPS)
    found = []
    for index in range(sizes):
        m = round(SMALLEST * ((len(X) - TEST) / SMALLEST) ** ((index + 0.5) / sizes))
        generator = stream(seed, "unseen digits", index)
        order = torch.rand(together, len(X), generator=generator).argsort(dim=1)
        te, tr = order[:, :TEST], order[:, TEST : TEST + m]
        task = Task(X[tr], y[tr], X[te], y[te])
        batches = Minibatches(task, M=BATCH, N=1, seed=seed + index)
        h = recipe.train(batches, stream(seed, "unseen learners", index))
        with torch.no_grad():
            found.append((take_snapshot(h, task).detach(), task.Y_te))
    return found
