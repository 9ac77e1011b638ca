"""What classifies few-shot images without a learner: NC's beliefs, and what a user would try."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from neural_complexity.baselines.prototypes import (
    PrototypicalNetwork,
    nearest_neighbour_logits,
    train_prototypes,
)
from neural_complexity.experiments.base.few_shot_images import FewShotConfig, LabelTraining
from neural_complexity.experiments.base.held_out_tasks import PART, Judge
from neural_complexity.losses import zero_one
from neural_complexity.model.encoders import ImageEncoder
from neural_complexity.progress import Tell
from neural_complexity.seeding import seeded, stream
from neural_complexity.task import Task
from neural_complexity.tasks.few_shot import FewShot

__all__ = ["PROTOTYPES", "train_opponent", "without_learner"]

# Opponents of NC's beliefs: how many rounds of soft k-means they are trained with, and used with.
PROTOTYPES = {"prototypical network": (0, 3)}


def without_learner(
    config: FewShotConfig, judge: Judge, prototypes: dict[str, dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Classifies the held-out test images without a learner.

    Args:
        config: The settings of the run.
        judge: An NC with the posterior head before the held-out tasks.
        prototypes: The state of each of `PROTOTYPES`.

    Returns:
        Accuracies by method, (B,) each.
    """
    task, ways = judge.scene.task, config.ways
    places = judge.nc.head.network.place
    found = {"NC posterior, its beliefs (transductive)": judge.beliefs()}
    found["NC posterior, its beliefs one image at a time (inductive)"] = judge.lonely_beliefs()
    spaces = {
        "where NC compares images": [places(E).detach() for E in (judge.E_tr, judge.E_te)],
        "NC's image embedding": [judge.E_tr, judge.E_te],
        "pixels": [task.X_tr.flatten(2), task.X_te.flatten(2)],
    }
    for space, (E_tr, E_te) in spaces.items():
        logits = nearest_neighbour_logits(E_tr, task.Y_tr, E_te, classes=ways)
        found[f"nearest neighbour in {space} (inductive)"] = logits
    for name, state in prototypes.items():
        channels = state["blocks.0.filters"].shape[0]
        encoder = _encoder(tuple(task.X_tr.shape[2:]), channels).to(config.device)
        encoder.load_state_dict(state)
        for rounds in dict.fromkeys(PROTOTYPES[name]):
            found[_name_prototypes(name, rounds)] = _classify(
                PrototypicalNetwork(encoder), task, ways, rounds
            )
    return {name: 1 - zero_one(logits, task.Y_te).mean(dim=1) for name, logits in found.items()}


def _name_prototypes(name: str, rounds: int) -> str:
    return f"{name}, soft k-means (transductive)" if rounds else f"{name} (inductive)"


def _encoder(shape: Sequence[int], channels: int) -> ImageEncoder:
    return ImageEncoder((shape[0], shape[1], shape[2]), channels=channels, layers=4)


def train_opponent(
    config: FewShotConfig,
    training: LabelTraining,
    family: FewShot,
    rounds: int,
    tell: Tell | None = None,
) -> dict[str, Tensor]:
    """Trains a prototypical network with an encoder like NC's on NC's episodes.

    Args:
        config: The settings of the run.
        training: NC's training.
        family: Its tasks.
        rounds: See `PrototypicalNetwork`.
        tell: Told about the progress.

    Returns:
        The state of its encoder.
    """
    start = time.perf_counter()

    def watch(done: int, loss: float) -> None:
        if tell is not None:
            seconds = time.perf_counter() - start
            tell("prototypes", done, training.iterations, seconds, {"loss": loss})

    with seeded(config.seed, "prototypes"):
        encoder = _encoder(family.images.pixels.shape[1:], training.channels)
    encoder = encoder.to(config.device)
    encoder.calibrate(family.sample(128, stream(config.seed, "units")).X_tr.to(config.device))
    network = train_prototypes(
        encoder,
        family,
        seed=config.seed,
        iterations=training.iterations,
        updates=training.updates,
        tasks=training.tasks,
        batch=training.batch,
        lr=training.lr,
        warmup=training.warmup,
        classes=config.ways,
        rounds=rounds,
        watch=watch,
    )
    return network.encoder.state_dict()


@torch.no_grad()
def _classify(network: PrototypicalNetwork, task: Task, ways: int, rounds: int) -> Tensor:
    parts = [task[i : i + PART] for i in range(0, len(task), PART)]
    return torch.cat([network(part, classes=ways, rounds=rounds) for part in parts])
