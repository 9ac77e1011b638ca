"""Meta-learning, Algorithm 2: NC learns from the bank that its own learners fill."""

import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import huber_loss, mse_loss

from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import Categorical, Gaussian
from neural_complexity.meta.bank import MemoryBank
from neural_complexity.meta.checkpoint import pack, unpack
from neural_complexity.meta.collect import ByNumber, collect, draw
from neural_complexity.meta.executor import Collection, Engine, Job
from neural_complexity.meta.pseudo_predictions import make_up
from neural_complexity.model.indexed import embed
from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap, point_gaps, take_snapshot
from neural_complexity.task import IndexedFamily, TaskFamily

__all__ = [
    "CRITERIA",
    "Augment",
    "Criterion",
    "MetaLearner",
    "Supervision",
    "embed_all",
    "lr_factor",
    "nc_loss",
]

Supervision = Literal["point", "set"]
Criterion = Literal["huber", "squared"]
Augment = Callable[[Tensor, torch.Generator], Tensor]
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

    An engine may have learners run elsewhere, `lag` iterations ahead: iteration i adds the
    collection that learners made with the NC of the start of iteration `i - lag` (the first ones
    with the initial NC). So the result depends on the lag, but not on the engine, nor on when
    anything was ready.

    Args:
        nc: The network to train, in place.
        family: Where tasks come from.
        recipe: How learners learn; not needed with an engine.
        seed: The one seed of all draws.
        iterations: How often to collect.
        updates: NC updates per iteration.
        batch: Bank rows per update.
        tasks: Tasks per collection; not needed with an engine.
        lr: The peak learning rate of Adam.
        warmup: The part of training in which the learning rate rises.
        decay: Whether it falls to zero afterwards.
        ramp: The part of training in which the weight of NC rises.
        spread_weights: Whether each learner draws its own weight below the scheduled one; the
            collector's business with an engine.
        capacity: Rows of the bank.
        supervision: See `nc_loss`.
        criterion: See `nc_loss`.
        belief_weight: See `nc_loss`.
        made_up: The share of each batch whose learners are replaced by made-up hypotheses (labels
            only).
        run: Rows of the bank that are drawn together; see `MemoryBank.sample`.
        embeddings: What `embed_all` gives, if NC's image encoder is not trained.
        augment: Changes inputs at random, (P, ...), before NC learns from them; for families that
            tell inputs by number.
        bank_folder: Where to keep the bank; in memory if `None`.
        keep: Iterations that the bank on disk can be taken back, for resuming.
        resume: The state of an earlier run from `state`, whose bank is still in `bank_folder`.
        engine: Makes the collections, all with as many rows as the first; made here, in between the
            updates, if `None`. It is the caller's to close.
        lag: How many iterations ahead the engine works.

    Raises:
        ValueError: If hypotheses are to be made up about real targets, the bank to go on from is
            not there or was filled with another lag, or there is neither recipe nor engine.
    """

    def __init__(
        self,
        nc: NeuralComplexity,
        family: TaskFamily,
        recipe: Recipe | None = None,
        *,
        seed: int,
        iterations: int,
        updates: int,
        batch: int,
        tasks: int = 0,
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
        augment: Augment | None = None,
        bank_folder: Path | None = None,
        keep: int = 0,
        resume: tuple[dict[str, Tensor], dict[str, Any]] | None = None,
        engine: Engine | None = None,
        lag: int = 0,
    ) -> None:
        if lag < 0:
            raise ValueError(f"lag must not be negative, got {lag}")
        if lag and engine is None:
            raise ValueError(f"lag must be 0 without an engine, got {lag}")
        if engine is None and (recipe is None or tasks < 1):
            raise ValueError(
                f"without an engine there must be a recipe and at least one task, got {recipe} and "
                f"{tasks}"
            )
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
            ByNumber(nc, family, embeddings) if isinstance(family, IndexedFamily) else None
        )
        self.augment, self.engine, self.lag = augment, engine, lag
        self._versions: dict[int, dict[str, Tensor]] = {}  # of NC, that coming jobs need
        self.iteration = 0
        self.loss = math.nan  # of the last update
        if resume is not None:
            self._restore(*resume, bank_folder)
        self._submitted = self.iteration  # the first job that is not yet
        self._submit()
        if resume is None:
            example, self.rows_per_iteration = self._example()
            self.bank = MemoryBank(
                *example,
                capacity=capacity,
                slack=keep * self.rows_per_iteration,
                folder=bank_folder,
            )

    @property
    def done(self) -> bool:
        """Whether all iterations are done."""
        return self.iteration >= self.iterations

    @property
    def weight(self) -> float:
        """The weight of NC in the coming collection."""
        return self._weight(self.iteration)

    def _weight(self, iteration: int) -> float:
        ramp = self.ramp * self.iterations
        return min(1.0, iteration / ramp) if ramp else 1.0

    def iterate(self) -> None:
        """Collects once and updates NC on what the bank holds.

        Raises:
            FloatingPointError: If NC's loss is not finite.
        """
        self._submit()
        self.bank.add(*self._collection())
        generator = stream(self.seed, "sample bank", self.iteration)
        for update in range(self.updates):
            self._update(self.iteration * self.updates + update, generator)
        self.iteration += 1
        self._forget()

    def _collection(self) -> Collection:
        """Gives the rows that this iteration adds."""
        if self.engine is None:
            assert self.recipe is not None
            return collect(
                self.nc,
                self.family,
                self.recipe,
                tasks=self.tasks,
                weight=self.weight,
                spread_weights=self.spread_weights,
                seed=self.seed,
                index=self.iteration,
                encode=self._numbers,
            )
        snapshot, Y_te = self.engine.take(self.iteration)
        if len(snapshot) != self.rows_per_iteration:
            raise ValueError(
                f"collection {self.iteration} must have {self.rows_per_iteration} rows like the "
                f"first, got {len(snapshot)}"
            )
        return snapshot, Y_te

    def _example(self) -> tuple[Collection, int]:
        """Gives rows of the kind that the bank will hold, and how many each iteration adds."""
        if self.engine is not None:
            collection = self.engine.take(self.iteration)
            return collection, len(collection[0])
        assert self.recipe is not None
        kept, task = draw(self.family, 1, stream(self.seed, "example"))
        with torch.random.fork_rng(devices=[]):
            h = self.recipe.make().eval()
        row = take_snapshot(lambda X: h(X[0]).unsqueeze(0), task)
        row = Snapshot(kept.X_tr, row.Y_tr, row.H_tr, kept.X_te, row.H_te)
        return (row, task.Y_te), self.tasks * (self.recipe.steps + 1)

    def _submit(self) -> None:
        """Asks for collections up to the one that is `lag` iterations ahead."""
        if self.engine is None:
            return
        for index in range(self._submitted, min(self.iteration + self.lag + 1, self.iterations)):
            version = self._version(index)
            if version not in self._versions:
                self._versions[version] = {n: t.clone() for n, t in self.nc.state_dict().items()}
                self.engine.publish(version, self.nc)
            self.engine.submit(Job(index, version, self._weight(index)))
            self._submitted = index + 1

    def _version(self, index: int) -> int:
        """Gives the version of NC, by the iteration it began, that a collection is made with."""
        return max(0, index - self.lag)

    def _forget(self) -> None:
        """Drops what no coming collection needs."""
        if self.engine is not None:
            ahead = range(self.iteration, self._submitted)
            self._versions = {v: self._versions[v] for v in {self._version(i) for i in ahead}}
            self.engine.forget(index=self.iteration, version=self._version(self.iteration))

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
            context=self._context(snapshot, index),
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

    def _context(self, snapshot: Snapshot, index: int) -> Context | None:
        if self._numbers is None:
            return None
        if self.augment is None:
            return self._numbers(snapshot)
        generator = stream(self.seed, "augment", index)
        augment = self.augment
        return self._numbers(snapshot, lambda inputs: augment(inputs, generator))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Gives all that a new process needs to go on, but for the bank's rows."""
        counters = {"iteration": self.iteration, "loss": self.loss, "bank": self.bank.state()}
        counters |= {"lag": self.lag, "rows_per_iteration": self.rows_per_iteration}
        tensors = pack(self.nc, self.adam)
        for version, weights in self._versions.items():
            tensors |= {f"version.{version}.{name}": t for name, t in weights.items()}
        return tensors, counters

    def _restore(
        self, tensors: dict[str, Tensor], counters: dict[str, Any], bank_folder: Path | None
    ) -> None:
        if bank_folder is None:
            raise ValueError("resuming needs the folder of the bank, got none")
        if not {"lag", "rows_per_iteration"} <= set(counters):
            raise ValueError("the checkpoint must be of this release, got an earlier one")
        if counters["lag"] != self.lag:
            raise ValueError(f"lag must be {counters['lag']} as it was so far, got {self.lag}")
        self.iteration, self.loss = counters["iteration"], counters["loss"]
        self.rows_per_iteration = counters["rows_per_iteration"]
        bank = counters["bank"]
        self.bank = MemoryBank.open(bank_folder, count=bank["count"], dropped=bank["dropped"])
        for name, tensor in tensors.items():
            if name.startswith("version."):
                _, number, own = name.split(".", 2)
                self._versions.setdefault(int(number), {})[own] = tensor
        unpack(tensors, self.nc, self.adam)
        for version, weights in self._versions.items():
            assert self.engine is not None
            earlier = deepcopy(self.nc)
            earlier.load_state_dict(weights)
            self.engine.publish(version, earlier)


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
    every = torch.arange(family.inputs, device=nc.x_mean.device)
    return embed(nc, family.look_up, every).table
