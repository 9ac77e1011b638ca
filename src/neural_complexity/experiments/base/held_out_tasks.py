"""Held-out few-shot tasks, and what an NC makes of their images."""

from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.experiments.base.few_shot_images import FewShotConfig
from neural_complexity.learners.fit import Regularizer
from neural_complexity.losses import Belief
from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.regularizers.nc import nc_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task

__all__ = ["PART", "EmbeddedTasks", "HeldOutTasks", "draw_held_out_tasks"]

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
    task = task.loaded().to(config.device)
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
        self.embedded: list[Tensor] = [] if like is None else like.embedded
        if like is None:
            sets = (tasks.task.X_tr, tasks.task.X_te, tasks.X_unlabelled)
            with torch.no_grad():
                self.embedded += [torch.cat([nc.embed(E) for E in X.split(PART)]) for X in sets]
        self.E_tr, self.E_te, self.E_unlabelled = self.embedded

    @property
    def scene(self) -> HeldOutTasks:
        """The tasks, until exp2 and exp3 say so."""
        return self.tasks

    def context(self, rows: slice, *, inductive: bool = False) -> Context:
        """Returns NC's context of some of the tasks, which does not depend on h."""
        key = (rows.start, rows.stop, inductive)
        if key not in self._contexts:
            E_te = self.E_unlabelled if inductive else self.E_te
            with torch.no_grad():
                made = self.nc.context(self.E_tr[rows], self.tasks.task.Y_tr[rows], E_te[rows])
            self._contexts[key] = made
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
        """Returns NC's belief about test labels of some of the tasks, if its head has one."""
        return self.nc.head.belief(self.context(rows).state)

    def beliefs(self) -> Tensor:
        """Returns the posterior head's beliefs about all test labels as logits, (B, N, C)."""
        return self.nc.believe(self.context(slice(0, len(self.tasks.task)))).prediction

    @torch.no_grad()
    def beliefs_one_by_one(self) -> Tensor:
        """Returns the same where each test image is seen without the others, (B, N, C)."""
        N, parts = self.E_te.shape[1], []
        for rows in torch.arange(len(self.E_te)).split(PART):
            E_tr = self.E_tr[rows].repeat_interleave(N, dim=0)  # (part N, M, features)
            Y_tr = self.tasks.task.Y_tr[rows].repeat_interleave(N, dim=0)
            alone = self.nc.context(E_tr, Y_tr, self.E_te[rows].flatten(0, 1).unsqueeze(1))
            parts.append(self.nc.believe(alone).prediction.view(len(rows), N, -1))
        return torch.cat(parts)

    lonely_beliefs = beliefs_one_by_one  # until exp2 says so


# Until omniglot, ablation, surfaces and without_learner use the new names.
Judge, Scene, make_scene = EmbeddedTasks, HeldOutTasks, draw_held_out_tasks
