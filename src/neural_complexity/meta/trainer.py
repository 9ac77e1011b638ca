"""Meta-learning, Algorithm 2: NC learns from the bank that its own learners fill."""

import math
import shutil
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from neural_complexity import ledger
from neural_complexity.learners.fit import Recipe
from neural_complexity.meta.bank import MemoryBank
from neural_complexity.meta.collect import TaskCollector
from neural_complexity.meta.executor import CollectionQueue, Job
from neural_complexity.meta.nc_loss import TrainingInputs, nc_loss, pseudo_predictions
from neural_complexity.meta.optimizer import ScheduledAdam, warmup_cosine
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import stream
from neural_complexity.task import TaskFamily
from neural_complexity.workspace import Workspace

__all__ = ["MetaLearner", "MetaTraining", "Status", "meta_train"]

PLAIN_INPUTS = TrainingInputs()


@dataclass(frozen=True, kw_only=True)
class MetaTraining:
    """The settings of Algorithm 2.

    Args:
        iterations: How often learners are trained for the bank.
        updates: NC updates per iteration.
        batch: Bank rows per update.
        tasks: Tasks per collection, where the trainer makes the collector.
        lr: The peak learning rate of Adam.
        warmup: The part of training in which the learning rate rises.
        decay: Whether it falls to zero afterwards.
        ramp: The part of training in which the weight of NC rises.
        spread_weights: See `TaskCollector`; where the trainer makes the collector.
        capacity: Rows of the bank.
        supervision: `"point"` gives each test point its own target, whose mean is the gap; `"set"`
            is the paper's one target per learner.
        criterion: `"huber"`, or `"squared"` for half the squared error.
        belief_weight: How much the belief about the test targets counts beside the gap, for heads
            that have one: a learner that is already right teaches it little through the gap.
        pseudo_predictions: The share of learners that these replace in a batch (labels only).
        run: Rows of the bank that are drawn together; see `MemoryBank.sample`.
        lag: How many iterations ahead collections are made.
        interval: Iterations between two checkpoints and scores; a twentieth of all if 0.
    """

    iterations: int
    updates: int
    batch: int = 512
    tasks: int = 512
    lr: float = 0.003
    warmup: float = 0.1
    decay: bool = True
    ramp: float = 0.5
    spread_weights: bool = True
    capacity: int = 100_000
    supervision: Literal["point", "set"] = "point"
    criterion: Literal["huber", "squared"] = "huber"
    belief_weight: float = 1.0
    pseudo_predictions: float = 0.0
    run: int = 1
    lag: int = 0
    interval: int = 0

    def __post_init__(self) -> None:
        if self.lag < 0:
            raise ValueError(f"lag must not be negative, got {self.lag}")

    @property
    def period(self) -> int:
        """Iterations between two checkpoints and scores."""
        return self.interval or max(1, self.iterations // 20)

    def weight(self, iteration: int) -> float:
        """Returns the weight of NC in the collection of an iteration."""
        ramp = self.ramp * self.iterations
        return min(1.0, iteration / ramp) if ramp else 1.0

    def lr_factor(self, update: int) -> float:
        """Returns what the learning rate is multiplied by at an update."""
        progress = update / max(1, self.iterations * self.updates)
        return warmup_cosine(progress, warmup=self.warmup, decay=self.decay)

    def version(self, index: int) -> int:
        """Returns the iteration at whose start NC had the weights that make a collection."""
        return max(0, index - self.lag)


@dataclass(frozen=True)
class Status:
    """Where meta-learning stands."""

    iteration: int
    iterations: int
    bank: int  # rows in the bank
    dropped: int  # rows refused because their learner diverged
    seconds: float  # spent so far, over all sessions
    loss: float = math.nan
    r2: float = math.nan  # on held-out learners, as last measured

    def to_json(self) -> dict[str, float]:
        """Returns the numbers that JSON has; the others are NaN again in `Status(**numbers)`."""
        return {name: number for name, number in asdict(self).items() if math.isfinite(number)}


class MetaLearner:
    """NC, its optimizer and its bank on their way through Algorithm 2.

    One iteration trains learners, regularized by the current NC with a weight that grows linearly
    from 0 to 1, and then updates NC `updates` times on rows drawn from the bank. Iteration i adds
    the collection made with the NC of the start of iteration `i - lag` (the first ones with the
    initial NC): the result depends on the lag, but not on the executor, nor on what was ready when.

    Args:
        nc: The network to train, in place.
        family: Where tasks come from.
        recipe: How learners learn; not needed with `collections`.
        seed: The one seed of all draws.
        training: The settings.
        collections: Where collections are made, the caller's to close; in this process if `None`.
        workspace: Where an interrupted run continues from; all is kept in memory if `None`.
        inputs: How inputs that are `Points` reach NC.
        fields: Of `MetaTraining`, instead of or in addition to `training`.

    Raises:
        ValueError: If pseudo-predictions of real targets are asked for, the workspace is of other
            settings, or there is neither recipe nor `collections`.
    """

    def __init__(
        self,
        nc: NeuralComplexity,
        family: TaskFamily,
        recipe: Recipe | None = None,
        *,
        seed: int,
        training: MetaTraining | None = None,
        collections: CollectionQueue | None = None,
        workspace: Workspace | None = None,
        inputs: TrainingInputs = PLAIN_INPUTS,
        **fields: Any,
    ) -> None:
        settings = MetaTraining(**fields) if training is None else replace(training, **fields)
        if settings.pseudo_predictions and not nc.labels:
            raise ValueError("pseudo-predictions must be off for real targets, got a share of them")
        if collections is None:
            if recipe is None:
                raise ValueError("a recipe must be given where there are no collections, got none")
            own: dict[str, Any] = {"family": family, "recipe": recipe, "device": str(nc.device)}
            own |= {"tasks": settings.tasks, "spread_weights": settings.spread_weights}
            frozen = inputs.embeddings is not None
            collections = CollectionQueue(TaskCollector(seed=seed, frozen=frozen, **own))
        self.nc, self.family, self.seed, self.training = nc, family, seed, settings
        self.collections, self.inputs = collections, inputs
        self.workspace = Workspace(None) if workspace is None else workspace
        self.optimizer = ScheduledAdam(nc, settings.lr, settings.lr_factor)
        collections.forget(index=sys.maxsize, version=sys.maxsize)  # what is of another run
        self.iteration = 0
        self.loss = math.nan  # of the last update
        self.history: list[Status] = []  # one per score
        # Inputs of the kind that the bank holds; if they are points, with their store.
        like = family.sample(1, stream(seed, "example")).X_tr
        folder = self.workspace.path("bank")
        kept = self.workspace.read("checkpoint")
        if kept is not None:
            self._restore(like, *kept)
        elif folder is not None and folder.exists():
            shutil.rmtree(folder)  # of a run that was stopped before its first checkpoint
        self._submitted = self.iteration  # the first job that is not yet
        self._submit()
        if kept is None:
            first = self.collections.take(0)
            self.rows_per_iteration = len(first[0])
            slack = 0 if folder is None else settings.period * self.rows_per_iteration
            size = settings.capacity
            self.bank = MemoryBank(*first, like, capacity=size, slack=slack, folder=folder)

    @property
    def done(self) -> bool:
        """Whether all iterations are done."""
        return self.iteration >= self.training.iterations

    def iterate(self) -> None:
        """Adds a collection to the bank and updates NC on what the bank holds.

        Raises:
            FloatingPointError: If NC's loss is not finite.
        """
        self._submit()
        settings, index, rows = self.training, self.iteration, self.rows_per_iteration
        snapshot, Y_te = self.collections.take(index)
        if len(snapshot) != rows:
            told = f"collection {index} must have {rows} rows like the first"
            raise ValueError(f"{told}, got {len(snapshot)}")
        self.bank.add(snapshot, Y_te)
        generator = stream(self.seed, "sample bank", index)
        for _ in range(settings.updates):
            self._update(generator)
        self.iteration += 1
        self.collections.forget(index=self.iteration, version=settings.version(self.iteration))

    def _submit(self) -> None:
        """Submits jobs up to the one that is `lag` iterations ahead."""
        settings = self.training
        last = min(self.iteration + settings.lag + 1, settings.iterations)
        for index in range(self._submitted, last):
            version = settings.version(index)
            if version not in self.collections.networks:
                self.collections.publish(version, self.nc)
            self.collections.submit(Job(index, version, settings.weight(index)))
            self._submitted = index + 1

    def _update(self, generator: torch.Generator) -> None:
        settings = self.training
        snapshot, Y_te = self.bank.sample(settings.batch, generator, run=settings.run)
        ledger.record("learn", snapshot.X_tr, snapshot.Y_tr)
        ledger.record("learn", snapshot.X_te, Y_te)
        share = settings.pseudo_predictions
        if share:
            snapshot = pseudo_predictions(snapshot, Y_te, generator, share=share)
        snapshot = snapshot.to(self.nc.device)
        augmenting = stream(self.seed, "augment", self.optimizer.steps)
        options: dict[str, Any] = {"context": self.inputs.encode(self.nc, snapshot, augmenting)}
        options |= {"supervision": settings.supervision, "criterion": settings.criterion}
        options["belief_weight"] = settings.belief_weight
        loss = nc_loss(self.nc, snapshot, Y_te.to(self.nc.device), **options)
        self.loss = self.optimizer.step(loss)

    def save(self) -> None:
        """Writes a checkpoint to the workspace."""
        if self.workspace.folder is None:
            return
        self.bank.flush()
        tensors = self.optimizer.state()
        for version, nc in self.collections.networks.items():  # that coming jobs need
            tensors |= {f"version.{version}.{name}": t for name, t in nc.state_dict().items()}
        content = {"iteration": self.iteration, "loss": self.loss, "bank": self.bank.state()}
        content |= {"lag": self.training.lag, "rows_per_iteration": self.rows_per_iteration}
        history = [asdict(status) for status in self.history]
        self.workspace.write("checkpoint", tensors, {**content, "history": history})

    def _restore(self, like: Tensor, tensors: dict[str, Tensor], content: dict[str, Any]) -> None:
        before, lag = content["lag"], self.training.lag
        if before != lag:
            raise ValueError(f"lag must be {before} as it was so far, got {lag}")
        self.iteration, self.loss = content["iteration"], content["loss"]
        self.rows_per_iteration = content["rows_per_iteration"]
        self.history = [Status(**status) for status in content["history"]]
        folder = self.workspace.path("bank")
        assert folder is not None
        count = {name: content["bank"][name] for name in ("count", "dropped")}
        self.bank = MemoryBank.open(folder, like, **count)
        self.optimizer.load(tensors, self.iteration * self.training.updates)
        versions: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("version."):
                _, number, own = name.split(".", 2)
                versions.setdefault(int(number), {})[own] = tensor
        for version, weights in versions.items():
            earlier = deepcopy(self.nc)
            earlier.load_state_dict(weights)
            self.collections.publish(version, earlier)


def meta_train(
    learner: MetaLearner,
    validate: Callable[[NeuralComplexity], float],
    *,
    stage: str = "NC",
    callback: ProgressCallback | None = None,
    stop: Callable[[Status], bool] | None = None,
) -> list[Status]:
    """Runs all iterations of Algorithm 2; the result does not depend on interruptions.

    Args:
        learner: As it starts, or as its workspace continues it.
        validate: Scores NC on held-out learners.
        stage: What the progress callback is told is under way.
        callback: Called after each iteration.
        stop: Asked after each score whether to end here; after an interruption, first about all
            scores so far, so that it knows what it would have known without.

    Returns:
        One status per score.
    """
    history, period, start = learner.history, learner.training.period, time.perf_counter()
    r2, before = (history[-1].r2, history[-1].seconds) if history else (math.nan, 0.0)
    ended = False
    for status in history:
        ended = stop is not None and stop(status)
    while not (learner.done or ended):
        learner.iterate()
        scored = learner.iteration % period == 0 or learner.done
        if scored:
            with ledger.choosing():
                r2 = validate(learner.nc)
        spent, bank = before + time.perf_counter() - start, learner.bank
        done, total = learner.iteration, learner.training.iterations
        status = Status(done, total, len(bank), bank.dropped, spent, learner.loss, r2)
        if scored:
            history.append(status)
            learner.save()
        if callback is not None:
            metrics = {"loss": status.loss, "R2": r2, "bank": len(bank), "dropped": bank.dropped}
            callback(stage, done, total, spent, metrics)
        ended = scored and stop is not None and stop(status)
    return history
