"""How an experiment meta-trains one NC, as part of its config."""

import math
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Annotated, Any, Literal

import torch

from neural_complexity import ledger
from neural_complexity.experiments.base.config import POSITIVE, AtLeast, Between, Checked, Count
from neural_complexity.learners.fit import Recipe, Trajectory, train_learners
from neural_complexity.meta.executor import CollectionQueue, ProcessPool, connect
from neural_complexity.meta.nc_loss import Augment, TrainingInputs
from neural_complexity.meta.optimize import Status
from neural_complexity.meta.scores import r_squared
from neural_complexity.meta.trainer import MetaLearner, MetaTraining, meta_train
from neural_complexity.model.architecture import Architecture
from neural_complexity.model.cached import embed_store
from neural_complexity.model.judgement import judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import Embeddings, Points
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import seeded, stream
from neural_complexity.task import TaskFamily
from neural_complexity.workspace import Workspace

__all__ = ["PAPERS", "Head", "Part", "Setup", "Training", "minutes", "ours"]
__all__ += ["open_executor", "train_network", "validation_r2"]

Head = Literal["posterior", "direct"]
Part = Annotated[float, Between(0, 1, open_end=True)]
# Of one head alone.
SWITCHES = {"pool_first": "direct", "loss_conditioning": "direct"}


def open_executor(workers: int, address: str = "") -> AbstractContextManager[Executor | None]:
    """Returns processes of this machine, or a cluster at an address; `None` for neither."""
    if address:
        return connect(address)
    return ProcessPool(workers) if workers else nullcontext()


@dataclass(frozen=True, kw_only=True)
class Training(Checked):
    """An NC and its meta-training; the defaults are the paper's for the sinusoid (appendix C)."""

    width: Count = 1024  # Width d of every layer of NC.
    heads: Count = 8  # Attention heads (the paper does not say).
    encoder_layers: Count = 3  # n_enc.
    decoder_layers: Count = 3  # n_dec.
    query_skip: bool = False  # Whether the decoder also sees the test point's own embedding.
    observed_loss: bool = False  # Direct head: the training loss is subtracted, not predicted.
    pool_first: bool = True  # Direct head: whether test points are averaged before decoding.
    scale_by_width: bool = True  # Attention divides by the root of the whole width (official code).
    supervision: Literal["point", "set"] = "set"  # One target per test point, or learner (paper).
    belief_weight: Annotated[float, AtLeast(0)] = 0.0  # Posterior head: labels' weight beside gaps.
    iterations: Count = 5000  # Collections (the paper does not say).
    updates: Count = 10  # NC updates per collection (the paper does not say).
    tasks: Count = 512  # New tasks per collection (the paper does not say).
    batch: Count = 512  # Bank rows per NC update, bs.
    lr: Annotated[float, POSITIVE] = 0.0005  # Adam's learning rate, or its peak.
    warmup: Part = 0.0  # The part of training in which the learning rate rises.
    decay: bool = False  # Whether the learning rate then falls to zero along a cosine.
    ramp: Part = 0.5  # The part in which the weight of NC rises to 1 (the paper does not say).
    spread_weights: bool = False  # Whether each learner draws a weight below the scheduled one.
    capacity: Count = 1_000_000  # Rows of the memory bank (the paper does not say).
    validation_tasks: Count = 512  # Other tasks, on whose learners NC is scored on its way.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            got = f"width={self.width}, heads={self.heads}"
            raise ValueError(f"width must be a multiple of heads, got {got}")

    def architecture(self, head: Head) -> dict[str, Any]:
        """Returns the fields of NC's `Architecture` for a head, without the other's switches."""
        names = [f.name for f in fields(Architecture) if SWITCHES.get(f.name, head) == head]
        return {"head": head} | {name: getattr(self, name) for name in names if hasattr(self, name)}

    def learning(self) -> dict[str, Any]:
        """Returns the fields of `MetaTraining`."""
        names = [f.name for f in fields(MetaTraining) if hasattr(self, f.name)]
        return {name: getattr(self, name) for name in names}


