"""Meta-learning, Algorithm 2: NC learns from the bank that its own learners fill."""

import math
import shutil
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, autocast, bfloat16, tensor

from neural_complexity import ledger
from neural_complexity.learners.fit import Recipe, warmup_cosine
from neural_complexity.meta import parallel
from neural_complexity.meta.bank import Collection, MemoryBank
from neural_complexity.meta.collect import Job, TaskCollector
from neural_complexity.meta.executor import CollectionQueue
from neural_complexity.meta.nc_loss import TrainingInputs, nc_loss, pseudo_predictions
from neural_complexity.meta.optimize import ScheduledOptimizer, Status
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import stream
from neural_complexity.task import TaskFamily
from neural_complexity.workspace import Workspace

__all__ = ["MetaLearner", "MetaTraining", "meta_train"]


@dataclass(frozen=True, kw_only=True)
class MetaTraining:
    """The settings of Algorithm 2."""

    iterations: int  # how often learners are trained for the bank
    updates: int  # of NC, per iteration
    batch: int = 512  # bank rows per update
    tasks: int = 512  # per collection, where the trainer makes the collector
    lr: float = 0.003  # the peak learning rate of Adam
    warmup: float = 0.1  # the part of training in which the learning rate rises
    decay: bool = True  # whether it falls to zero afterwards
    ramp: float = 0.5  # the part of training in which the weight of NC rises
    spread_weights: bool = True  # see `TaskCollector`; where the trainer makes the collector
    capacity: int = 100_000  # rows of the bank
    # A target for each test point, whose mean is the gap, or the paper's one for each learner.
    supervision: Literal["point", "set"] = "point"
    criterion: Literal["huber", "squared"] = "huber"  # or half the squared error
    # How much the belief about the test targets counts beside the gap, for heads that have one: a
    # learner that is already right teaches it little through the gap.
    belief_weight: float = 1.0
    pseudo_predictions: float = 0.0  # the share of learners replaced by them (labels only)
    run: int = 1  # rows of the bank that are drawn together; see `MemoryBank.sample`
    lag: int = 0  # how many iterations ahead collections are made
    interval: int = 0  # iterations between two checkpoints and scores; a twentieth of all if 0
    mixed_precision: bool = False  # whether NC learns by products of bfloat16; weights are not

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


