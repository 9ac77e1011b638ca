"""One image dataset: settings, its parts, its learners, and the NCs that are trained on it."""

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.optim import SGD

from neural_complexity.cores import hold_memory
from neural_complexity.experiments.base.config import POSITIVE, AtLeast, BaseConfig, Between
from neural_complexity.experiments.base.few_shot_images import LabelTraining
from neural_complexity.experiments.base.training import Head, Part, open_executor
from neural_complexity.learners.fit import Recipe, Regularizer
from neural_complexity.learners.networks import image_mlp, resnet
from neural_complexity.losses import cross_entropy, smoothed_cross_entropy
from neural_complexity.meta.bank import Collection
from neural_complexity.meta.collect import Job, SplitCollector
from neural_complexity.model.cached import Encoder, cache, embed_store, subsample
from neural_complexity.model.judgement import judge_minibatches
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import Embeddings, indexed, raw
from neural_complexity.regularizers.nc import minibatch_penalty
from neural_complexity.regularizers.penalties import mixup
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.image_datasets import DATASETS, load
from neural_complexity.tasks.images import SingleDataset, moved, open_store
from neural_complexity.tasks.splits import Splits

__all__ = ["PART", "PLAINLY", "Choice", "EmbeddedNC", "ImageConfig", "ImageData"]
__all__ += ["SingleNetworksConfig", "Size", "Sizes", "SplitTraining", "augmented", "collect"]
__all__ += ["load_data", "split_training"]

STORED = ".safetensors"
PART = 2000  # points that all learners predict, or that NC sees, at a time: bounds memory
Size = Annotated[int, AtLeast(1)]
Sizes = Annotated[tuple[int, ...], AtLeast(1)]
Count = Annotated[int, AtLeast(0)]


@dataclass(frozen=True, kw_only=True)
class SplitTraining(LabelTraining):
    """An NC for one dataset and its meta-training; defaults are the paper's for MLP learners."""

    image_layers: Size = 4  # Layers of the image encoder, or stages of a residual one.
    image_encoder: Literal["conv", "resnet"] = "conv"  # Its kind (paper: resnet if learners are).
    M: Size = 128  # Training points that NC sees at a time (the paper does not say).
    N: Size = 128  # Validation points that NC sees at a time (the paper does not say).
    tasks: Size = 4  # Learners per collection, all on splits of one size.
    learner_steps: Size = 1000  # Updates of a collected learner (the paper does not say).
    looks: Annotated[int, AtLeast(2)] = 32  # Snapshots of each of them.
    smallest: Size = 40_000  # The fewest training points of a split; sizes go up to the usual one.
    unlabelled: Size = 10_000  # Validation points whose inputs a collected learner may see.
    shift: Count = 0  # By how many pixels images are shifted at random while NC learns.
    flip: bool = False  # Whether left and right of an image may change places while NC learns.
    lag: Count = 2  # How many collections the learners are ahead of NC.


OURS: dict[str, Any] = {"observed_loss": True, "supervision": "point", "spread_weights": True}
OURS |= {"warmup": 0.1, "decay": True, "lr": 0.002, "made_up": 0.5, "validation_tasks": 2}
OURS |= {"self_layers": 0, "width": 128, "decoder_layers": 2, "channels": 48, "image_layers": 3}
OURS |= {"smallest": 1000, "unlabelled": 2000, "tasks": 2, "learner_steps": 300, "looks": 16}
OURS |= {"capacity": 20_000, "M": 64, "query_skip": True}
OWN: dict[Head, dict[str, Any]] = {
    "posterior": {"belief_weight": 1.0, "N": 192, "batch": 1, "shift": 2},
    "direct": {"N": 64, "batch": 32, "decoder_layers": 3, "encoder_layers": 2, "width": 192},
}


def split_training(head: Head, **sizes: Any) -> SplitTraining:
    """Returns what we found to work for a head, at any size."""
    return SplitTraining(**(OURS | OWN[head] | sizes))