def ours(**sizes: Any) -> Training:
    """Returns what works better than the paper's wiring, at any size: docs/deviations.md."""
    wiring: dict[str, Any] = {"query_skip": True, "observed_loss": True, "pool_first": False}
    wiring |= {"scale_by_width": False, "supervision": "point", "belief_weight": 1.0, "heads": 4}
    wiring |= {"lr": 0.003, "warmup": 0.1, "decay": True, "spread_weights": True}
    return Training(**(wiring | sizes))


PAPERS = Training()
minutes = partial(ours, width=128, batch=128, updates=32, capacity=150_000)  # of one processor


@dataclass(frozen=True)
class Setup:
    """What an NC is meta-trained on."""

    family: TaskFamily
    recipe: Recipe
    seed: int  # the one seed of all draws
    device: str
    start: NeuralComplexity | None = None  # goes on from a copy of it; of the same architecture
    # Its image encoder is taken over and stays as it is, so that each image is embedded once.
    images_from: NeuralComplexity | None = None
    embeddings: Embeddings | None = field(default=None, compare=False)  # of all images, if made
    augment: Augment | None = None  # changes images at random while NC learns from them
    units: int = 0  # tasks that NC takes its units from; 0 for 4,096, or 128 of images
    collections: CollectionQueue | None = field(default=None, compare=False)

    def validation_learners(self, tasks: int = 512) -> Trajectory:
        """Trains the held-out learners on which NC is scored on its way."""
        task = self.family.sample(tasks, stream(self.seed, "validation tasks")).to(self.device)
        with ledger.choosing():
            return train_learners(self.recipe, task, seed=self.seed)

    def network(self, training: Training, head: Head) -> tuple[NeuralComplexity, TrainingInputs]:
        """Returns an NC before its training, and how inputs reach it."""
        few = self.family.sample(1, stream(self.seed, "example")).X_tr
        store = few.store if isinstance(few, Points) else None
        # Images have many pixels each: fewer tasks tell their units just as well.
        units = self.units or (4096 if store is None else 128)
        example = self.family.sample(units, stream(self.seed, "units"))
        with seeded(self.seed, "weights", head):
            nc = NeuralComplexity.for_tasks(example, **training.architecture(head)).to(self.device)
        if self.start is not None:
            if self.start.architecture != nc.architecture:
                raise ValueError(
                    f"the NC to start from must have the architecture of its settings, "
                    f"{nc.architecture}, got {self.start.architecture}"
                )
            nc.load_state_dict(self.start.state_dict())
        embeddings = self.embeddings
        if self.images_from is not None:
            nc.take_image_encoder(self.images_from)
            if embeddings is None and store is not None:
                embeddings = embed_store(nc, store, torch.arange(len(store)))
        return nc, TrainingInputs(augment=self.augment, embeddings=embeddings)


def validation_r2(learners: Trajectory, nc: NeuralComplexity) -> float:
    """Returns R2 of the gaps predicted of learners that did not diverge; NaN of fewer than two."""
    usable = ~learners.diverged
    if usable.sum() < 2:
        return math.nan
    whole = learners[usable]
    return r_squared(judge(nc, whole.end).gap, whole.gap).item()


def train_network(
    training: Training,
    head: Head,
    setup: Setup,
    work: Workspace,
    callback: ProgressCallback | None = None,
    *,
    name: str = "",
    validate: Callable[[NeuralComplexity], float] | None = None,
    stop: Callable[[Status], bool] | None = None,
) -> tuple[NeuralComplexity, list[Status]]:
    """Returns a meta-trained NC and its scores on the way; goes on where its workspace stopped.

    `name` stands where the head does not say enough; `validate` scores NC on its way, by R2 on
    learners of other tasks if `None`; `stop` is asked after each score whether to end early.
    """
    if validate is None:
        validate = partial(validation_r2, setup.validation_learners(training.validation_tasks))
    (nc, inputs), stage = setup.network(training, head), name or head
    own, kept = MetaTraining(**training.learning()), work.sub(stage, training, head, setup)
    more: dict[str, Any] = {"collections": setup.collections, "workspace": kept, "inputs": inputs}
    learner = MetaLearner(nc, setup.family, setup.recipe, seed=setup.seed, training=own, **more)
    return nc, meta_train(learner, validate, stage=stage, callback=callback, stop=stop)
