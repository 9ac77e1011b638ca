"""Meta-learning, Algorithm 2: NC learns from the bank that its own learners fill."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import huber_loss, mse_loss

from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import Categorical, Gaussian
from neural_complexity.memory import MemoryBank
from neural_complexity.meta.checkpoint import pack, unpack
from neural_complexity.meta.collect import collect, draw
from neural_complexity.meta.hypotheses import make_up
from neural_complexity.model.complexity import Context, NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap, point_gaps, take_snapshot
from neural_complexity.task import IndexedFamily, Task, TaskFamily

__all__ = [
    "CRITERIA",
    "Criterion",
    "MetaLearner",
    "Supervision",
    "embed_all",
    "lr_factor",
    "nc_loss",
]

Supervision = Literal["point", "set"]
Criterion = Literal["huber", "squared"]
# Half of the squared error, as the Huber loss is for small errors.
CRITERIA: dict[Criterion, Callable[[Tensor, Tensor], Tensor]] = {
    "huber": huber_loss,
    "squared": lambda a, b: 0.5 * mse_loss(a, b),
}


def nc_loss(
    nc: NeuralComplexity,
    snapshot: Snapshot,
    Y_te: Tensor,
    *,
    supervision: Supervision = "point",
    criterion: Criterion = "huber",
    belief_weight: float = 1.0,
    context: Context | None = None,
) -> Tensor:
    """Computes NC's loss, the Huber loss of Eq. (5) on the gap.

    Args:
        nc: The gap predictor.
        snapshot: B learners.
        Y_te: Their test targets, (B, N, C), which only the loss sees.
        supervision: `"point"` gives each test point its own target, whose mean is the gap; `"set"`
            is the paper's one target per learner.
        criterion: `"huber"`, or `"squared"` for half the squared error.
        belief_weight: How much the posterior head's belief about the test targets counts beside the
            gap: a learner that is already right teaches it little through the gap. It is a Huber
            loss on the mean of real targets, and the likelihood of labels. The direct head has no
            belief, so nothing is added.
        context: What NC makes of the tasks before it sees h, if that is at hand.

    Returns:
        One number.
    """
    if context is None:
        classes = snapshot.H_te.shape[-1]
        context = nc.encode(snapshot.X_tr, snapshot.Y_tr, snapshot.X_te, classes=classes)
    predicted = nc.points(context, snapshot.H_tr, snapshot.H_te)  # (B, N)
    if supervision == "point":
        value = CRITERIA[criterion](predicted, point_gaps(nc.loss, snapshot, Y_te))
    else:
        value = CRITERIA[criterion](predicted.mean(dim=1), gap(nc.loss, snapshot, Y_te))
    if belief_weight and isinstance(context.known, Gaussian):
        value = value + belief_weight * huber_loss(context.known.mean, Y_te)
    elif belief_weight and isinstance(context.known, Categorical):
        value = value + belief_weight * nc.loss(context.known.logits, Y_te).mean()
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
        criterion: See `nc_loss`.
        belief_weight: See `nc_loss`.
        made_up: The share of each batch whose learners are replaced by made-up hypotheses (labels
            only).
        run: Rows of the bank that are drawn together; see `MemoryBank.sample`.
        embeddings: What `embed_all` gives, if NC's image encoder is not trained.
        bank_folder: Where to keep the bank; in memory if `None`.
        keep: Iterations that the bank on disk can be taken back, for resuming.
        resume: The state of an earlier run from `state`, whose bank is still in `bank_folder`.

    Raises:
        ValueError: If hypotheses are to be made up about real targets, or the bank to go on from is
            not there.
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
        criterion: Criterion = "huber",
        belief_weight: float = 1.0,
        made_up: float = 0.0,
        run: int = 1,
        embeddings: Tensor | None = None,
        bank_folder: Path | None = None,
        keep: int = 0,
        resume: tuple[dict[str, Tensor], dict[str, Any]] | None = None,
    ) -> None:
        if made_up and not nc.labels:
            raise ValueError(f"made_up must be 0 for real targets, got {made_up}")
        self.nc, self.family, self.recipe, self.seed = nc, family, recipe, seed
        self.iterations, self.updates, self.batch, self.tasks = iterations, updates, batch, tasks
        self.lr, self.warmup, self.decay = lr, warmup, decay
        self.ramp, self.spread_weights = ramp, spread_weights
        self.supervision, self.criterion = supervision, criterion
        self.belief_weight, self.made_up, self.run = belief_weight, made_up, run
        trained = [p for p in nc.parameters() if p.requires_grad]
        self.adam = torch.optim.Adam(trained, lr=lr, fused=True)
        self._numbers = (
            _Numbers(nc, family, embeddings) if isinstance(family, IndexedFamily) else None
        )
        self.iteration = 0
        self.loss = math.nan  # of the last update
        if resume is None:
            kept, example = draw(family, 1, stream(seed, "example"))
            with torch.random.fork_rng(devices=[]):
                h = recipe.make().eval()
            row = take_snapshot(lambda X: h(X[0]).unsqueeze(0), example)
            row = Snapshot(kept.X_tr, row.Y_tr, row.H_tr, kept.X_te, row.H_te)
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
            encode=self._numbers,
        )
        generator = stream(self.seed, "sample bank", self.iteration)
        for update in range(self.updates):
            self._update(self.iteration * self.updates + update, generator)
        self.iteration += 1

    def _update(self, index: int, generator: torch.Generator) -> None:
        progress = index / (self.iterations * self.updates)
        for group in self.adam.param_groups:
            group["lr"] = self.lr * lr_factor(progress, warmup=self.warmup, decay=self.decay)
        snapshot, Y_te = self.bank.sample(self.batch, generator, run=self.run)
        if self.made_up:
            snapshot = _mix(snapshot, Y_te, self.made_up, generator)
        device = self.nc.x_mean.device
        snapshot = snapshot.to(device)
        loss = nc_loss(
            self.nc,
            snapshot,
            Y_te.to(device),
            supervision=self.supervision,
            criterion=self.criterion,
            belief_weight=self.belief_weight,
            context=None if self._numbers is None else self._numbers(snapshot),
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


def _mix(snapshot: Snapshot, Y_te: Tensor, share: float, generator: torch.Generator) -> Snapshot:
    """Replaces the learners of some rows by made-up hypotheses."""
    made = make_up(snapshot, Y_te, generator)
    replaced = (torch.rand(len(snapshot), generator=generator) < share)[:, None, None]
    H_tr = torch.where(replaced, made.H_tr, snapshot.H_tr)
    H_te = torch.where(replaced, made.H_te, snapshot.H_te)
    return Snapshot(snapshot.X_tr, snapshot.Y_tr, H_tr, snapshot.X_te, H_te)


@torch.no_grad()
def embed_all(nc: NeuralComplexity, family: IndexedFamily) -> Tensor:
    """Embeds every input of a family's store, (inputs, features)."""
    every = torch.arange(family.inputs, device=nc.x_mean.device).split(4096)
    return torch.cat([nc.embed(family.look_up(part)) for part in every])


class _Numbers:
    """Encodes tasks that hold numbers, embedding each input once however often it occurs.

    With a table of all embeddings at hand, nothing is embedded.
    """

    def __init__(
        self, nc: NeuralComplexity, family: IndexedFamily, table: Tensor | None = None
    ) -> None:
        self.nc, self.family, self.table = nc, family, table

    def __call__(self, task: Task | Snapshot) -> Context:
        M = task.X_tr.shape[1]
        numbers = torch.cat([task.X_tr, task.X_te], dim=1)  # (B, M + N)
        if self.table is None:
            different, place = numbers.unique(return_inverse=True)
            E = self.nc.embed(self.family.look_up(different))[place]  # (B, M + N, features)
        else:
            E = self.table[numbers]
        classes = task.H_te.shape[-1] if isinstance(task, Snapshot) and self.nc.labels else None
        return self.nc.context(E[:, :M], task.Y_tr, E[:, M:], classes=classes)