@dataclass(frozen=True, kw_only=True)
class ImageConfig(BaseConfig):
    """One dataset: learners of all of it, and NCs that are trained on splits of it."""

    dataset: str = "digits"
    """One of digits, mnist, fashion-mnist, kmnist, kmnist-10k, cifar-10, svhn; or a file of your
    own images, NAME.safetensors, as `tasks.images.from_arrays` makes it."""
    data: str = ""  # The folder of its files; if empty, that of NEURAL_COMPLEXITY_DATA or a cache.
    train_images: Count = 0  # Training images that are used; all if 0.
    test_images: Count = 0  # Test images that are used; all if 0.
    held: Size = 5_000
    """Training images that no NC is trained on: for scores, tuning, and inductive regularizing."""
    split_train: Size = 40_000  # Training points of a split.
    split_test: Size = 10_000  # Validation points of a split.
    eval_tasks: Annotated[int, AtLeast(2)] = 16  # Learners that NC is scored on, of each size.
    runs: Size = 5  # Learners of the whole dataset, by method.
    learner: Literal["MLP", "ResNet"] = "MLP"  # The learner's kind.
    learner_width: Size = 500  # Hidden units of an MLP, or filters of a ResNet's first stage.
    learner_blocks: tuple[int, ...] = (2, 2, 2, 2)  # Blocks by stage of a ResNet: ResNet-18's.
    steps: Size = 20_000  # Updates of the learner (the paper does not say).
    lr: Annotated[float, POSITIVE] = 0.01  # Learning rate of the learner.
    momentum: Part = 0.0  # Momentum of the learner (the paper does not say).
    warmup: Part = 0.0  # The part of training in which the learner's learning rate rises.
    decay: bool = False  # Whether it then falls to zero along a cosine.
    batch: Size = 128  # Training points of a learner's step (the paper does not say).
    unlabelled_batch: Size = 128  # Unlabelled points of a step with NC (the paper does not say).
    weight: Annotated[float, AtLeast(0)] = 1.0  # The weight of NC.
    ramp: Annotated[float, Between(0, 1)] = 0.0  # The part of training in which NC's weight rises.
    floor: float = -0.1  # Predicted gaps below it count as it (appendix C).
    shown: Size = 1000  # Training points that the posterior head sees at once.
    looks: Annotated[int, AtLeast(2)] = 12  # Snapshots of each learner.
    judged: Size = 10_000  # Training points by which the training loss is measured, at most.
    posterior: SplitTraining = field(default_factory=SplitTraining)  # NC with our head.
    direct: SplitTraining = field(default_factory=SplitTraining)  # NC with the paper's head.
    share_images: bool = False  # Whether the direct head has the posterior's image encoder, frozen.
    workers: Count = 1  # Processes that run learners while NC learns; 0 to take turns in one.
    executor: str = ""
    """A cluster in their place: a scheduler of Dask (tcp://host:8786), or Ray (ray://host:10001, or
    ray for the one that it finds)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dataset not in DATASETS and not self.dataset.endswith(STORED):
            known = f"{', '.join(DATASETS)}, or a file *{STORED}"
            raise ValueError(f"dataset must be one of {known}, got {self.dataset}")
        for name, value in vars(self).items():
            if value == ():
                raise ValueError(f"{name} must hold at least one number, got none")

    def open_executor(self) -> AbstractContextManager[Executor | None]:
        """Returns where learners run while NC learns, if not in this process."""
        return open_executor(self.workers, self.executor)

    def chunks(self, runs: int) -> list[range]:
        """Returns which learners are trained together: convolutions are faster one by one."""
        return [range(runs)] if self.learner == "MLP" else [range(i, i + 1) for i in range(runs)]

    @property
    def keys(self) -> dict[str, Any]:
        """Dataset and learner as keys of rows, with what is smaller than in the paper."""
        layers = 2 * sum(self.learner_blocks) + 2  # as ResNet-18 counts them
        small = self.learner == "ResNet" and (self.learner_width, layers) != (64, 18)
        size = f" of {layers} layers, {self.learner_width} filters" if small else ""
        part = {"train_images": self.train_images} if self.train_images else {}
        return {"dataset": Path(self.dataset).stem, **part, "learner": f"{self.learner}{size}"}


@dataclass(frozen=True, kw_only=True)
class SingleNetworksConfig(ImageConfig):
    """An experiment with the NCs of a run of `single`, whose training was that run's."""

    networks: str = ""  # The folder of a finished run of `single` on the same images, for its NCs.

    @classmethod
    def like(cls, preset: Callable[[], ImageConfig], **changes: Any) -> Self:
        """Returns the settings that both have in common, with changes."""
        config = preset()
        return cls(**{f.name: getattr(config, f.name) for f in fields(ImageConfig)} | changes)


