"""How an experiment meta-trains one NC, as part of its config."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from torch import Tensor

from neural_complexity.experiments.base.config import POSITIVE, AtLeast, Between, Checked
from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta.evaluate import Trajectory, follow, predict_gaps
from neural_complexity.meta.executor import Engine
from neural_complexity.meta.scores import r_squared
from neural_complexity.meta.trainer import Augment, MetaLearner, Supervision, embed_all
from neural_complexity.meta.training_loop import (
    Moment,
    Resume,
    Stop,
    Watch,
    meta_train,
    tell_moments,
)
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback, Tell
from neural_complexity.seeding import seeded, stream
from neural_complexity.task import IndexedFamily, TaskFamily
from neural_complexity.workspace import Workspace

__all__ = [
    "Head",
    "Setup",
    "Training",
    "ours",
    "train_nc",
    "train_network",
    "train_validated",
    "validation_learners",
    "validation_r2",
]

Head = Literal["posterior", "direct"]
Count = Annotated[int, AtLeast(1)]
Part = Annotated[float, Between(0, 1, open_end=True)]


@dataclass(frozen=True, kw_only=True)
class Training(Checked):
    """An NC and its meta-training; the defaults are the paper's for the sinusoid (appendix C)."""

    width: Count = 1024
    """Width d of every layer of NC."""
    heads: Count = 8
    """Attention heads (the paper does not say)."""
    encoder_layers: Count = 3
    """n_enc."""
    decoder_layers: Count = 3
    """n_dec."""
    query_skip: bool = False
    """Whether the decoder also sees the test point's own embedding."""
    observed_loss: bool = False
    """Direct head: whether the observed training loss is subtracted, not predicted."""
    pool_first: bool = True
    """Direct head: whether test points are averaged before decoding."""
    scale_by_width: bool = True
    """Whether attention divides by the root of the whole width, as the official code does."""
    supervision: Supervision = "set"
    """One target per learner ("set", the paper) or per test point ("point")."""
    belief_weight: Annotated[float, AtLeast(0)] = 0.0
    """Posterior head: how much the labels count beside the gaps."""
    iterations: Count = 5000
    """Collections (the paper does not say)."""
    updates: Count = 10
    """NC updates per collection (the paper does not say)."""
    tasks: Count = 512
    """New tasks per collection (the paper does not say)."""
    batch: Count = 512
    """Bank rows per NC update, bs."""
    lr: Annotated[float, POSITIVE] = 0.0005
    """Adam's learning rate, or its peak."""
    warmup: Part = 0.0
    """The part of training in which the learning rate rises."""
    decay: bool = False
    """Whether the learning rate then falls to zero along a cosine."""
    ramp: Part = 0.5
    """The part of training in which the weight of NC rises to 1 (the paper does not say)."""
    spread_weights: bool = False
    """Whether each learner draws its own weight below the scheduled one."""
    capacity: Count = 1_000_000
    """Rows of the memory bank (the paper does not say)."""
    validation_tasks: Count = 512
    """Other tasks, on whose learners NC is scored on its way."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ValueError(
                f"width must be a multiple of heads, got width={self.width}, heads={self.heads}"
            )

    def architecture(self, head: Head) -> dict[str, Any]:
        """Returns NC's arguments for a head."""
        names = ["width", "heads", "encoder_layers", "decoder_layers", "query_skip"]
        names += ["observed_loss", "scale_by_width"]
        own = {name: getattr(self, name) for name in names}
        return {**own, "head": head, "pool_first": self.pool_first and head == "direct"}

    def learning(self) -> dict[str, Any]:
        """Returns the meta-learner's arguments."""
        names = ["iterations", "updates", "batch", "tasks", "lr", "warmup", "decay", "ramp"]
        names += ["spread_weights", "capacity", "supervision", "belief_weight"]
        return {name: getattr(self, name) for name in names}


