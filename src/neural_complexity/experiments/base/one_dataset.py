"""What the experiments on one large dataset share: data, learners, and the training of NC."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD

from neural_complexity.experiments.base.configs import Basics, check_least
from neural_complexity.experiments.base.few_shot_images import LabelTraining
from neural_complexity.experiments.base.memory import hold_memory
from neural_complexity.experiments.base.training import Head, train_nc
from neural_complexity.learners.networks import image_mlp, resnet
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.collect_splits import SplitCollector
from neural_complexity.meta.executor import Here, Processes
from neural_complexity.meta.training_loop import Moment, tell_moments
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import Tell
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.augment import moved
from neural_complexity.tasks.image_datasets import DATASETS, SingleDataset, load
from neural_complexity.tasks.splits import Splits
from neural_complexity.tasks.store import open_store

__all__ = [
    "LargeConfig",
    "SplitTraining",
    "World",
    "called",
    "describe",
    "large_direct",
    "large_posterior",
    "make_collector",
    "make_recipe",
    "make_splits",
    "make_world",
    "train_large",
]

STORED = ".safetensors"
UNITS = 2048  # images that NC takes its units from


@dataclass(frozen=True, kw_only=True)
class SplitTraining(LabelTraining):
    """An NC for one dataset and its meta-training; the defaults are the paper's for MLP learners.

    `tasks` learners run at a time, all on splits of one size.
    """

    image_layers: int = 4
    """Layers of the image encoder, or stages of a residual one."""
    image_encoder: Literal["conv", "resnet"] = "conv"
    """The image encoder's kind (the paper: resnet when learners are)."""
    M: int = 128
    """Training points that NC sees at a time (the paper does not say)."""
    N: int = 128
    """Validation points that NC sees at a time (the paper does not say)."""
    tasks: int = 4
    """Learners per collection."""
    learner_steps: int = 1000
    """Updates of a collected learner (the paper does not say)."""
    looks: int = 32
    """How often each of them is looked at on its way."""
    smallest: int = 40_000
    """The fewest training points of a split; sizes are drawn between this and the usual one."""
    unlabelled: int = 10_000
    """Validation points whose inputs a collected learner may see."""
    shift: int = 0
    """By how many pixels images are shifted at random while NC learns."""
    flip: bool = False
    """Whether left and right of an image may change places while NC learns."""
    lag: int = 2
    """How many collections the learners are ahead of NC."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "image_layers", "M", "N", "learner_steps", "smallest", "unlabelled")
        check_least(self, 2, "looks")
        check_least(self, 0, "shift", "lag")

    def architecture(self, head: Head) -> dict[str, Any]:
        """Gives NC's arguments for a head."""
        own = {name: getattr(self, name) for name in ("image_layers", "image_encoder")}
        return {**super().architecture(head), **own}


OURS: dict[str, Any] = {
    "observed_loss": True,
    "supervision": "point",
    "warmup": 0.1,
    "decay": True,
    "spread_weights": True,
    "made_up": 0.5,
    "lr": 0.002,
    "self_layers": 0,
    "width": 128,
    "decoder_layers": 2,
    "channels": 48,
    "image_layers": 3,
    "smallest": 1000,
    "unlabelled": 2000,
    "tasks": 2,
    "learner_steps": 300,
    "looks": 16,
    "capacity": 20_000,
    "validation_tasks": 2,
}


def large_posterior(**sizes: Any) -> SplitTraining:
    """Gives what we found to work for the posterior head, at any size."""
    own = {"belief_weight": 1.0, "M": 64, "N": 192, "batch": 1, "shift": 2}
    return SplitTraining(**(OURS | own | sizes))


def large_direct(**sizes: Any) -> SplitTraining:
    """Gives what we found to work for the direct head, at any size."""
    own = {"M": 64, "N": 64, "batch": 32, "decoder_layers": 3, "encoder_layers": 2, "width": 192}
    return SplitTraining(**(OURS | own | sizes))


