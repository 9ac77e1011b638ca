"""A trained NC before held-out few-shot tasks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.experiments.base.few_shot_images import FewShotConfig
from neural_complexity.learners.fit import Regularizer
from neural_complexity.losses import Belief
from neural_complexity.model.heads import Sets
from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.regularizers.nc import nc_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task

__all__ = ["PART", "Judge", "Scene", "make_scene"]

PART = 64  # tasks whose images are embedded at a time


@dataclass(frozen=True)
class Scene:
    """Held-out tasks, and further unlabelled images of their classes."""

    task: Task
    X_unlabelled: Tensor  # (B, N, channels, height, width)


def make_scene(config: FewShotConfig) -> Scene:
    """Draws the held-out tasks; half of their test images are unlabelled inputs instead."""
    family = config.eval_family()
    task = family.sample(config.eval_tasks, stream(config.seed, "evaluation tasks"))
    task = task.to(config.device)
    N = config.ways * config.queries
    return Scene(Task(task.X_tr, task.Y_tr, task.X_te[:, :N], task.Y_te[:, :N]), task.X_te[:, N:])


class Judge:
    """A trained NC before held-out tasks, each of whose images it has embedded once.

    Args:
        nc: The network.
        scene: The tasks.
        like: Another judge of the same scene whose NC has the same image encoder: it has embedded
            the images already.
    """

    def __init__(self, nc: NeuralComplexity, scene: Scene, like: "Judge | None" = None) -> None:
        self.nc, self.scene = nc, scene
        self._contexts: dict[tuple[int, int, bool], Context] = {}
        if like is not None:
            self.E_tr: Tensor = like.E_tr
            self.E_te: Tensor = like.E_te
            self.E_unlabelled: Tensor = like.E_unlabelled
            return
        sets = (scene.task.X_tr, scene.task.X_te, scene.X_unlabelled)
        with torch.no_grad():
            self.E_tr, self.E_te, self.E_unlabelled = (
                torch.cat([nc.embed(part) for part in X.split(PART)]) for X in sets
            )

    def context(self, rows: slice, *, inductive: bool = False) -> Context:
        """Gives what NC makes of some of the tasks before it sees h."""
        key = (rows.start, rows.stop, inductive)
        if key not in self._contexts:
            E_te = self.E_unlabelled if inductive else self.E_te
            with torch.no_grad():
                made = self.nc.context(self.E_tr[rows], self.scene.task.Y_tr[rows], E_te[rows])
            self._contexts[key] = made
        return self._contexts[key]

    def penalty(self, rows: slice, *, inductive: bool = False) -> Regularizer:
        """Makes the paper's regularizer for some of the tasks."""
        return nc_penalty(
            self.nc,
            self.scene.task[rows],
            safeguard=False,
            X_unlabelled=self.scene.X_unlabelled[rows] if inductive else None,
            context=self.context(rows, inductive=inductive),
        )

    @torch.no_grad()
    def gaps(self, rows: slice, snapshot: Snapshot) -> Tensor:
        """Predicts the gaps of learners of some of the tasks, (B,)."""
        return self.nc.points(self.context(rows), snapshot.H_tr, snapshot.H_te).mean(dim=1)

    @torch.no_grad()
    def beliefs(self) -> Tensor:
        """Gives what the posterior head believes about all test labels, as logits, (B, N, C)."""
        belief = self.belief(slice(0, len(self.scene.task)))
        assert belief is not None, "the direct head has no beliefs"
        return belief.prediction

    @torch.no_grad()
    def lonely_beliefs(self) -> Tensor:
        """Gives the same for each test image by itself, as if there were no others."""
        N = self.E_te.shape[1]
        parts = []
        for rows in torch.arange(len(self.E_te)).split(PART):
            E_tr = self.E_tr[rows].repeat_interleave(N, dim=0)  # (part N, M, features)
            Y_tr = self.scene.task.Y_tr[rows].repeat_interleave(N, dim=0)
            known = self.nc.context(E_tr, Y_tr, self.E_te[rows].flatten(0, 1).unsqueeze(1)).known
            assert not isinstance(known, Sets), "the direct head has no beliefs"
            parts.append(known.prediction.view(len(rows), N, -1))
        return torch.cat(parts)

    @torch.no_grad()
    def belief(self, rows: slice) -> Belief | None:
        """Gives what NC believes about the test labels; the direct head has no beliefs."""
        known = self.context(rows).known
        return None if isinstance(known, Sets) else known