def ours(**sizes: Any) -> Training:
    """Returns what we found to work better than the paper's wiring, at any size.

    `docs/deviations.md` has the figures; `sizes` are fields of `Training`.
    """
    wiring: dict[str, Any] = {
        "query_skip": True,
        "observed_loss": True,
        "pool_first": False,
        "scale_by_width": False,
        "supervision": "point",
        "belief_weight": 1.0,
        "heads": 4,
        "lr": 0.003,
        "warmup": 0.1,
        "decay": True,
        "spread_weights": True,
    }
    return Training(**(wiring | sizes))


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What an NC is meta-trained on.

    Args:
        family: Where tasks come from.
        recipe: How learners learn.
        seed: The one seed of all draws.
        device: Where NC and learners live.
        start: A trained NC of the same architecture to go on from, which stays as it is.
        images_from: A trained NC whose image encoder is taken over and stays as it is, so that each
            image is embedded once.
        embeddings: What it makes of all images; made when needed if `None`.
    """

    family: TaskFamily
    recipe: Recipe
    seed: int
    device: str
    start: NeuralComplexity | None = None
    images_from: NeuralComplexity | None = None
    embeddings: Tensor | None = None

    def validation_learners(self, tasks: int = 512) -> Trajectory:
        """Trains the held-out learners on which NC is scored on its way."""
        return validation_learners(
            self.family, self.recipe, tasks=tasks, seed=self.seed, device=self.device
        )


def train_network(
    training: Training,
    head: Head,
    setup: Setup,
    work: Workspace,
    callback: ProgressCallback | None = None,
    *,
    name: str = "",
    validate: Callable[[NeuralComplexity], float] | None = None,
    stop: Stop | None = None,
) -> tuple[NeuralComplexity, list[Moment]]:
    """Meta-trains one NC, continuing where an earlier run in its workspace stopped.

    Args:
        training: The settings.
        head: Which head.
        setup: What it is trained on.
        work: The experiment's workspace; this one's is below, under its name.
        callback: Called after each iteration.
        name: What to call it, where the head does not say enough.
        validate: Scores NC on its way; its R2 on learners of other tasks if `None`.
        stop: Asked after each score whether to end early.

    Returns:
        NC and its scores on the way.
    """
    name = name or head
    if validate is None:
        validate = partial(validation_r2, setup.validation_learners(training.validation_tasks))
    return train_nc(
        training,
        head,
        setup.family,
        setup.recipe,
        seed=setup.seed,
        device=setup.device,
        validate=validate,
        start=setup.start,
        images_from=setup.images_from,
        embeddings=setup.embeddings,
        folder=None if work.folder is None else work.folder / name,
        watch=tell_moments(callback, name),
        stop=stop,
    )


# TRANSITION: `Setup` and `train_network` replace all below.
def validation_learners(
    family: TaskFamily, recipe: Recipe, *, tasks: int = 512, seed: int, device: str
) -> Trajectory:
    """Trains the held-out learners on which NC is scored on its way."""
    task = family.sample(tasks, stream(seed, "validation tasks")).to(device)
    return follow(recipe, task, seed=seed)


def validation_r2(learners: Trajectory, nc: NeuralComplexity) -> float:
    """Scores NC's predicted gaps of those that did not diverge by R2; NaN if there are not two."""
    usable = learners.finite
    if usable.sum() < 2:
        return math.nan
    whole = learners[usable]
    return r_squared(predict_gaps(nc, whole.end), whole.gap).item()


