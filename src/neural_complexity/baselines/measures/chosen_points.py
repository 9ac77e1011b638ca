"""Training points that are chosen or paired by chance, whichever order they are given in."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from neural_complexity.baselines.measures.layers import labels
from neural_complexity.points import values
from neural_complexity.seeding import stream
from neural_complexity.task import Task

__all__ = ["MANY", "POINTS", "few", "mixed_pairs"]

POINTS = 256  # training points that are looked at again and again
MANY = 1024  # that gradients are taken of, which need memory


def few(task: Task, most: int = POINTS) -> Task:
    """Returns the tasks with at most so many training points, evenly along a random direction."""
    M = task.X_tr.shape[1]
    if most >= M:
        return task
    ranks = torch.linspace(0, M - 1, most).round().long()
    chosen = _order(values(task.X_tr))[:, ranks]  # (B, most)
    rows = torch.arange(len(task), device=chosen.device).unsqueeze(1)
    return replace(task, X_tr=task.X_tr[rows, chosen], Y_tr=task.Y_tr[rows, chosen])


def mixed_pairs(task: Task) -> Tensor:
    """Returns the midpoints of pairs of training points of the same label, (B, M, D).

    Point i is mixed with the point that is half of its class away along a random direction; the
    midpoints are in the order of the points. The only point of a class is mixed with itself.
    """
    X, Y = values(task.X_tr), labels(task)
    rows = torch.arange(len(X), device=X.device).unsqueeze(1)
    order = _order(X)
    order = order[rows, Y[rows, order].argsort(dim=1, stable=True)]  # by class, then by direction
    sizes = one_hot(Y).sum(dim=1)  # (B, C)
    size = sizes.gather(1, Y)[rows, order]  # (B, M), of the class at each place
    start = (sizes.cumsum(dim=1) - sizes).gather(1, Y)[rows, order]
    place = torch.arange(X.shape[1], device=X.device)
    other = order[rows, start + (place - start + size // 2) % size]
    partner = torch.empty_like(order).scatter(1, order, other)
    return (X + X[rows, partner]) / 2


def _order(X: Tensor) -> Tensor:
    """Returns the order of points, (B, M), along a random direction of the space of inputs."""
    # Random numbers for each place would give another answer for the same points in other places.
    X = X.flatten(2)  # (B, M, D)
    generator = stream(0, "direction of points")
    direction = torch.randn(X.shape[-1], generator=generator, dtype=X.dtype).to(X.device)
    return (X @ direction).argsort(dim=1)
