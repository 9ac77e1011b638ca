"""Contexts of minibatches, from what NC knows of a task before its learners start.

The encoder of an NC that regularizes does not change, so inputs are embedded once; and a head that
does not see predictions is asked once about all test points, given all training points.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.points import PART, Embeddings, Store, find, map_inputs, raw
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task

__all__ = ["CachedEmbeddings", "CachedStates", "Encoder", "cache", "embed_store", "subsample"]

Encoder = Callable[[Task | Snapshot], Context]  # what NC knows of the points of a step


@torch.no_grad()
def embed_store(nc: NeuralComplexity, store: Store, indices: Tensor) -> Embeddings:
    """Embeds inputs of a store, each of them once however often its index occurs."""
    distinct = indices.unique()
    shape = tuple(store(distinct[:1]).shape[1:])
    if nc.shape and shape != nc.shape:
        raise ValueError(f"inputs must be of NC's size, {nc.shape}, got {shape}")
    return Embeddings(distinct, torch.cat([nc.embed(store(i)) for i in distinct.split(PART)]))


@dataclass(frozen=True)
class CachedEmbeddings:
    """Encodes the points of a step from embeddings by index, or from values if there are none."""

    nc: NeuralComplexity
    embeddings: Embeddings | None = None  # of all inputs that may occur
    fixed: tuple[Tensor, ...] | None = None  # X_tr and Y_tr that take the place of the step's

    @torch.no_grad()
    def __call__(self, points: Task | Snapshot) -> Context:
        """Returns the context; it asks for predictions at fixed points if NC sees them."""
        X_tr, Y_tr = self.fixed or (points.X_tr, points.Y_tr)
        if self.embeddings is None:
            E_tr, E_te = map_inputs(self.nc.embed, X_tr, points.X_te)
        else:
            E_tr, E_te = (self.embeddings(raw(X)) for X in (X_tr, points.X_te))
        classes = points.H_te.shape[-1] if isinstance(points, Snapshot) else None
        context = self.nc.context(E_tr, Y_tr, E_te, classes=classes)
        asks = self.fixed is not None and self.nc.head.sees_predictions
        return replace(context, X_tr=X_tr) if asks else context


@dataclass(frozen=True)
class CachedStates:
    """Looks up what a head that does not see predictions said about all test points of B tasks."""

    indices: Tensor  # (B, n), ascending
    state: Any  # of the head, about these

    def __call__(self, points: Task | Snapshot) -> Context:
        """Returns the context of some of the test points; refuses others."""
        place = find(self.indices, raw(points.X_te)).unsqueeze(-1)  # (B, N, 1)
        return Context(points.Y_tr, self.state.map(lambda t: t.take_along_dim(place, dim=1)))


def subsample(task: Task, size: int, generator: torch.Generator) -> Task:
    """Returns the tasks with `size` training points each, chosen at random, or all if fewer."""
    keys = torch.rand(task.X_tr.shape[:2], generator=generator)
    few = keys.topk(min(size, keys.shape[1]), dim=1).indices.to(task.Y_tr.device)
    row = torch.arange(len(task), device=few.device)[:, None]
    return replace(task, X_tr=task.X_tr[row, few], Y_tr=task.Y_tr[row, few])


@torch.no_grad()
def cache(
    nc: NeuralComplexity, task: Task, embeddings: Embeddings, *, classes: int | None = None
) -> Encoder:
    """Prepares NC for learners that see minibatches of tasks, whose inputs are points."""
    if nc.head.sees_predictions:  # asked at each step, given the training points of the minibatch
        return CachedEmbeddings(nc, embeddings)
    E_tr, indices = embeddings(raw(task.X_tr)), raw(task.X_te).sort(dim=1).values
    parts = (embeddings(part) for part in indices.split(PART, dim=1))
    states = [nc.context(E_tr, task.Y_tr, E_te, classes=classes).state for E_te in parts]
    return CachedStates(indices, states[0].join(states, dim=1))