def train_nc(
    training: Training,
    head: Head,
    family: TaskFamily,
    recipe: Recipe,
    *,
    seed: int,
    device: str,
    validate: Callable[[NeuralComplexity], float],
    start: NeuralComplexity | None = None,
    images_from: NeuralComplexity | None = None,
    embeddings: Tensor | None = None,
    augment: Augment | None = None,
    engine: Engine | None = None,
    lag: int = 0,
    units: int | None = None,
    folder: Path | None = None,
    watch: Watch | None = None,
    stop: Stop | None = None,
) -> tuple[NeuralComplexity, list[Moment]]:
    """Meta-trains one NC, going on where an earlier run in `folder` stopped.

    Args:
        training: The settings.
        head: Which head.
        family: Where tasks come from.
        recipe: How learners learn.
        seed: The one seed of all draws.
        device: Where NC and learners live.
        validate: Scores NC on held-out learners.
        start: A trained NC of the same architecture to go on from, which stays as it is; none if
            `None`.
        images_from: A trained NC whose image encoder is taken over and stays as it is, so that each
            image is embedded once; trained with the rest if `None`.
        embeddings: What it makes of all images, from `embed_all`; made here if `None`.
        augment: Changes images at random while NC learns from them.
        engine: Makes the collections; see `MetaLearner`.
        lag: How many collections it is ahead.
        units: The number of tasks that NC takes its units from.
        folder: Where checkpoint and bank are while it runs; in memory if `None`.
        watch: Told after each iteration.
        stop: Asked after each score whether to end early; see `meta_train`.

    Returns:
        NC and its scores on the way.

    Raises:
        ValueError: If `start` has another architecture than the settings.
    """
    # Images have many pixels each: fewer tasks tell their units just as well.
    by_number = isinstance(family, IndexedFamily)
    units = units or (128 if by_number else 4096)
    example = family.sample(units, stream(seed, "units"))
    with seeded(seed, "weights", head):
        nc = NeuralComplexity.for_tasks(example, **training.architecture(head)).to(device)
    if start is not None:
        if start.architecture != nc.architecture:
            raise ValueError(
                f"the NC to start from must have the architecture of its settings, "
                f"{nc.architecture}, got {start.architecture}"
            )
        nc.load_state_dict(start.state_dict())
    if embeddings is not None and images_from is None:
        raise ValueError("embeddings need the NC that made them as images_from, got none")
    if images_from is not None:
        nc.take_image_encoder(images_from)
        if embeddings is None and isinstance(family, IndexedFamily):
            embeddings = embed_all(nc, family)
    save_every = max(1, training.iterations // 20)

    def build(bank: Path | None, resume: Resume | None) -> MetaLearner:
        return MetaLearner(
            nc,
            family,
            recipe,
            seed=seed,
            bank_folder=bank,
            keep=0 if bank is None else save_every,  # a bank in memory cannot be taken back
            resume=resume,
            embeddings=embeddings,
            augment=augment,
            engine=engine,
            lag=lag,
            **training.learning(),
        )

    history = meta_train(
        build,
        validate=validate,
        validate_every=max(1, training.iterations // 20),
        save_every=save_every,
        folder=folder,
        identity=json.dumps([asdict(training), head, seed, repr(family), recipe.steps, recipe.lr]),
        watch=watch,
        stop=stop,
    )
    return nc, history


def train_validated(
    training: Training,
    head: Head,
    family: TaskFamily,
    recipe: Recipe,
    *,
    seed: int,
    device: str,
    name: str = "",
    start: NeuralComplexity | None = None,
    images_from: NeuralComplexity | None = None,
    embeddings: Tensor | None = None,
    folder: Path | None = None,
    tell: Tell | None = None,
) -> tuple[NeuralComplexity, list[Moment]]:
    """Meta-trains one NC as `train_nc` does, scored by its R2 on learners of other tasks.

    Args:
        training: The settings.
        head: Which head.
        family: Where tasks come from.
        recipe: How learners learn.
        seed: The one seed of all draws.
        device: Where NC and learners live.
        name: What to call it, where the head does not say enough.
        start: A trained NC to go on from; none if `None`.
        images_from: A trained NC whose image encoder is taken over; none if `None`.
        embeddings: What it makes of all images; made here if `None`.
        folder: Where the experiment keeps unfinished work; this one's is below, under its name.
        tell: Told about the progress.

    Returns:
        NC and its scores on the way.
    """
    learners = validation_learners(
        family, recipe, tasks=training.validation_tasks, seed=seed, device=device
    )
    return train_nc(
        training,
        head,
        family,
        recipe,
        seed=seed,
        device=device,
        validate=partial(validation_r2, learners),
        start=start,
        images_from=images_from,
        embeddings=embeddings,
        folder=None if folder is None else folder / (name or head),
        watch=tell_moments(tell, name or head),
    )
