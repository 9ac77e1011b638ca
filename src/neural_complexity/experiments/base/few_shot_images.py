"""Few-shot classification of Omniglot: its data, its learners, and NCs for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from neural_complexity.experiments.base.config import POSITIVE, AtLeast, BaseConfig, Between
from neural_complexity.experiments.base.training import Head, Training
from neural_complexity.learners.fit import Recipe
from neural_complexity.learners.networks import image_cnn, image_mlp
from neural_complexity.losses import cross_entropy
from neural_complexity.model.heads import HEADS
from neural_complexity.tasks.images import FewShot, Images
from neural_complexity.tasks.omniglot_files import omniglot

__all__ = [
    "PAPER_ACCURACY",
    "SMOKE",
    "TINY",
    "FewShotConfig",
    "LabelTraining",
    "direct",
    "posterior",
]

PAPER_ACCURACY = 92.93  # of MLP learners with NC, 10 ways, 1 shot
# Sizes of smoke runs, and of NCs in them.
SMOKE: dict[str, Any] = {"ways": 4, "queries": 2, "eval_tasks": 16, "learner_width": 16, "steps": 6}
TINY: dict[str, Any] = {"width": 16, "heads": 2, "channels": 8, "iterations": 2, "tasks": 8}
TINY["validation_tasks"] = 8


@dataclass(frozen=True, kw_only=True)
class LabelTraining(Training):
    """An NC for images and labels; the defaults are the paper's for MLP learners (appendix C)."""

    width: Annotated[int, AtLeast(1)] = 120
    """Width d of every layer of NC behind the image encoder."""
    heads: Annotated[int, AtLeast(1)] = 4
    """Attention heads (the paper does not say)."""
    encoder_layers: Annotated[int, AtLeast(1)] = 1
    """n_enc."""
    batch: Annotated[int, AtLeast(1)] = 16
    """Bank rows per NC update, bs."""
    pool_first: bool = False
    """Direct head: whether test points are averaged before decoding."""
    scale_by_width: bool = False
    """Whether attention divides by the root of the whole width."""
    query_skip: bool = True
    """Whether the decoder also sees the test point's own embedding."""
    validation_tasks: Annotated[int, AtLeast(1)] = 64
    """Other tasks of the same characters, on whose learners NC is scored on its way."""
    channels: Annotated[int, AtLeast(1)] = 64
    """Filters of each layer of the image encoder."""
    self_layers: Annotated[int, AtLeast(0)] = 1
    """n_self."""
    bilinear: bool = True
    """Whether targets act through the interaction layer of Eq. (9)."""
    bias: bool = True
    """Whether the interaction layer has its 1."""
    loss_conditioning: bool = True
    """Direct head: whether the interaction layer sees the training losses."""
    symmetric: bool = False
    """Whether classes are treated alike."""
    metric: bool = False
    """Whether attention goes by distance."""
    rounds: Annotated[int, AtLeast(0)] = 0
    """Rounds of soft k-means that move keys to the unlabelled points that choose them."""
    vote: bool = False
    """Posterior head: whether the decoder corrects the attention on each label."""
    criterion: Literal["huber", "squared"] = "huber"
    """NC's loss on the gap."""
    made_up: Annotated[float, Between(0, 1)] = 0.0
    """The share of each batch that is pseudo-predictions."""
    run: Annotated[int, AtLeast(1)] = 1
    """Rows of one task that are drawn together."""

    def architecture(self, head: Head) -> dict[str, Any]:
        """Returns the fields of NC's `Architecture` for a head."""
        names = ["channels", "self_layers", "bilinear", "bias", "symmetric", "metric", "rounds"]
        names.append("vote" if head == "posterior" else "loss_conditioning")
        return super().architecture(head) | {name: getattr(self, name) for name in names}

    def learning(self) -> dict[str, Any]:
        """Returns the fields of `MetaTraining`."""
        own = {"criterion": self.criterion, "pseudo_predictions": self.made_up, "run": self.run}
        return super().learning() | own


OURS: dict[str, Any] = {
    "observed_loss": True,
    "supervision": "point",
    "warmup": 0.03,
    "decay": True,
    "spread_weights": True,
    "made_up": 0.5,
    "lr": 0.002,
    "tasks": 64,
    "updates": 16,
    "capacity": 50_000,
}


def posterior(**sizes: Any) -> LabelTraining:
    """Returns what we found to work for the posterior head, at any size."""
    own = {"belief_weight": 1.0, "self_layers": 0, "batch": 10}
    return LabelTraining(**{**OURS, **HEADS["posterior"].for_labels, **own, **sizes})


def direct(**sizes: Any) -> LabelTraining:
    """Returns what we found to work for the direct head, at any size."""
    return LabelTraining(**{**OURS, **HEADS["direct"].for_labels, "batch": 48, "run": 4, **sizes})


@dataclass(frozen=True, kw_only=True)
class FewShotConfig(BaseConfig):
    """Few-shot classification of Omniglot's characters."""

    data: str = ""
    """The folder of Omniglot's zips; if empty, that of NEURAL_COMPLEXITY_DATA or a cache."""
    ways: Annotated[int, AtLeast(1)] = 10
    """Classes of a task."""
    shots: Annotated[int, AtLeast(1)] = 1
    """Training images of each class."""
    queries: Annotated[int, AtLeast(1)] = 5
    """Test images of each class."""
    train_queries: Annotated[int, AtLeast(1)] = 4
    """Test images of each class in meta-training."""
    eval_tasks: Annotated[int, AtLeast(2)] = 512
    """Held-out tasks."""
    learner_width: Annotated[int, AtLeast(1)] = 64
    """Hidden units of the learner (the paper: one hidden layer of 500)."""
    learner_channels: Annotated[int, AtLeast(1)] = 16
    """Filters of each of the two layers of convolutional learners."""
    steps: Annotated[int, AtLeast(1)] = 50
    """Updates of the learner (the paper does not say)."""
    lr: Annotated[float, POSITIVE] = 0.5
    """Learning rate of the learner (SGD; the paper: 0.01)."""
    cnn_lr: Annotated[float, POSITIVE] = 0.2
    """Learning rate of convolutional learners."""

    def train_family(self) -> FewShot:
        """Returns tasks of background characters and their rotations."""
        images = omniglot("background", folder=self.data or None).rotated()
        return self._family(images, self.train_queries)

    def eval_family(self) -> FewShot:
        """Returns tasks of evaluation characters, as they are, with twice the test images.

        The second half serves as unlabelled inputs that are not the test inputs.
        """
        return self._family(omniglot("evaluation", folder=self.data or None), 2 * self.queries)

    def _family(self, images: Images, queries: int) -> FewShot:
        return FewShot(images, ways=self.ways, shots=self.shots, queries=queries)

    def recipe(self, shape: Sequence[int], kind: str = "MLP") -> Recipe:
        """Returns how learners of images of a shape learn, `"MLP"` or `"CNN"`."""
        if kind == "CNN":
            make = partial(image_cnn, shape, [self.learner_channels] * 2, self.ways)
            return Recipe(make=make, loss=cross_entropy, steps=self.steps, lr=self.cnn_lr)
        make = partial(image_mlp, shape, [self.learner_width], self.ways)
        return Recipe(make=make, loss=cross_entropy, steps=self.steps, lr=self.lr)
