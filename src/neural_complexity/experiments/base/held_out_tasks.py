"""Held-out few-shot tasks, and what an NC makes of their images."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.experiments.base.few_shot_images import FewShotConfig
from neural_complexity.learners.fit import Recipe, Regularizer
from neural_complexity.learners.trajectory import train_learners
from neural_complexity.losses import Belief, zero_one
from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.regularizers.nc import nc_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap
from neural_complexity.task import Task

__all__ = ["PART", "EmbeddedTasks", "HeldOutTasks", "draw_held_out_tasks", "train_and_predict"]

PART = 64  # tasks whose images are embedded at a time: bounds memory


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
    """Held-out tasks whose images an NC has embedded once.

    Args:
        nc: The network.
        tasks: The tasks.
        like: The same tasks embedded by an NC with the same image encoder, to save the work.
    """

    def __init__(
        self, nc: NeuralComplexity, tasks: HeldOutTasks, like: "EmbeddedTasks | None" = None
    ) -> None:
        self.nc, self.tasks = nc, tasks
        self._contexts: dict[tuple[int, int, bool], Context] = {}
        if like is not None:
            self.E_tr: Tensor = like.E_tr
            self.E_te: Tensor = like.E_te
            self.E_unlabelled: Tensor = like.E_unlabelled
            return
        sets = (tasks.task.X_tr, tasks.task.X_te, tasks.X_unlabelled)
        with torch.no_grad():
            self.E_tr, self.E_te, self.E_unlabelled = (
                torch.cat([nc.embed(part) for part in X.split(PART)]) for X in sets
            )

    @torch.no_grad()
    def context(self, rows: slice, *, inductive: bool = False) -> Context:
        """Returns NC's context of some of the tasks, which does not depend on h."""
        key = (rows.start, rows.stop, inductive)
        if key not in self._contexts:
            E_te = self.E_unlabelled if inductive else self.E_te
            Y_tr = self.tasks.task.Y_tr[rows]
            self._contexts[key] = self.nc.context(self.E_tr[rows], Y_tr, E_te[rows])
        return self._contexts[key]

    def penalty(self, rows: slice, *, inductive: bool = False) -> Regularizer:
        """Returns the paper's regularizer for some of the tasks."""
        return nc_penalty(
            self.nc,
            self.tasks.task[rows],
            safeguard=False,
            X_unlabelled=self.tasks.X_unlabelled[rows] if inductive else None,
            context=self.context(rows, inductive=inductive),
        )

    @torch.no_grad()
    def gaps(self, rows: slice, snapshot: Snapshot) -> Tensor:
        """Predicts the gaps of learners of some of the tasks, (B,)."""
        return self.nc.points(self.context(rows), snapshot.H_tr, snapshot.H_te).mean(dim=1)

    @torch.no_grad()
    def belief(self, rows: slice) -> Belief | None:
        """Returns NC's belief about test labels of some of the tasks; the direct head has none."""
        return self.nc.head.belief(self.context(rows).state)

    @torch.no_grad()
    def beliefs(self) -> Tensor:
        """Returns the posterior head's beliefs about all test labels as logits, (B, N, C)."""
        return self.nc.believe(self.context(slice(0, len(self.tasks.task)))).prediction

    @torch.no_grad()
    def beliefs_one_by_one(self) -> Tensor:
        """Returns the same where each test image is seen without the others, (B, N, C)."""
        N = self.E_te.shape[1]
        parts = []
        for rows in torch.arange(len(self.E_te)).split(PART):
            E_tr = self.E_tr[rows].repeat_interleave(N, dim=0)  # (part N, M, features)
            Y_tr = self.tasks.task.Y_tr[rows].repeat_interleave(N, dim=0)
            alone = self.nc.context(E_tr, Y_tr, self.E_te[rows].flatten(0, 1).unsqueeze(1))
            parts.append(self.nc.believe(alone).prediction.view(len(rows), N, -1))
        return torch.cat(parts)


def train_and_predict(
    recipe: Recipe,
    seed: int,
    embedded: Mapping[str, EmbeddedTasks],
    penalty: Callable[[slice], Regularizer] | None = None,
) -> dict[str, Tensor]:
    """Trains one learner per task and lets NCs judge it on the way.

    Args:
        recipe: How learners learn.
        seed: Draws the initial learners.
        embedded: The same tasks before each NC, by name.
        penalty: Makes the regularizer for a slice of the tasks; none if `None`.

    Returns:
        Losses and accuracies after each step, (steps + 1, B); gaps, predicted gaps by NC and the
        accuracy that beliefs predict at snapshot times, (times, B); and who diverged, (1, B).
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
                belief = tasks.belief(rows)
                if belief is not None:
                    wrong = zero_one.expected(snapshot.H_te, belief)
                    found["predicted accuracy"] = 1 - wrong.mean(dim=1)
        for name, values in found.items():
            seen.setdefault(name, {}).setdefault(step, []).append(values)

    trained = train_learners(recipe, task, seed=seed, penalty=penalty, observe=observe)
    curves = {"loss_tr": trained.loss_tr, "loss_te": trained.loss_te}
    for name, by_step in seen.items():
        curves[name] = torch.stack([torch.cat(chunks) for chunks in by_step.values()])
    return {**curves, "diverged": trained.diverged.unsqueeze(0)}
