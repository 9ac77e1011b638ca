"""Held-out few-shot tasks: what an NC makes of their images, and what others do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity import ledger
from neural_complexity.baselines.prototypes import (
    PrototypicalNetwork,
    nearest_neighbour_logits,
    train_prototypes,
)
from neural_complexity.experiments.base.few_shot_images import FewShotConfig, LabelTraining
from neural_complexity.learners.fit import Regularizer
from neural_complexity.learners.recipe import Recipe
from neural_complexity.learners.trajectory import train_learners
from neural_complexity.losses import zero_one
from neural_complexity.meta.trainer import MetaTraining
from neural_complexity.model.encoders import ImageEncoder
from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.points import values
from neural_complexity.progress import ProgressCallback
from neural_complexity.regularizers.nc import nc_penalty
from neural_complexity.seeding import seeded, stream
from neural_complexity.snapshot import Snapshot, gap
from neural_complexity.task import Task
from neural_complexity.tasks.few_shot import FewShot

__all__ = ["PROTOTYPICAL", "EmbeddedTasks", "HeldOutTasks", "draw_held_out_tasks"]

PART = 64  # tasks whose images are embedded at a time: bounds memory
PROTOTYPICAL = "prototypical network"
SOFT_K_MEANS_ROUNDS = 3


@dataclass(frozen=True)
class HeldOutTasks:
    """Held-out tasks, and further unlabelled images of their classes."""

    task: Task
    X_unlabelled: Tensor  # (B, N, channels, height, width)


def draw_held_out_tasks(config: FewShotConfig) -> HeldOutTasks:
    """Draws the held-out tasks; half of their test images become unlabelled inputs."""
    family = config.eval_family()
    task = family.sample(config.eval_tasks, stream(config.seed, "evaluation tasks"))
    task = task.to(config.device).loaded()
    N = config.ways * config.queries
    X_te, X_unlabelled = task.X_te[:, :N], task.X_te[:, N:]
    return HeldOutTasks(Task(task.X_tr, task.Y_tr, X_te, task.Y_te[:, :N]), X_unlabelled)


class EmbeddedTasks:
    """Held-out tasks whose images an NC, or one with the same encoder (`like`), embedded once."""

    def __init__(
        self, nc: NeuralComplexity, tasks: HeldOutTasks, like: "EmbeddedTasks | None" = None
    ) -> None:
        self.nc, self.tasks = nc, tasks
        self._contexts: dict[tuple[int, int, bool], Context] = {}
        if like is not None:
            self.embedded: list[Tensor] = like.embedded
            return
        sets = (tasks.task.X_tr, tasks.task.X_te, tasks.X_unlabelled)
        with torch.no_grad():
            self.embedded = [torch.cat([nc.embed(x) for x in X.split(PART)]) for X in sets]

    @torch.no_grad()
    def context(self, rows: slice, *, inductive: bool = False) -> Context:
        """Returns NC's context of some of the tasks, which does not depend on h."""
        key = (rows.start, rows.stop, inductive)
        if key not in self._contexts:
            E_tr, E_te = self.embedded[0], self.embedded[2 if inductive else 1]
            Y_tr = self.tasks.task.Y_tr[rows]
            self._contexts[key] = self.nc.context(E_tr[rows], Y_tr, E_te[rows])
        return self._contexts[key]

    def penalty(self, rows: slice, *, inductive: bool = False) -> Regularizer:
        """Returns the paper's regularizer for some of the tasks."""
        X = self.tasks.X_unlabelled[rows] if inductive else None
        context, task = self.context(rows, inductive=inductive), self.tasks.task[rows]
        return nc_penalty(self.nc, task, safeguard=False, X_unlabelled=X, context=context)

    @torch.no_grad()
    def gaps(self, rows: slice, snapshot: Snapshot) -> Tensor:
        """Predicts the gaps of learners of some of the tasks, (B,)."""
        return self.nc.points(self.context(rows), snapshot.H_tr, snapshot.H_te).mean(dim=1)

    @torch.no_grad()
    def beliefs(self) -> Tensor:
        """Returns the posterior head's beliefs about all test labels as logits, (B, N, C)."""
        return self.nc.believe(self.context(slice(0, len(self.tasks.task)))).prediction

    @torch.no_grad()
    def beliefs_one_by_one(self) -> Tensor:
        """Returns the same where each test image is seen without the others, (B, N, C)."""
        N, parts = self.tasks.task.X_te.shape[1], []
        for rows in torch.arange(len(self.tasks.task)).split(PART):
            E_tr = self.embedded[0][rows].repeat_interleave(N, dim=0)  # (part N, M, features)
            Y_tr = self.tasks.task.Y_tr[rows].repeat_interleave(N, dim=0)
            alone = self.nc.context(E_tr, Y_tr, self.embedded[1][rows].flatten(0, 1).unsqueeze(1))
            parts.append(self.nc.believe(alone).prediction.view(len(rows), N, -1))
        return torch.cat(parts)