class Choice(NamedTuple):
    """How learners learn, where it is chosen for a baseline."""

    strength: float = 0.0  # of the baseline
    rate: float = 1.0  # the learning rate, as a multiple of the config's
    augment: bool = False  # whether images change as they do while NC's image encoder learns

    @property
    def label(self) -> str:
        """The choice in words."""
        words = [f"{self.strength:g}"] if self.strength else []
        words += [f"lr x {self.rate:g}"] if self.rate != 1 else []
        return ", ".join([*words, *["augmented"] * self.augment]) or "as it is"


PLAINLY = Choice()


def augmented(pixels: int, flip: bool, X: Tensor) -> Tensor:
    """Changes images, (B, M, channels, height, width), at random, drawn as noise layers do."""
    each = moved(X.flatten(0, 1), torch.default_generator, pixels=pixels, flip=flip)
    return each.reshape(X.shape)


@dataclass(frozen=True)
class ImageData:
    """A dataset, and the indices of the images that serve for each purpose."""

    config: ImageConfig
    dataset: SingleDataset
    train: Tensor  # all training images, in random order
    held: Tensor  # those of them that no NC is trained on
    pool: Tensor  # the others
    test: Tensor

    def task(self, train: Tensor, test: Tensor, copies: int = 1) -> Task:
        """Returns B tasks of images, by index, from (m,) or (B, m) and (n,) or (B, n) of them."""
        train, test = (part.expand(copies, -1) for part in (train, test))
        X_tr, X_te = (indexed(part, self.dataset) for part in (train, test))
        Y = self.dataset.labels.to(train.device)
        return Task(X_tr, Y[train], X_te, Y[test])

    def splits(self, head: Head) -> Splits:
        """Returns the splits that an NC is trained on."""
        config, training = self.config, getattr(self.config, head)
        sizes = {"train": config.split_train, "test": config.split_test}
        return Splits(self.dataset, self.pool.cpu(), **sizes, M=training.M, N=training.N)

    def subsets(
        self, source: Tensor, test: Tensor, size: int, runs: int, generator: torch.Generator
    ) -> tuple[Task, Task]:
        """Draws tasks with random training sets of `source`: to learn from, and to evaluate on."""
        n = len(source)
        if size > n:
            raise ValueError(f"sizes must be at most the {n} images there are, got {size}")
        keys = torch.rand(runs, n, generator=generator)
        chosen = source[keys.topk(size, dim=1).indices.to(source.device)]
        judged = chosen[:, : self.config.judged]
        return self.task(chosen, test, runs), self.task(judged, test, runs)

    def recipe(self, baseline: str = "", own: Choice = PLAINLY) -> Recipe:
        """Returns how learners learn, plainly or with a baseline as it was chosen."""
        config, images, width = self.config, self.dataset.images, self.config.learner_width
        shape = tuple(images.pixels.shape[1:])  # channels, height and width
        strength, training = own.strength, config.posterior
        dropout = strength if baseline == "dropout" else 0.0
        make: Callable[[], nn.Module]
        if config.learner == "MLP":
            noise = (lambda _: nn.Dropout(dropout)) if dropout else None
            make = partial(image_mlp, shape, [width], images.classes, noise=noise)
        else:
            size: dict[str, Any] = {"width": width, "blocks": config.learner_blocks}
            make = partial(resnet, shape, images.classes, **size, dropout=dropout)
        decay: dict[str, Any] = {"weight_decay": strength} if baseline == "l2" else {}
        return Recipe(
            make=make,
            loss=smoothed_cross_entropy(strength) if baseline == "smoothing" else cross_entropy,
            steps=config.steps,
            lr=own.rate * config.lr,
            warmup=config.warmup,
            decay=config.decay,
            augment=partial(augmented, training.shift, training.flip) if own.augment else None,
            optimizer=partial(SGD, momentum=config.momentum, **decay, foreach=True),
            objective=mixup(cross_entropy, strength) if baseline == "mixup" else None,
            sharpness=strength if baseline == "sam" else 0.0,
        )


