"""Pretraining of an NC for any table: its beliefs learn from the labels of synthetic tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from neural_complexity import ledger
from neural_complexity.meta.optimize import Optimization, Status, optimize
from neural_complexity.meta.parallel import own_device, share
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.synthetic_tables import Tables
from neural_complexity.workspace import Workspace

__all__ = ["Pretraining", "belief_loss", "held_out_tables", "matrices", "pretrain"]

FIRST = 0.5  # the part of their range, as logarithms, that sizes have at first


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """The settings of pretraining."""

    updates: int
    tables: int = 16  # per update
    together: int = 4  # tables of one size, which are one batch
    lr: float = 0.002  # the peak learning rate of Muon and Adam
    warmup: float = 0.02  # the part of training in which the learning rate rises
    clip: float = 1.0  # the largest norm of the gradient
    growth: float = 0.3  # the part of training in which tables grow to their size
    held_out: int = 64  # tables on which NC is scored on its way
    checkpoints: int = 100
    mixed_precision: bool = False  # whether NC learns by products of bfloat16; weights are not

    def __post_init__(self) -> None:
        if self.tables % self.together:
            got = f"{self.tables} and {self.together}"
            raise ValueError(f"tables must be a multiple of those drawn together, got {got}")

    def family(self, family: Tables, progress: float) -> Tables:
        """Returns the tables of a part of training: small ones first, which teach most quickly."""
        share = min(1.0, FIRST + (1 - FIRST) * progress / self.growth) if self.growth else 1.0

        def grown(sizes: tuple[int, int]) -> tuple[int, int]:
            low, high = sizes
            return low, max(low, round(low * (high / low) ** share))

        rows, features = grown(family.train_points), grown(family.features)
        return replace(family, train_points=rows, features=features)


def belief_loss(nc: NeuralComplexity, task: Task) -> Tensor:
    """Computes what NC's beliefs about test targets cost, a scalar."""
    context = nc.encode(task.X_tr, task.Y_tr, task.X_te)
    return nc.loss.supervise(nc.believe(context), task.Y_te)


def held_out_tables(family: Tables, settings: Pretraining, seed: int) -> list[Task]:
    """Draws the tables on which NC is scored: as many sizes as there are batches."""
    count = max(1, settings.held_out // settings.together)
    streams = (stream(seed, "held-out tables", i) for i in range(count))
    return [family.sample(settings.together, generator) for generator in streams]


def pretrain(
    nc: NeuralComplexity,
    family: Tables,
    settings: Pretraining,
    *,
    seed: int,
    work: Workspace | None = None,
    callback: ProgressCallback | None = None,
) -> list[Status]:
    """Trains the beliefs of an NC for tables, in place; the result does not depend on a kill.

    Within `in_parallel`, processes share the tables of an update.

    Args:
        nc: The network; see `Architecture.for_tables`.
        family: The tables, at their full size.
        settings: How long, and how.
        seed: The one seed of all draws.
        work: Where an interrupted training continues from.
        callback: Told of each update.

    Returns:
        One status per checkpoint, with the loss on held-out tables.
    """
    if not nc.architecture.for_tables:
        raise ValueError("nc must be for tables, got another")
    if not nc.architecture.table_layers:
        raise ValueError("table_layers must be at least 1 for pretraining, got 0")
    nc.to(own_device(nc.device))
    parts = settings.tables // settings.together

    def losses(update: int) -> Iterator[Tensor]:
        own = settings.family(family, update / settings.updates)
        for part in share(range(parts)):
            task = own.sample(settings.together, stream(seed, "tables", update, part))
            ledger.record_task("learn", task)
            with torch.autocast(nc.device.type, torch.bfloat16, enabled=settings.mixed_precision):
                loss = belief_loss(nc, task.to(nc.device)) / parts
            yield loss

    @torch.no_grad()
    def validate() -> float:
        for task in held_out:
            ledger.record_task("hold", task)
        scores = [belief_loss(nc, task.to(nc.device)) for task in held_out]
        return torch.stack(scores).mean().item()

    held_out = held_out_tables(family, settings, seed)
    how = Optimization(
        updates=settings.updates,
        lr=settings.lr,
        warmup=settings.warmup,
        clip=settings.clip,
        checkpoints=settings.checkpoints,
    )
    own = matrices(nc)
    return optimize(nc, losses, how, "tables", work, callback, matrices=own, validate=validate)


def matrices(nc: NeuralComplexity) -> Sequence[nn.Parameter]:
    """Returns the weights between hidden layers, for Muon: those of embeddings and answers differ.

    Muon makes all directions of a matrix count alike.
    """
    return [p for name, p in nc.named_parameters() if p.ndim == 2 and "_layers." in name]
