"""What a user would train on images instead of NC: a classifier, and prototypical networks."""

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from neural_complexity import ledger
from neural_complexity.baselines.unrolled import Optimization, optimize
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.nc_loss import Augment
from neural_complexity.meta.trainer import MetaTraining
from neural_complexity.model.attention import soft_k_means
from neural_complexity.model.encoders import ImageEncoder, ResidualEncoder
from neural_complexity.points import PART, Points, indexed, values
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import stream
from neural_complexity.task import Task, TaskFamily

__all__ = ["Classifier", "PrototypicalNetwork"]
__all__ += ["nearest_neighbour_logits", "train_classifier", "train_prototypes"]


class Classifier(nn.Sequential):
    """An image encoder, a hidden layer, and logits: (P, channels, height, width) to (P, C)."""

    def __init__(self, encoder: ImageEncoder | ResidualEncoder, classes: int, width: int) -> None:
        hidden = nn.Linear(encoder.features, width)
        super().__init__(encoder, hidden, nn.ReLU(), nn.Linear(width, classes))

    @torch.no_grad()
    def classify(self, images: Points) -> Tensor:
        """Returns logits of images of a store, (P, C)."""
        return torch.cat([self(images.store(part)) for part in images.indices.split(PART)])


def train_classifier(
    model: Classifier,
    images: Points,
    labels: Tensor,
    training: Optimization,
    *,
    batch: int,
    seed: int,
    augment: Augment | None = None,
    callback: ProgressCallback | None = None,
) -> None:
    """Trains a classifier in place, on images and labels, (P,) each, as NC is trained."""
    encoder: Any = model[0]
    encoder.calibrate(images[:PART].values())
    generator = stream(seed, "classifier")

    def loss(_: int) -> Tensor:
        chosen = torch.randint(len(images), (batch,), generator=generator).to(images.device)
        some = images[chosen]
        ledger.record("train", indexed(some.indices, some.store), labels[chosen])
        X = some.values()
        H = model(X if augment is None else augment(X, generator))
        return cross_entropy(H[None], labels[chosen][None]).mean()

    optimize(model, loss, training, stage="image classifier", callback=callback)


class PrototypicalNetwork(nn.Module):
    """Classifies embedded images by the nearest mean of a class (Snell et al. 2017)."""

    def __init__(self, encoder: ImageEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, task: Task, *, classes: int, rounds: int = 0) -> Tensor:
        """Returns logits of test images, (B, N, C), after rounds of soft k-means on them."""
        E_tr, E_te = self.encoder(values(task.X_tr)), self.encoder(values(task.X_te))
        members = one_hot(task.Y_tr, classes).to(E_tr.dtype)  # (B, M, C)
        means = members.mT @ E_tr / members.sum(dim=1).unsqueeze(-1).clamp(min=1)  # (B, C, E)
        return _closeness(E_te, soft_k_means(E_te, means, heads=1, rounds=rounds))


def nearest_neighbour_logits(E_tr: Tensor, Y_tr: Tensor, E_te: Tensor, *, classes: int) -> Tensor:
    """Returns labels of the nearest of embedded points, (B, M, E), as ones and zeros, (B, N, C)."""
    nearest = _closeness(E_te, E_tr).argmax(dim=-1)  # (B, N)
    return one_hot(Y_tr.gather(1, nearest), classes).to(E_te)


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
    """Trains a prototypical network, with a fresh encoder, on the episodes of an NC's training."""
    network, device = PrototypicalNetwork(encoder), next(encoder.parameters()).device

    @lru_cache(maxsize=1)
    def draw(iteration: int) -> tuple[Task, torch.Generator]:
        tasks = family.sample(training.tasks, stream(seed, "collect tasks", iteration))
        return tasks, stream(seed, "prototypes", iteration)

    def loss(update: int) -> Tensor:
        tasks, generator = draw(update // training.updates)
        chosen = torch.randint(training.tasks, (training.batch,), generator=generator)
        task = tasks[chosen].to(device)
        ledger.record_task("learn", task)
        return cross_entropy(network(task, classes=classes, rounds=rounds), task.Y_te).mean()

    updates = training.iterations * training.updates
    settings = Optimization(updates=updates, lr=training.lr, warmup=training.warmup)
    optimize(network, loss, settings, stage="prototypes", callback=callback)
    return network
