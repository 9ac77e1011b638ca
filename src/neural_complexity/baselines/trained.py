"""Baselines that are trained: MAML, MetaReg, a classifier of images and prototypical networks."""

import copy
import math
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from neural_complexity import ledger
from neural_complexity.learners.batched import PlacedLearner, stack
from neural_complexity.learners.fit import Recipe, unroll
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.nc_loss import Augment
from neural_complexity.meta.optimize import Optimization, Status, optimize
from neural_complexity.meta.trainer import MetaTraining
from neural_complexity.model.attention import soft_k_means
from neural_complexity.model.encoders import ImageEncoder, ResidualEncoder
from neural_complexity.points import PART, Points, indexed, values
from neural_complexity.progress import ProgressCallback
from neural_complexity.regularizers.penalties import weighted_l1_penalty
from neural_complexity.seeding import seeded, stream
from neural_complexity.task import Task, TaskFamily
from neural_complexity.workspace import Workspace

__all__ = ["Classifier", "nearest_neighbour_logits", "prototype_logits"]
__all__ += ["train_classifier", "train_maml", "train_metareg", "train_prototypes"]


def train_maml(
    family: TaskFamily,
    recipe: Recipe,
    training: Optimization,
    *,
    seed: int,
    device: str = "cpu",
    work: Workspace | None = None,
    callback: ProgressCallback | None = None,
) -> tuple[Recipe, list[Status]]:
    """Learns where to start: returns the recipe for quick learners (MAML, Finn et al. 2017)."""
    with seeded(seed, "MAML weights"):
        module = recipe.make().to(device)
    trained = tuple(name for name, p in module.named_parameters() if p.requires_grad)

    def loss(update: int) -> Tensor:
        task = family.sample(training.tasks, stream(seed, "MAML tasks", update)).to(device)
        ledger.record_task("learn", task)
        own = [*module.named_parameters(), *module.named_buffers()]
        state = {name: tensor.expand(training.tasks, *tensor.shape) for name, tensor in own}
        start = PlacedLearner(module, state, trained)
        h = unroll(start, task, recipe, steps=training.steps)
        return recipe.loss(h(task.X_te), task.Y_te).mean(dim=1).mean()

    own = work and work.sub("maml", family, recipe, training, seed)
    # Not fused, as the committed results were made: second-order gradients amplify its rounding.
    history = optimize(module, loss, replace(training, fused=False), "MAML", own, callback)
    return replace(recipe, make=partial(copy.deepcopy, module)), history


def train_metareg(
    family: TaskFamily,
    recipe: Recipe,
    training: Optimization,
    *,
    seed: int,
    device: str = "cpu",
    work: Workspace | None = None,
    callback: ProgressCallback | None = None,
) -> list[Tensor]:
    """Meta-learns the weights of `weighted_l1_penalty` (MetaReg, Balaji et al. 2018)."""
    shapes = [p.shape[1:] for p in stack(recipe.make, 1, stream(seed, "metareg")).parameters()]
    weights = nn.ParameterList(torch.zeros(shape, device=device) for shape in shapes)

    def loss(update: int) -> Tensor:
        task = family.sample(training.tasks, stream(seed, "metareg tasks", update)).to(device)
        ledger.record_task("learn", task)
        learners = stack(recipe.make, len(task), stream(seed, "metareg learners", update))
        h = learners.to(device).placed()
        penalty, losses = weighted_l1_penalty(list(weights)), []
        for _ in range(recipe.steps):
            h = unroll(h, task, recipe, steps=1, regularizer=penalty)
            losses.append(recipe.loss(h(task.X_te), task.Y_te).mean())
        # Over all steps: this serves learners that stop early as well as those that go on.
        return torch.stack(losses).mean()

    own = work and work.sub("metareg", family, recipe, training, seed)
    # Not fused: as in MAML.
    optimize(weights, loss, replace(training, fused=False), "MetaReg", own, callback)
    return [weight.detach() for weight in weights]


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
    augment: Augment,
    callback: ProgressCallback | None = None,
) -> None:
    """Trains a classifier in place, on images and labels, (P,) each, as NC is trained."""
    encoder: Any = model[0]
    encoder.calibrate(images[:PART].values())
    generator = stream(seed, "classifier")

    def loss(_: int) -> Tensor:
        chosen = torch.randint(len(images), (batch,), generator=generator).to(images.device)
        X, Y = indexed(images.indices[chosen], images.store), labels[chosen]
        ledger.record("train", X, Y)
        return cross_entropy(model(augment(values(X), generator))[None], Y[None]).mean()

    optimize(model, loss, training, stage="image classifier", callback=callback)


def prototype_logits(encoder: ImageEncoder, task: Task, *, classes: int, rounds: int = 0) -> Tensor:
    """Compares test images with the mean of each class (Snell et al. 2017), as logits (B, N, C)."""
    E_tr, E_te = encoder(values(task.X_tr)), encoder(values(task.X_te))
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
) -> None:
    """Trains an encoder in place for `prototype_logits`, on the episodes of an NC's training."""
    device = next(encoder.parameters()).device

    @lru_cache(maxsize=1)
    def draw(iteration: int) -> tuple[Task, torch.Generator]:
        tasks = family.sample(training.tasks, stream(seed, "collect tasks", iteration))
        return tasks, stream(seed, "prototypes", iteration)

    def loss(update: int) -> Tensor:
        tasks, generator = draw(update // training.updates)
        chosen = torch.randint(training.tasks, (training.batch,), generator=generator)
        task = tasks[chosen].to(device)
        ledger.record_task("learn", task)
        H_te = prototype_logits(encoder, task, classes=classes, rounds=rounds)
        return cross_entropy(H_te, task.Y_te).mean()

    updates = training.iterations * training.updates
    settings = Optimization(updates=updates, lr=training.lr, warmup=training.warmup)
    optimize(encoder, loss, settings, stage="prototypes", callback=callback)