def train_and_predict(
    recipe: Recipe,
    seed: int,
    embedded: Mapping[str, EmbeddedTasks],
    penalty: Callable[[slice], Regularizer] | None = None,
) -> dict[str, Tensor]:
    """Trains one learner per task and lets NCs, by name, judge it on the way.

    Returns losses and accuracies after each step, (steps + 1, B); gaps, predicted gaps by NC and
    the accuracy that beliefs predict at snapshot times, (times, B); and who diverged, (1, B).
    """
    task = next(iter(embedded.values())).tasks.task
    snapshot_times = {0, recipe.steps, *(2**k for k in range(20) if 2**k < recipe.steps)}
    seen: dict[str, dict[int, list[Tensor]]] = {}

    def observe(rows: slice, step: int, snapshot: Snapshot) -> None:
        part = task[rows]
        found = {"accuracy": 1 - zero_one(snapshot.H_te, part.Y_te).mean(dim=1)}
        if step in snapshot_times:
            found["gap"] = gap(recipe.loss, snapshot, part.Y_te)
            for name, tasks in embedded.items():
                found[f"predicted/{name}"] = tasks.gaps(rows, snapshot)
                with torch.no_grad():
                    belief = tasks.nc.head.belief(tasks.context(rows).state)
                if belief is not None:
                    wrong = zero_one.expected(snapshot.H_te, belief)
                    found["predicted accuracy"] = 1 - wrong.mean(dim=1)
        for name, chunk in found.items():
            seen.setdefault(name, {}).setdefault(step, []).append(chunk)

    trained = train_learners(recipe, task, seed=seed, penalty=penalty, observe=observe)
    curves = {"loss_tr": trained.loss_tr, "loss_te": trained.loss_te}
    for name, by_step in seen.items():
        curves[name] = torch.stack([torch.cat(chunks) for chunks in by_step.values()])
    return {**curves, "diverged": trained.diverged.unsqueeze(0)}


@torch.no_grad()
def without_learner(
    config: FewShotConfig, embedded: EmbeddedTasks, encoder_state: dict[str, Tensor]
) -> dict[tuple[str, str], Tensor]:
    """Returns accuracies without a learner, (B,), by method and by what it sees of test images.

    NC has the posterior head; the encoder's state is from `train_prototypical`.
    """
    task, place = embedded.tasks.task, embedded.nc.head.network.place
    E_tr, E_te, _ = embedded.embedded
    X_tr, X_te = values(task.X_tr), values(task.X_te)
    found = {("NC posterior, its beliefs", "transductive"): embedded.beliefs()}
    alone = "NC posterior, its beliefs one image at a time"
    found[alone, "inductive"] = embedded.beliefs_one_by_one()
    for space, K, Q in (
        ("where NC compares images", place(E_tr), place(E_te)),
        ("NC's image embedding", E_tr, E_te),
        ("pixels", X_tr.flatten(2), X_te.flatten(2)),
    ):
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