def load_data(config: ImageConfig) -> ImageData:
    """Loads the dataset of a config and divides its images."""
    stored = Path(config.dataset).suffix == STORED
    dataset = open_store(config.dataset) if stored else load(config.dataset, config.data or None)
    indices = {"train_images": dataset.train_indices, "test_images": dataset.test_indices}
    for name, own in indices.items():
        wanted, n = getattr(config, name), len(own)
        if wanted > n:
            most = f"{n}, all that {config.dataset} has"
            raise ValueError(f"{name} must be at most {most}, got {wanted}")
        order = torch.randperm(n, generator=stream(config.seed, "deal", name))
        indices[name] = own[order][: wanted or None].to(config.device)
    train, held = indices["train_images"], config.held
    if held >= len(train):
        raise ValueError(f"held must be less than the {len(train)} images, got {held}")
    return ImageData(config, dataset, train, train[:held], train[held:], indices["test_images"])


@lru_cache(maxsize=1)
def _make_collector(config: ImageConfig, head: Head, seed: int) -> SplitCollector:
    """Returns the collector of snapshots for an NC, once in each process that collects."""
    hold_memory()
    data, training = load_data(config), getattr(config, head)
    own = {n: getattr(training, n) for n in ("tasks", "looks", "unlabelled", "spread_weights")}
    own |= {name: getattr(config, name) for name in ("batch", "device")}
    return SplitCollector(
        **own,
        seed=seed,
        floor=None,  # the paper's is for final learners alone
        splits=data.splits(head),
        recipe=replace(data.recipe(), steps=training.learner_steps),
        smallest=min(training.smallest, config.split_train),
        context_size=config.shown,
        frozen=head == "direct" and config.share_images,
    )


def collect(
    config: ImageConfig, head: Head, seed: int, nc: NeuralComplexity, job: Job
) -> Collection:
    """Collects snapshots for an NC, whose meta-training has a seed of its own."""
    return _make_collector(config, head, seed)(nc, job)


class EmbeddedNC:
    """An NC and its embeddings: those known, or of what it will see of tasks, or of all images."""

    def __init__(
        self, nc: NeuralComplexity, data: ImageData, known: Embeddings | None = None, *tasks: Task
    ) -> None:
        self.nc, self.config = nc, data.config
        if known is None:
            seen = [X for task in map(self._seen, tasks) for X in (task.X_tr, task.X_te)]
            indices = torch.cat([raw(X).flatten() for X in seen] or [data.train, data.test])
            known = embed_store(nc, data.dataset, indices)
        self.embeddings = known

    def _seen(self, task: Task) -> Task:
        """Returns what NC sees at once: some training points, unless it sees minibatches."""
        if self.nc.head.sees_predictions:
            return task
        return subsample(task, self.config.shown, stream(self.config.seed, "shown"))

    def encoder(self, task: Task) -> Encoder:
        """Returns what NC knows of the points of tasks, whatever h is."""
        return cache(self.nc, self._seen(task), self.embeddings)

    def penalty(self, encoder: Encoder) -> Regularizer:
        """Returns NC as a regularizer of learners."""
        config = self.config
        return minibatch_penalty(self.nc, encoder, weight=config.weight, floor=config.floor)

    def gaps(self, encoder: Encoder, snapshot: Snapshot) -> Tensor:
        """Predicts the gap of learners from their predictions on all points, (B,)."""
        M, N = snapshot.H_tr.shape[1], PART
        if self.nc.head.sees_predictions:  # of as many points as when it was trained
            training = getattr(self.config, self.nc.head.name)
            M, N = training.M, training.N
        return judge_minibatches(self.nc, encoder, snapshot, M=M, N=N)
