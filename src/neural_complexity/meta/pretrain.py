"""Pretraining of an NC for any table: its beliefs learn from the labels of synthetic tables."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from neural_complexity import ledger
from neural_complexity.meta.bank import Arrays
from neural_complexity.meta.collect import Job
from neural_complexity.meta.executor import CollectionQueue
from neural_complexity.meta.optimize import Optimization, Status, optimize
from neural_complexity.meta.parallel import own_device, processes, share
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.synthetic_tables import Tables
from neural_complexity.workspace import Workspace

__all__ = ["PartLoss", "Pretraining", "belief_loss", "held_out_tables", "matrices", "pretrain"]

LOSS = "loss"  # among names of parameters, which have dots
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


@dataclass(frozen=True)
class PartLoss:
    """The loss of NC on one part of an update's tables, in this process or in a worker."""

    family: Tables  # at full size
    settings: Pretraining
    seed: int  # the run's

    @property
    def parts(self) -> int:
        """Of an update; each has tables of one size."""
        return self.settings.tables // self.settings.together

    def loss(self, nc: NeuralComplexity, update: int, part: int) -> Tensor:
        """Computes its share of the update's loss, a scalar."""
        own = self.settings.family(self.family, update / self.settings.updates)
        task = own.sample(self.settings.together, stream(self.seed, "tables", update, part))
        ledger.record_task("learn", task)
        mixed = self.settings.mixed_precision
        with torch.autocast(nc.device.type, torch.bfloat16, enabled=mixed):
            return belief_loss(nc, task.to(nc.device)) / self.parts

    def __call__(self, nc: NeuralComplexity, job: Job) -> Arrays:
        """Returns the loss and its gradients by name; jobs count the parts of all updates."""
        loss = self.loss(nc, *divmod(job.index, self.parts))
        names, own = zip(*nc.named_parameters(), strict=True)
        gradients = zip(names, torch.autograd.grad(loss, own, allow_unused=True), strict=True)
        told = {LOSS: loss} | {name: g for name, g in gradients if g is not None}
        return {name: tensor.detach().cpu().numpy() for name, tensor in told.items()}


class _Elsewhere:
    """Losses and gradients of parts by an executor; the same as here, to the last bit."""

    def __init__(self, part: PartLoss, nc: NeuralComplexity, executor: Executor) -> None:
        self.queue, self.nc, self.parts = CollectionQueue(part, executor), nc, part.parts

    def __call__(self, update: int) -> Iterator[Tensor]:
        """Returns scalars that have these values and gradients."""
        first = update * self.parts
        self.queue.forget(index=first, version=update)
        self.queue.publish(update, self.nc)
        jobs = range(first, first + self.parts)
        for index in jobs:
            self.queue.submit(Job(index, update, 0.0))
        own = dict(self.nc.named_parameters())
        for index in jobs:
            found = self.queue.take(index)
            gradients = {n: torch.tensor(a, device=self.nc.device) for n, a in found.items()}
            loss = gradients.pop(LOSS)
            # What is added is zero, and has these gradients.
            along = torch.stack([(own[name] * g).sum() for name, g in gradients.items()]).sum()
            yield loss + (along - along.detach())


def pretrain(
    nc: NeuralComplexity,
    family: Tables,
    settings: Pretraining,
    *,
    seed: int,
    executor: Executor | None = None,
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
        executor: Computes gradients of parts of an update, if not this process: as many workers
            are busy as there are parts. It is the caller's to shut down.
        work: Where an interrupted training continues from.
        callback: Told of each update.

    Returns:
        One status per checkpoint, with the loss on held-out tables.
    """
    if not nc.architecture.for_tables:
        raise ValueError("nc must be for tables, got another")
    if not nc.architecture.table_layers:
        raise ValueError("table_layers must be at least 1 for pretraining, got 0")
    if executor is not None and processes() > 1:
        raise ValueError(f"executor must be None for {processes()} processes, got one")
    nc.to(own_device(nc.device))
    part = PartLoss(family, settings, seed)

    def here(update: int) -> Iterator[Tensor]:
        for i in share(range(part.parts)):
            yield part.loss(nc, update, i)

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
    losses = here if executor is None else _Elsewhere(part, nc, executor)
    return optimize(nc, losses, how, "tables", work, callback, matrices=own, validate=validate)


def matrices(nc: NeuralComplexity) -> Sequence[nn.Parameter]:
    """Returns the weights between hidden layers, for Muon: those of embeddings and answers differ.

    Muon makes all directions of a matrix count alike.
    """
    return [p for name, p in nc.named_parameters() if p.ndim == 2 and "_layers." in name]
