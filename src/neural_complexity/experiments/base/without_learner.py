"""Few-shot classification without a learner: NC's beliefs, and what a user would try instead."""

import torch
from torch import Tensor

from neural_complexity import ledger
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
from neural_complexity.points import values
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import seeded, stream
from neural_complexity.tasks.images import FewShot

__all__ = ["PROTOTYPICAL", "train_prototypical", "without_learner"]

PROTOTYPICAL = "prototypical network"
SOFT_K_MEANS_ROUNDS = 3


@torch.no_grad()
def without_learner(
    config: FewShotConfig, embedded: EmbeddedTasks, encoder_state: dict[str, Tensor]
) -> dict[tuple[str, str], Tensor]:
    """Returns accuracies on the held-out test images, (B,) each.

    They are by method and by whether it is transductive or inductive.

    Args:
        config: The settings of the run.
        embedded: The held-out tasks, embedded by an NC with the posterior head.
        encoder_state: From `train_prototypical`.
    """
    task, place = embedded.tasks.task, embedded.nc.head.network.place
    E_tr, E_te, X_tr, X_te = embedded.E_tr, embedded.E_te, values(task.X_tr), values(task.X_te)
    found = {("NC posterior, its beliefs", "transductive"): embedded.beliefs()}
    alone = "NC posterior, its beliefs one image at a time"
    found[alone, "inductive"] = embedded.beliefs_one_by_one()
    spaces = {
        "where NC compares images": (place(E_tr), place(E_te)),
        "NC's image embedding": (E_tr, E_te),
        "pixels": (X_tr.flatten(2), X_te.flatten(2)),
    }
    for space, (K, Q) in spaces.items():
        logits = nearest_neighbour_logits(K, task.Y_tr, Q, classes=config.ways)
        found[f"nearest neighbour in {space}", "inductive"] = logits
    channels = encoder_state["blocks.0.filters"].shape[0]
    network = PrototypicalNetwork(_encoder(X_tr.shape[2:], channels).to(config.device))
    network.encoder.load_state_dict(encoder_state)
    parts = [task[i : i + PART] for i in range(0, len(task), PART)]
    for name, inputs, rounds in (
        (PROTOTYPICAL, "inductive", 0),
        (f"{PROTOTYPICAL}, soft k-means", "transductive", SOFT_K_MEANS_ROUNDS),
    ):
        logits = torch.cat([network(part, classes=config.ways, rounds=rounds) for part in parts])
        found[name, inputs] = logits
    ledger.record("report", task.X_te, task.Y_te)
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
    units = family.sample(128, stream(config.seed, "units"))
    encoder.calibrate(values(units.X_tr).to(config.device))
    settings = MetaTraining(**training.learning())
    train_prototypes(
        encoder, family, settings, seed=config.seed, classes=config.ways, callback=callback
    )
    return encoder.state_dict()


def _encoder(shape: torch.Size, channels: int) -> ImageEncoder:
    return ImageEncoder((shape[0], shape[1], shape[2]), channels=channels, layers=4)
