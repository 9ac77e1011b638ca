"""Few-shot classification without a learner: NC's beliefs, and what a user would try instead."""

import torch
from torch import Tensor

from neural_complexity.baselines.prototypes import (
    PrototypicalNetwork,
    nearest_neighbour_logits,
    train_prototypes,
)
from neural_complexity.experiments.base.few_shot_images import FewShotConfig, LabelTraining
from neural_complexity.experiments.base.held_out_tasks import PART, EmbeddedTasks
from neural_complexity.losses import zero_one
from neural_complexity.meta.trainer import MetaTraining
from neural_complexity.model.encoders import ImageEncoder
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import seeded, stream
from neural_complexity.tasks.few_shot import FewShot

__all__ = ["PROTOTYPICAL", "train_prototypical", "without_learner"]

PROTOTYPICAL = "prototypical network"
SOFT_KMEANS_ROUNDS = 3


@torch.no_grad()
def without_learner(
    config: FewShotConfig, judge: EmbeddedTasks, encoder_state: dict[str, Tensor]
) -> dict[tuple[str, str], Tensor]:
    """Returns accuracies on the held-out test images, (B,) each.

    They are by method and by whether it is transductive or inductive.

    Args:
        config: The settings of the run.
        judge: An NC with the posterior head before the held-out tasks.
        encoder_state: From `train_prototypical`.
    """
    task, ways, place = judge.tasks.task, config.ways, judge.nc.head.network.place
    found = {
        ("NC posterior, its beliefs", "transductive"): judge.beliefs(),
        ("NC posterior, its beliefs one image at a time", "inductive"): judge.beliefs_one_by_one(),
    }
    spaces = {
        "where NC compares images": (place(judge.E_tr), place(judge.E_te)),
        "NC's image embedding": (judge.E_tr, judge.E_te),
        "pixels": (task.X_tr.flatten(2), task.X_te.flatten(2)),
    }
    for space, (E_tr, E_te) in spaces.items():
        logits = nearest_neighbour_logits(E_tr, task.Y_tr, E_te, classes=ways)
        found[f"nearest neighbour in {space}", "inductive"] = logits
    channels = encoder_state["blocks.0.filters"].shape[0]
    network = PrototypicalNetwork(_encoder(task.X_tr.shape[2:], channels).to(config.device))
    network.encoder.load_state_dict(encoder_state)
    parts = [task[i : i + PART] for i in range(0, len(task), PART)]
    for name, inputs, rounds in (
        (PROTOTYPICAL, "inductive", 0),
        (f"{PROTOTYPICAL}, soft k-means", "transductive", SOFT_KMEANS_ROUNDS),
    ):
        logits = torch.cat([network(part, classes=ways, rounds=rounds) for part in parts])
        found[name, inputs] = logits
    return {key: 1 - zero_one(logits, task.Y_te).mean(dim=1) for key, logits in found.items()}


def train_prototypical(
    config: FewShotConfig,
    training: LabelTraining,
    family: FewShot,
    callback: ProgressCallback | None = None,
) -> dict[str, Tensor]:
    """Returns the state of a prototypical network's encoder, trained on NC's episodes."""
    with seeded(config.seed, "prototypes"):
        encoder = _encoder(family.images.pixels.shape[1:], training.channels).to(config.device)
    units = family.sample(128, stream(config.seed, "units")).to(config.device)
    encoder.calibrate(units.loaded().X_tr)
    train_prototypes(
        encoder,
        family,
        MetaTraining(**training.learning()),
        seed=config.seed,
        classes=config.ways,
        callback=callback,
    )
    return encoder.state_dict()


def _encoder(shape: torch.Size, channels: int) -> ImageEncoder:
    return ImageEncoder((shape[0], shape[1], shape[2]), channels=channels, layers=4)