class MetaLearner:
    """NC, its optimizer and its bank on their way through Algorithm 2.

    One iteration trains learners, regularized by the current NC with a weight that grows linearly
    from 0 to 1, and then updates NC `updates` times on rows drawn from the bank. Iteration i adds
    the collection made with the NC of the start of iteration `i - lag` (the first ones with the
    initial NC): the result depends on the lag, but not on the executor, nor on what was ready when.

    Within `in_parallel`, processes share the rows of an update; the first one collects for all, and
    each has a bank in memory, or all have the one in the workspace.

    Args:
        nc: The network to train, in place.
        family: Where tasks come from.
        recipe: How learners learn; not needed with `collections`.
        seed: The one seed of all draws.
        training: The settings.
        collections: Where collections are made, the caller's to close; in this process if `None`.
        workspace: Where an interrupted run continues from; all is kept in memory if `None`. Other
            runs must be kept out of its folder, by `locks.lock_folder` as `meta_learn` does.
        inputs: How inputs that are `Points` reach NC, if not as they are.
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
        inputs: TrainingInputs | None = None,
        **fields: Any,
    ) -> None:
        settings = MetaTraining(**fields) if training is None else replace(training, **fields)
        if settings.pseudo_predictions and not nc.labels:
            raise ValueError("pseudo-predictions must be off for real targets, got a share of them")
        self.inputs = inputs or TrainingInputs()
        if collections is None:
            if recipe is None:
                raise ValueError("a recipe must be given where there are no collections, got none")
            own: dict[str, Any] = {n: getattr(settings, n) for n in ("tasks", "spread_weights")}
            known = [] if self.inputs.embeddings is None else [self.inputs.embeddings]
            own |= {"frozen": bool(known), "embeddings": known, "device": str(nc.device)}
            collector = TaskCollector(family=family, recipe=recipe, seed=seed, **own)
            collections = CollectionQueue(collector)
        self.nc, self.family, self.seed, self.training = nc, family, seed, settings
        self.collections, self.workspace = collections, workspace or Workspace(None)
        self.optimizer = ScheduledOptimizer(nc, settings.lr, settings.lr_factor)
        collections.forget()  # what is of another run
        self.iteration = 0
        self.loss = math.nan  # of the last update
        self.history: list[Status] = []  # one per score
        # Inputs of the kind that the bank holds; if they are points, with their store.
        like = family.sample(1, stream(seed, "example")).X_tr
        folder, kept = self.workspace.path("bank"), self.workspace.read("checkpoint")
        if kept is not None and folder is not None:
            self._restore(*kept)
            self.bank = MemoryBank.open(folder, like, kept[1]["bank"])
            if parallel.leads():
                self.bank.verify()
        else:
            self._submit()
            first: Collection = parallel.from_leader(lambda: self.collections.take(0))
            self.rows_per_iteration = len(first[0])
            self.bank = self._new_bank(first, like, folder)

    def _new_bank(self, first: Collection, like: Any, folder: Path | None) -> MemoryBank:
        """Makes a bank for rows like the first: in each process, or one on disk for all of them."""
        settings = self.training
        if folder is None:
            return MemoryBank(*first, like, capacity=settings.capacity)

        def make() -> None:
            shutil.rmtree(folder, ignore_errors=True)  # of a run that was stopped early
            slack = settings.period * self.rows_per_iteration
            MemoryBank(*first, like, capacity=settings.capacity, slack=slack, folder=folder)

        parallel.from_leader(make)
        return MemoryBank.open(folder, like)

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
        settings, index = self.training, self.iteration
        self._add(index)
        generator, share = stream(self.seed, "sample bank", index), settings.pseudo_predictions
        names, device = ("supervision", "criterion", "belief_weight"), self.nc.device
        options: dict[str, Any] = {name: getattr(settings, name) for name in names}
        for _ in range(settings.updates):
            snapshot, Y_te = self.bank.sample(settings.batch, generator, run=settings.run)
            ledger.record("learn", snapshot.X_tr, snapshot.Y_tr)
            ledger.record("learn", snapshot.X_te, Y_te)
            if share:
                snapshot = pseudo_predictions(snapshot, Y_te, generator, share=share)
            rows = parallel.share(range(len(snapshot)))
            part = len(rows) / len(snapshot)
            if part < 1:  # other processes have the other rows
                snapshot, Y_te = snapshot[tensor(rows)], Y_te[tensor(rows)]
            snapshot = snapshot.to(device)
            augmenting = stream(self.seed, "augment", self.optimizer.steps)
            with autocast(device.type, bfloat16, enabled=settings.mixed_precision):
                context = self.inputs.encode(self.nc, snapshot, augmenting)
                loss = nc_loss(self.nc, snapshot, Y_te.to(device), **options, context=context)
            self.loss = self.optimizer.step(part * loss)
        self.iteration += 1
        self.collections.forget(index=self.iteration, version=settings.version(self.iteration))

    def _add(self, index: int) -> None:
        """Adds a collection to the bank: each process to its own, or one to that on disk."""

        def take() -> Collection:
            made: Collection = self.collections.take(index)
            if len(made[0]) != self.rows_per_iteration:
                told = f"collection {index} must have {self.rows_per_iteration} rows like the first"
                raise ValueError(f"{told}, got {len(made[0])}")
            return made

        def fill() -> dict[str, int]:
            self.bank.add(*take())
            return self.bank.state()

        if self.bank.folder is None:
            self.bank.add(*parallel.from_leader(take))
        else:  # nobody draws rows before they are there, and none are added while others draw
            self.bank.follow(parallel.from_leader(fill))

    def _submit(self) -> None:
        """Submits jobs up to the one that is `lag` iterations ahead."""
        settings, asked = self.training, self.collections.asked
        last = min(self.iteration + settings.lag + 1, settings.iterations)
        for index in (i for i in range(self.iteration, last) if i not in asked):
            version = settings.version(index)
            if version not in self.collections.networks:
                self.collections.publish(version, self.nc)
            self.collections.submit(Job(index, version, settings.weight(index)))

    def save(self) -> None:
        """Writes a checkpoint to the workspace, if that keeps anything; one process does."""
        if not parallel.leads():
            return
        self.bank.flush()
        tensors = self.optimizer.state()
        for version, nc in self.collections.networks.items():  # that coming jobs need
            tensors |= {f"version.{version}.{name}": t for name, t in nc.state_dict().items()}
        content = {"iteration": self.iteration, "loss": self.loss, "bank": self.bank.state()}
        content |= {"lag": self.training.lag, "rows_per_iteration": self.rows_per_iteration}
        history = [asdict(status) for status in self.history]
        self.workspace.write("checkpoint", tensors, {**content, "history": history})

    def _restore(self, tensors: dict[str, Tensor], content: dict[str, Any]) -> None:
        lag = self.training.lag
        if content["lag"] != lag:
            raise ValueError(f"lag must be {content['lag']} as it was so far, got {lag}")
        self.iteration, self.loss = content["iteration"], content["loss"]
        self.rows_per_iteration = content["rows_per_iteration"]
        self.history = [Status(**status) for status in content["history"]]
        self.optimizer.load(tensors, self.iteration * self.training.updates)
        for version in {name.split(".")[1] for name in tensors if name.startswith("version.")}:
            start, earlier = f"version.{version}.", deepcopy(self.nc)
            own = {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
            earlier.load_state_dict(own)
            self.collections.publish(int(version), earlier)


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
        if callback is not None and parallel.leads():
            metrics = {"loss": status.loss, "R2": r2, "bank": len(bank), "dropped": bank.dropped}
            callback(stage, done, total, spent, metrics)
        ended = scored and stop is not None and stop(status)
    return history