@dataclass(frozen=True, kw_only=True)
class LargeConfig(Basics):
    """One dataset: learners of all of it, and NCs that are trained on splits of it."""

    dataset: str = "digits"
    """One of digits, mnist, fashion-mnist, kmnist, kmnist-10k, cifar-10, svhn; or a file of your
    own images, NAME.safetensors, as `tasks.arrays` and `tasks.store` make it."""
    data: str = ""
    """The folder of its files; if empty, that of NEURAL_COMPLEXITY_DATA or a cache."""
    train_images: int = 0
    """Training images that are used; all if 0."""
    test_images: int = 0
    """Test images that are used; all if 0."""
    held: int = 5_000
    """Training images that no NC is trained on: NC is scored on them, strengths are tuned on them,
    and they are the unlabelled inputs of inductive regularizing."""
    split_train: int = 40_000
    """Training points of a split."""
    split_test: int = 10_000
    """Validation points of a split."""
    eval_tasks: int = 16
    """Learners on held-out splits, by which NC is scored, of each size."""
    runs: int = 5
    """Learners of the whole dataset, by method."""
    learner: Literal["MLP", "ResNet"] = "MLP"
    """The learner's kind."""
    learner_width: int = 500
    """Hidden units of an MLP, or filters of a ResNet's first stage."""
    learner_blocks: tuple[int, ...] = (2, 2, 2, 2)
    """Blocks of each of a ResNet's stages; this is ResNet-18."""
    steps: int = 20_000
    """Updates of the learner (the paper does not say)."""
    lr: float = 0.01
    """Learning rate of the learner."""
    momentum: float = 0.0
    """Momentum of the learner (the paper speaks of none)."""
    batch: int = 128
    """Training points of a learner's step (the paper does not say)."""
    unlabelled_batch: int = 128
    """Unlabelled points of a regularized learner's step (the paper does not say)."""
    weight: float = 1.0
    """The weight of NC."""
    ramp: float = 0.0
    """The part of training in which the weight of NC rises to that."""
    floor: float = -0.1
    """Predicted gaps below it count as it (appendix C)."""
    shown: int = 1000
    """Training points that the posterior head sees at once."""
    looks: int = 12
    """How often a learner is looked at on its way."""
    judged: int = 10_000
    """Training points by which the training loss is measured, at most."""
    posterior: SplitTraining = field(default_factory=SplitTraining)
    """NC with our head."""
    direct: SplitTraining = field(default_factory=SplitTraining)
    """NC with the paper's head; it takes over the other's image encoder if `share_images`."""
    share_images: bool = False
    """Whether the direct head takes over the posterior head's image encoder, trained no further."""
    workers: int = 1
    """Processes that run learners while NC learns; 0 to take turns in one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dataset not in DATASETS and not self.dataset.endswith(STORED):
            raise ValueError(
                f"dataset must be one of {', '.join(DATASETS)}, or a file *{STORED}, got "
                f"{self.dataset}"
            )
        sizes = ("held", "split_train", "split_test", "learner_width", "batch", "unlabelled_batch")
        check_least(self, 1, *sizes, "steps", "runs", "shown", "judged")
        check_least(self, 0, "train_images", "test_images", "workers")
        check_least(self, 2, "looks")
        if not (self.lr > 0 and 0 <= self.momentum < 1):
            raise ValueError(
                "lr must be positive and momentum from 0 to below 1, got "
                f"{self.lr} and {self.momentum}"
            )
        if not self.weight >= 0 or not 0 <= self.ramp <= 1:
            raise ValueError(
                "weight must not be negative and ramp from 0 to 1, got "
                f"{self.weight} and {self.ramp}"
            )


@dataclass(frozen=True)
class World:
    """A dataset and which of its images serve for what."""

    dataset: SingleDataset
    train: Tensor  # numbers of all training images, in random order
    held: Tensor  # those of them that no NC is trained on
    pool: Tensor  # the others
    test: Tensor  # numbers of the test images

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, channels, height, width = self.dataset.images.pixels.shape
        return channels, height, width

    def task(self, train: Tensor, test: Tensor, copies: int) -> Task:
        """Gives B equal tasks of numbered images, (B, m) and (B, n)."""
        Y = self.dataset.labels.to(train.device)
        columns = (train, Y[train], test, Y[test])
        return Task(*(column.expand(copies, -1) for column in columns))


def make_world(config: LargeConfig) -> World:
    """Loads the dataset of a config and deals out its images.

    Raises:
        ValueError: If there are fewer images than the config asks for.
    """
    stored = config.dataset.endswith(STORED)
    dataset = open_store(config.dataset) if stored else load(config.dataset, config.data or None)
    numbers = {"train_images": dataset.train_numbers, "test_images": dataset.test_numbers}
    for name, own in numbers.items():
        wanted = getattr(config, name)
        if wanted > len(own):
            raise ValueError(
                f"{name} must be at most {len(own)}, all that {config.dataset} has, got {wanted}"
            )
        order = torch.randperm(len(own), generator=stream(config.seed, "deal", name))
        numbers[name] = own[order][: wanted or None].to(config.device)
    train = numbers["train_images"]
    if config.held >= len(train):
        raise ValueError(f"held must be less than the {len(train)} images, got {config.held}")
    return World(dataset, train, train[: config.held], train[config.held :], numbers["test_images"])


def make_splits(config: LargeConfig, training: SplitTraining, world: World) -> Splits:
    """Gives the splits that an NC is trained on."""
    return Splits(
        world.dataset,
        world.pool.cpu(),
        train=config.split_train,
        test=config.split_test,
        M=training.M,
        N=training.N,
    )


def make_recipe(config: LargeConfig, world: World, *, dropout: float = 0.0) -> Recipe:
    """Gives how learners of images, told by number, learn."""
    make: Callable[[], nn.Module]
    classes = world.dataset.images.classes
    if config.learner == "MLP":
        noise = (lambda _: nn.Dropout(dropout)) if dropout else None
        make = partial(image_mlp, world.shape, [config.learner_width], classes, noise=noise)
    else:
        make = partial(
            resnet,
            world.shape,
            classes,
            width=config.learner_width,
            blocks=config.learner_blocks,
            dropout=dropout,
        )
    return Recipe(
        make=make,
        loss=cross_entropy,
        steps=config.steps,
        lr=config.lr,
        optimizer=partial(SGD, momentum=config.momentum, foreach=True),
        look_up=world.dataset.look_up,
    )


def make_collector(config: LargeConfig, head: Head) -> SplitCollector:
    """Makes what lets learners loose for an NC; called once in each process that does."""
    hold_memory()
    world = make_world(config)
    training: SplitTraining = getattr(config, head)
    return SplitCollector(
        make_splits(config, training, world),
        replace(make_recipe(config, world), steps=training.learner_steps),
        seed=config.seed,
        tasks=training.tasks,
        looks=training.looks,
        batch=config.batch,
        smallest=min(training.smallest, config.split_train),
        unlabelled=training.unlabelled,
        shown=config.shown,
        floor=config.floor,
        spread_weights=training.spread_weights,
        frozen=head == "direct" and config.share_images,
        device=config.device,
    )


def train_large(
    config: LargeConfig,
    head: Head,
    world: World,
    *,
    validate: Callable[[NeuralComplexity], float],
    images_from: NeuralComplexity | None = None,
    folder: Path | None = None,
    tell: Tell | None = None,
) -> tuple[NeuralComplexity, list[Moment]]:
    """Meta-trains an NC on splits while other processes run the learners.

    Args:
        config: The settings.
        head: Which head.
        world: The dataset.
        validate: Scores NC on held-out learners.
        images_from: A trained NC whose image encoder is taken over; none if `None`.
        folder: Where the experiment keeps unfinished work; this one's is below, under its name.
        tell: Told about the progress.

    Returns:
        NC and its scores on the way.
    """
    training: SplitTraining = getattr(config, head)
    own = None if folder is None else folder / head
    collector = partial(make_collector, config, head)
    moves = training.shift or training.flip
    engine = (
        Processes(
            collector,
            workers=config.workers,
            folder=None if own is None else own / "collections",
        )
        if config.workers
        else Here(collector())
    )
    with engine:
        return train_nc(
            training,
            head,
            make_splits(config, training, world),
            make_recipe(config, world),
            seed=config.seed,
            device=config.device,
            validate=validate,
            images_from=images_from,
            augment=partial(moved, pixels=training.shift, flip=training.flip) if moves else None,
            engine=engine,
            lag=training.lag,
            units=max(1, UNITS // training.M),
            folder=own,
            watch=tell_moments(tell, head),
        )


def called(config: LargeConfig) -> str:
    """Gives what results call the dataset."""
    return Path(config.dataset).name.removesuffix(STORED)


def describe(config: LargeConfig) -> str:
    """Names dataset and learner, and says where they are smaller than the paper's."""
    images = f" ({config.train_images:,} training images)" if config.train_images else ""
    layers = 2 * sum(config.learner_blocks) + 2  # as ResNet-18 counts them
    small = config.learner == "ResNet" and (config.learner_width, layers) != (64, 18)
    size = f" of {layers} layers, {config.learner_width} filters" if small else ""
    return f"{called(config)}{images}, {config.learner} learner{size}"
