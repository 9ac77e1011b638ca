"""Learners of one image dataset: the methods they are trained with, and NC's view of them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import SGD

from neural_complexity.experiments.base.networks import HEADS
from neural_complexity.experiments.base.one_dataset import ImageConfig, ImageData
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.training import Head
from neural_complexity.learners.fit import Regularizer
from neural_complexity.learners.mixup import mixup
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import SmoothedCrossEntropy, cross_entropy
from neural_complexity.model.cached import Encoder, cache, embed_store, subsample
from neural_complexity.model.judgement import judge_minibatches
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import Embeddings, raw
from neural_complexity.regularizers.nc import minibatch_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task

__all__ = [
    "BASELINES",
    "BELIEFS",
    "CNN",
    "DISTILLED",
    "EARLY",
    "NC_METHODS",
    "PLAIN",
    "EmbeddedNC",
    "ImageMethod",
    "baseline_recipe",
]

PART = 2000  # test points that NC sees at a time: bounds memory


@dataclass(frozen=True)
class ImageMethod:
    """What learners are trained with, or what predicts without one."""

    method: str
    head: Head | None = None
    mode: Literal["transductive", "inductive"] | None = None  # that NC judges learners on
    times: int | None = None  # the learner's capacity, where it differs between methods

    @property
    def keys(self) -> dict[str, Any]:
        """The method as keys of rows."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def label(self) -> str:
        """Its name in tables."""
        name = self.method if self.head is None else f"{self.method} {self.head}"
        name += f" ({self.times}x capacity)" if self.times not in (None, 1) else ""
        return name if self.mode is None else f"{name}, {self.mode}"

    @classmethod
    def of(cls, row: Row) -> "ImageMethod":
        """Returns the method of a row."""
        names = [field.name for field in fields(cls)]
        keys: dict[str, Any] = {name: row.keys[name] for name in names if name in row.keys}
        return cls(**keys)


PLAIN = ImageMethod("cross-entropy")
EARLY = ImageMethod("early stopping")
NC_METHODS = tuple(
    ImageMethod("NC", head, mode) for head in HEADS for mode in ("transductive", "inductive")
)
DISTILLED = ImageMethod("distilled from the CNN", mode="transductive")
# Without a learner.
BELIEFS, CNN = (
    ImageMethod("NC posterior, its beliefs"),
    ImageMethod("the same CNN, trained directly"),
)
# Other regularizers, by the field of the config that holds their strengths.
BASELINES = {
    "l2": ImageMethod("L2"),
    "smoothing": ImageMethod("label smoothing"),
    "mixup": ImageMethod("mixup"),
    "dropout": ImageMethod("dropout"),
    "sam": ImageMethod("SAM"),
}


def baseline_recipe(data: ImageData, name: str, strength: float) -> Recipe:
    """Returns how learners learn with one of `BASELINES` at a strength."""
    recipe = data.recipe()
    match name:
        case "l2":
            sgd = partial(SGD, momentum=data.config.momentum, weight_decay=strength, foreach=True)
            return replace(recipe, optimizer=sgd)
        case "smoothing":
            return replace(recipe, loss=SmoothedCrossEntropy(strength))
        case "mixup":
            return replace(recipe, objective=mixup(cross_entropy, strength))
        case "dropout":
            return data.recipe(dropout=strength)
        case "sam":
            return replace(recipe, sharpness=strength)
    raise ValueError(f"name must be one of {', '.join(BASELINES)}, got {name}")


@dataclass(frozen=True)
class EmbeddedNC:
    """An NC and its embeddings of a dataset's images."""

    nc: NeuralComplexity
    config: ImageConfig
    embeddings: Embeddings

    @classmethod
    def of(
        cls,
        nc: NeuralComplexity,
        data: ImageData,
        *,
        tasks: Sequence[Task] = (),
        embeddings: Embeddings | None = None,
    ) -> "EmbeddedNC":
        """Embeds what NC will see of tasks, or all images, unless embeddings are at hand."""
        if embeddings is None:
            seen = [_context_points(nc, data.config, task) for task in tasks]
            sets = [raw(X).flatten() for task in seen for X in (task.X_tr, task.X_te)]
            indices = torch.cat(sets or [data.train, data.test])
            embeddings = embed_store(nc, data.dataset, indices)
        return cls(nc, data.config, embeddings)

    def encoder(self, task: Task) -> Encoder:
        """Returns what NC knows of the points of tasks, whatever h is."""
        return cache(self.nc, _context_points(self.nc, self.config, task), self.embeddings)

    def beliefs(self, task: Task) -> Tensor:
        """Returns the posterior head's beliefs about test labels as logits, (B, n, C)."""
        return self.nc.believe(self.encoder(task)(task)).prediction

    def penalty(self, encoder: Encoder) -> Regularizer:
        """Returns NC as a regularizer of learners."""
        config = self.config
        return minibatch_penalty(self.nc, encoder, weight=config.weight, floor=config.floor)

    def gaps(self, encoder: Encoder, snapshot: Snapshot) -> Tensor:
        """Predicts the gap of learners from their predictions on all points, (B,)."""
        M, N = snapshot.H_tr.shape[1], PART
        if self.nc.head.sees_predictions:  # of as many points as when it was trained
            training = self.config.training(self.nc.head.name)
            M, N = training.M, training.N
        return judge_minibatches(self.nc, encoder, snapshot, M=M, N=N)


def _context_points(nc: NeuralComplexity, config: ImageConfig, task: Task) -> Task:
    """Returns what NC sees at once: some training points, unless it sees minibatches of them."""
    if nc.head.sees_predictions:
        return task
    return subsample(task, config.shown, stream(config.seed, "shown"))
