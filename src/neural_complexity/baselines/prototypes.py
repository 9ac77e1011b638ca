"""Prototypical networks (Snell et al. 2017): what a user would try instead of NC."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from neural_complexity.losses import cross_entropy
from neural_complexity.meta.trainer import lr_factor
from neural_complexity.model.attention import gather
from neural_complexity.model.encoders import ImageEncoder
from neural_complexity.seeding import stream
from neural_complexity.task import IndexedFamily, Task

__all__ = ["PrototypicalNetwork", "nearest_neighbour_logits", "train_prototypes"]


class PrototypicalNetwork(nn.Module):
    """Gives each class the mean of its embedded images, and each image the class of nearest mean.

    Args:
        encoder: Embeds images.
    """

    def __init__(self, encoder: ImageEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, task: Task, *, classes: int, rounds: int = 0) -> Tensor:
        """Classifies the test images of B tasks.

        Args:
            task: The tasks; the test labels are not looked at.
            classes: How many classes there are, C.
            rounds: How often means move to the test images that choose them, as NC's keys can:
                then the test images classify each other.

        Returns:
            Logits, (B, N, C).
        """
        E_tr, E_te = self.encoder(task.X_tr), self.encoder(task.X_te)
        members = one_hot(task.Y_tr, classes).to(E_tr.dtype)  # (B, M, C)
        means = members.mT @ E_tr / members.sum(dim=1).unsqueeze(-1).clamp(min=1)  # (B, C, E)
        means = gather(E_te, means, heads=1, rounds=rounds)
        return _closeness(E_te, means)


def nearest_neighbour_logits(E_tr: Tensor, Y_tr: Tensor, E_te: Tensor, *, classes: int) -> Tensor:
    """Gives each test point the label of the nearest training point, in whatever embedding.

    Args:
        E_tr: Embedded training points, (B, M, features).
        Y_tr: Their labels, (B, M).
        E_te: Embedded test points, (B, N, features).
        classes: How many classes there are, C.

    Returns:
        One for the class, zero for the others, (B, N, C).
    """
    nearest = _closeness(E_te, E_tr).argmax(dim=-1)  # (B, N)
    named = one_hot(Y_tr.gather(1, nearest), classes)
    return torch.zeros_like(E_te[..., :1]) + named


def _closeness(Q: Tensor, K: Tensor) -> Tensor:
    """Gives minus half the squared distance over the root of the width, (B, N, M)."""
    half = 0.5 * (Q.square().sum(dim=-1).unsqueeze(-1) + K.square().sum(dim=-1).unsqueeze(-2))
    return (Q @ K.mT - half) / math.sqrt(Q.shape[-1])


def train_prototypes(
    encoder: ImageEncoder,
    family: IndexedFamily,
    *,
    seed: int,
    iterations: int,
    updates: int,
    tasks: int,
    batch: int,
    lr: float,
    warmup: float,
    classes: int,
    rounds: int = 0,
    watch: Callable[[int, float], None] | None = None,
) -> PrototypicalNetwork:
    """Trains a prototypical network on the episodes that NC is trained on with the same arguments.

    Args:
        encoder: Freshly made, trained in place.
        family: Where tasks come from.
        seed: The seed of NC's training.
        iterations: How often new tasks are drawn.
        updates: Updates per draw.
        tasks: Tasks per draw.
        batch: Tasks per update.
        lr: The peak learning rate of Adam.
        warmup: The part of training in which the learning rate rises; then it falls to zero.
        classes: How many classes there are.
        rounds: See `PrototypicalNetwork`; the network is trained to be used with as many.
        watch: Told after each iteration how many are done, and the last loss.
    """
    network = PrototypicalNetwork(encoder)
    device = next(encoder.parameters()).device
    adam = torch.optim.Adam(network.parameters(), lr=lr, fused=True)
    for iteration in range(iterations):
        drawn = family.draw(tasks, stream(seed, "collect tasks", iteration)).to(device)
        generator = stream(seed, "prototypes", iteration)
        for update in range(updates):
            progress = (iteration + update / updates) / iterations
            for group in adam.param_groups:
                group["lr"] = lr * lr_factor(progress, warmup=warmup, decay=True)
            kept = drawn[torch.randint(tasks, (batch,), generator=generator).to(device)]
            X_tr, X_te = family.look_up(kept.X_tr), family.look_up(kept.X_te)
            task = Task(X_tr, kept.Y_tr, X_te, kept.Y_te)
            logits = network(task, classes=classes, rounds=rounds)
            loss = cross_entropy(logits, kept.Y_te).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
        if watch is not None:
            watch(iteration + 1, loss.item())
    return network
