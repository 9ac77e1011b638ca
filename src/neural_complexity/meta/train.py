"""Meta-learning, Algorithm 2: NC learns from the bank that its own learners fill."""

import math
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import Gaussian
from neural_complexity.memory import MemoryBank
from neural_complexity.meta.checkpoint import pack, unpack
from neural_complexity.meta.collect import collect
from neural_complexity.model.complexity import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap, point_gaps, take_snapshot
from neural_complexity.task import TaskFamily

__all__ = ["MetaLearner", "Supervision", "lr_factor", "nc_loss"]

Supervision = Literal["point", "set"]


def nc_loss(
    nc: NeuralComplexity,
    snapshot: Snapshot,
    Y_te: Tensor,
    *,
    supervision: Supervision = "point",
    belief_weight: float = 1.0,
) -> Tensor:
    """Computes NC's loss, the Huber loss of Eq. (5) on the gap.

    Args:
        nc: The gap predictor.
        snapshot: B learners.
        Y_te: Their test targets, (B, N, C), which only the loss sees.
        supervision: `"point"` gives each test point its own target, whose mean is the gap; `"set"`
            is the paper's one target per learner.
        belief_weight: How much a Huber loss on the posterior head's mean counts beside the gap's: a
            learner that is already right teaches it little through the gap. The direct head has no
            belief, so nothing is added.

    Returns:
        One number.
    """
    context = nc.encode(snapshot.X_tr, snapshot.Y_tr, snapshot.X_te)
    predicted = nc.points(context, snapshot.H_tr, snapshot.H_te)  # (B, N)
    if supervision == "point":
        value = huber_loss(predicted, point_gaps(nc.loss, snapshot, Y_te))
    else:
        value = huber_loss(predicted.mean(dim=1), gap(nc.loss, snapshot, Y_te))
    if belief_weight and isinstance(context.known, Gaussian):
        value = value + belief_weight * huber_loss(context.known.mean, Y_te)
    return value


def lr_factor(progress: float, *, warmup: float, decay: bool) -> float:
    """Gives the learning rate's factor: up linearly, then constant or down along a cosine.

    Args:
        progress: How much of training is done, from 0 to 1.
        warmup: The part of training that goes up.
        decay: Whether it goes down to zero afterwards.
    """
    if progress < warmup:
        return (progress / warmup) * 0.96 + 0.04
    if not decay:
        return 1.0
    return 0.5 * (1.0 + math.cos(math.pi * (progress - warmup) / (1.0 - warmup)))


class MetaLearner:
    """NC, its optimizer and its bank on their way through Algorithm 2.

    One iteration lets `tasks` learners run, regularized by the current NC with a weight that grows
    linearly from 0 to 1, and then updates NC `updates` times on rows drawn from the bank.

    Args:
        nc: The network to train, in place.
        family: Where tasks come from.
        recipe: How learners learn.
        seed: The one seed of all draws.
        iterations: How often to collect.
        updates: NC updates per iteration.
        batch: Bank rows per update.
        tasks: Tasks per collection.
        lr: The peak learning rate of Adam.
        warmup: The part of training in which the learning rate rises.
        decay: Whether it falls to zero afterwards.
        ramp: The part of training in which the weight of NC rises.
        spread_weights: Whether each learner draws its own weight below the scheduled one.
        capacity: Rows of the bank.
        supervision: See `nc_loss`.
        belief_weight: See `nc_loss`.
        bank_folder: Where to keep the bank; in memory if `None`.
        keep: Iterations that the bank on disk can be taken back, for resuming.
        resume: The state of an earlier run from `state`, whose bank is still in `bank_folder`.
    """

    def __init__(
        self,
        nc: NeuralComplexity,
        family: TaskFamily,
        recipe: Recipe,
        *,
        seed: int,
        iterations: int,
        updates: int,
        batch: int,
        tasks: int,
        lr: float,
        warmup: float = 0.1,
        decay: bool = True,
        ramp: float = 0.5,
        spread_weights: bool = True,
        capacity: int,
        supervision: Supervision = "point",
        belief_weight: float = 1.0,
        bank_folder: Path | None = None,
        keep: int = 0,
        resume: tuple[dict[str, Tensor], dict[str, Any]] | None = None,
    ) -> None:
        self.nc, self.family, self.recipe, self.seed = nc, family, recipe, seed
        self.iterations, self.updates, self.batch, self.tasks = iterations, updates, batch, tasks
        self.lr, self.warmup, self.decay = lr, warmup, decay
        self.ramp, self.spread_weights = ramp, spread_weights
        self.supervision, self.belief_weight = supervision, belief_weight
        self.adam = torch.optim.Adam(nc.parameters(), lr=lr, fused=True)
        self.iteration = 0
        self.loss = math.nan  # of the last update
        if resume is None:
            example = family.sample(1, stream(seed, "example"))
            with torch.random.fork_rng(devices=[]):
                h = recipe.make()
            row = take_snapshot(lambda X: h(X[0]).unsqueeze(0), example)
            rows_per_iteration = tasks * (recipe.steps + 1)
            self.bank = MemoryBank(
                row,
                example.Y_te,
                capacity=capacity,
                slack=keep * rows_per_iteration,
                folder=bank_folder,
            )
        else:
            self._restore(*resume, bank_folder)

    @property
    def done(self) -> bool:
        """Whether all iterations are done."""
        return self.iteration >= self.iterations

    @property
    def weight(self) -> float:
        """The weight of NC in the coming collection."""
        ramp = self.ramp * self.iterations
        return min(1.0, self.iteration / ramp) if ramp else 1.0

    def iterate(self) -> None:
        """Collects once and updates NC on what the bank holds.

        Raises:
            FloatingPointError: If NC's loss is not finite.
        """
        collect(
            self.nc,
            self.family,
            self.recipe,
            self.bank,
            tasks=self.tasks,
            weight=self.weight,
            spread_weights=self.spread_weights,
            seed=self.seed,
            index=self.iteration,
        )
        generator = stream(self.seed, "sample bank", self.iteration)
        for update in range(self.updates):
            self._update(self.iteration * self.updates + update, generator)
        self.iteration += 1

    def _update(self, index: int, generator: torch.Generator) -> None:
        progress = index / (self.iterations * self.updates)
        for group in self.adam.param_groups:
            group["lr"] = self.lr * lr_factor(progress, warmup=self.warmup, decay=self.decay)
        snapshot, Y_te = self.bank.sample(self.batch, generator)
        device = self.nc.x_mean.device
        loss = nc_loss(
            self.nc,
            snapshot.to(device),
            Y_te.to(device),
            supervision=self.supervision,
            belief_weight=self.belief_weight,
        )
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        self.loss = loss.item()
        if not math.isfinite(self.loss):
            raise FloatingPointError(
                f"NC's loss must be finite, got {self.loss} at update {index}; a smaller lr may "
                f"help"
            )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Gives all that a new process needs to go on, but for the bank's rows."""
        counters = {"iteration": self.iteration, "loss": self.loss, "bank": self.bank.state()}
        return pack(self.nc, self.adam), counters

    def _restore(
        self, tensors: dict[str, Tensor], counters: dict[str, Any], bank_folder: Path | None
    ) -> None:
        if bank_folder is None:
            raise ValueError("resuming needs the folder of the bank, got none")
        self.iteration, self.loss = counters["iteration"], counters["loss"]
        bank = counters["bank"]
        self.bank = MemoryBank.open(bank_folder, count=bank["count"], dropped=bank["dropped"])
        unpack(tensors, self.nc, self.adam)
