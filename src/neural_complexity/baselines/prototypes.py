"""Prototypical networks (Snell et al. 2017): what a user would try instead of NC."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from neural_complexity import ledger
from neural_complexity.baselines.optimize import Optimization, optimize
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.trainer import MetaTraining
from neural_complexity.model.attention import soft_k_means
from neural_complexity.model.encoders import ImageEncoder
from neural_complexity.points import values
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import stream
from neural_complexity.task import Task, TaskFamily

__all__ = ["PrototypicalNetwork", "nearest_neighbour_logits", "train_prototypes"]


class PrototypicalNetwork(nn.Module):
    """Classifies images by the nearest mean of a class, among embedded images."""

    def __init__(self, encoder: ImageEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, task: Task, *, classes: int, rounds: int = 0) -> Tensor:
        """Returns logits of the test images of B tasks, (B, N, C).

        Args:
            task: The tasks; the test labels are not looked at.
            classes: How many classes there are, C.
            rounds: How often means move to the test images that choose them (soft k-means): then
                the test images classify each other.
        """
        E_tr, E_te = self.encoder(values(task.X_tr)), self.encoder(values(task.X_te))
        members = one_hot(task.Y_tr, classes).to(E_tr.dtype)  # (B, M, C)
        means = members.mT @ E_tr / members.sum(dim=1).unsqueeze(-1).clamp(min=1)  # (B, C, E)
        means = soft_k_means(E_te, means, heads=1, rounds=rounds)
        return _closeness(E_te, means)


def nearest_neighbour_logits(E_tr: Tensor, Y_tr: Tensor, E_te: Tensor, *, classes: int) -> Tensor:
    """Returns the labels of the nearest training points, as ones and zeros, (B, N, C).

    Args:
        E_tr: Embedded training points, (B, M, features).
        Y_tr: Their labels, (B, M).
        E_te: Embedded test points, (B, N, features).
        classes: How many classes there are, C.
    """
    nearest = _closeness(E_te, E_tr).argmax(dim=-1)  # (B, N)
    named = one_hot(Y_tr.gather(1, nearest), classes)
    return torch.zeros_like(E_te[..., :1]) + named


def _closeness(Q: Tensor, K: Tensor) -> Tensor:
    """Computes minus half the squared distance over the root of the width, (B, N, M)."""
    half = 0.5 * (Q.square().sum(dim=-1).unsqueeze(-1) + K.square().sum(dim=-1).unsqueeze(-2))
    return (Q @ K.mT - half) / math.sqrt(Q.shape[-1])


def train_prototypes(
    encoder: ImageEncoder,
    family: TaskFamily,
    training: MetaTraining,
    *,
    seed: int,
    classes: int,
    rounds: int = 0,
    callback: ProgressCallback | None = None,
) -> PrototypicalNetwork:
    """Trains a prototypical network on the episodes that NC is trained on with the same settings.

    Args:
        encoder: Freshly made, trained in place.
        family: Where tasks come from.
        training: NC's; each iteration draws tasks, and each update sees some of them.
        seed: The seed of NC's training.
        classes: How many classes there are.
        rounds: See `PrototypicalNetwork`; the network is trained to be used with as many.
        callback: Called after each update.
    """
    network = PrototypicalNetwork(encoder)
    episodes = _episodes(family, training, seed, next(encoder.parameters()).device)

    def loss(_: int) -> Tensor:
        task = next(episodes)
        ledger.record_task("learn", task)
        return cross_entropy(network(task, classes=classes, rounds=rounds), task.Y_te).mean()

    settings = Optimization(
        updates=training.iterations * training.updates, lr=training.lr, warmup=training.warmup
    )
    optimize(network, loss, settings, stage="prototypes", callback=callback)
    return network


def _episodes(
    family: TaskFamily, training: MetaTraining, seed: int, device: torch.device
) -> Iterator[Task]:
    """Yields the tasks of each update."""
    for iteration in range(training.iterations):
        drawn = family.sample(training.tasks, stream(seed, "collect tasks", iteration)).to(device)
        generator = stream(seed, "prototypes", iteration)
        for _ in range(training.updates):
            chosen = torch.randint(training.tasks, (training.batch,), generator=generator)
            yield drawn[chosen.to(device)]
