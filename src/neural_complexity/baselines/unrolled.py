"""How baselines are trained, and those trained through learners' updates: MAML and MetaReg."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from neural_complexity import ledger
from neural_complexity.learners.batched import PlacedLearner, stack
from neural_complexity.learners.fit import Recipe, unroll
from neural_complexity.meta.trainer import ScheduledAdam, Status, warmup_cosine
from neural_complexity.progress import ProgressCallback
from neural_complexity.regularizers.penalties import weighted_l1_penalty
from neural_complexity.seeding import seeded, stream
from neural_complexity.task import TaskFamily
from neural_complexity.workspace import Workspace

__all__ = ["MamlTraining", "Optimization", "optimize", "start_from", "train_maml", "train_metareg"]


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """The settings of Adam."""

    updates: int
    lr: float  # at its peak
    warmup: float = 0.0  # the part of training in which the learning rate rises
    decay: bool = True  # whether it falls to zero afterwards, along a cosine

    def __post_init__(self) -> None:
        for name in ("updates", "tasks", "steps"):
            if getattr(self, name, 1) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def lr_factor(self, update: int) -> float:
        """Returns what the learning rate is multiplied by at an update."""
        return warmup_cosine(update / self.updates, warmup=self.warmup, decay=self.decay)


@dataclass(frozen=True, kw_only=True)
class MamlTraining(Optimization):
    """The settings of MAML."""

    tasks: int  # per update of the initial parameters
    steps: int  # of a learner, that gradients flow through


def optimize(
    module: nn.Module,
    loss: Callable[[int], Tensor],
    settings: Optimization,
    *,
    stage: str,
    work: Workspace | None = None,
    callback: ProgressCallback | None = None,
    fused: bool = True,
) -> list[Status]:
    """Trains a module in place by `loss(update)`, a scalar; returns a status per twentieth of it.

    The result does not depend on interruptions: a checkpoint is kept with each status. So, with a
    workspace, the loss must depend on the update and the parameters alone.
    """
    work = Workspace(None) if work is None else work
    optimizer = ScheduledAdam(module, settings.lr, settings.lr_factor, fused=fused)
    history: list[Status] = []
    kept = work.read("checkpoint")
    if kept is not None:
        tensors, content = kept
        history = [Status(**status) for status in content["history"]]
        optimizer.load(tensors, history[-1].iteration)
    before, start = history[-1].seconds if history else 0.0, time.perf_counter()
    period = max(1, settings.updates // 20)
    for update in range(optimizer.steps, settings.updates):
        value, done = optimizer.step(loss(update)), update + 1
        seconds = before + time.perf_counter() - start
        if done % period == 0 or done == settings.updates:
            history.append(Status(done, settings.updates, 0, 0, seconds, value))
            content = {"history": [status.to_json() for status in history]}
            work.write("checkpoint", optimizer.state(), content)
        if callback is not None:
            callback(stage, done, settings.updates, seconds, {"loss": value})
    return history


def train_maml(
    family: TaskFamily,
    recipe: Recipe,
    training: MamlTraining,
    *,
    seed: int,
    device: str = "cpu",
    work: Workspace | None = None,
    callback: ProgressCallback | None = None,
) -> tuple[nn.Module, list[Status]]:
    """Learns initial parameters from which learners learn quickly (Finn et al. 2017).

    Each update draws tasks, trains one learner for each from the current parameters by plain
    gradient descent, and moves the parameters down the mean test loss of the trained learners, to
    second order. Returns a module with the parameters found, and the losses on the way.
    """
    with seeded(seed, "MAML weights"):
        module = recipe.make().to(device)
    trained = tuple(name for name, p in module.named_parameters() if p.requires_grad)

    def loss(update: int) -> Tensor:
        task = family.sample(training.tasks, stream(seed, "MAML tasks", update)).to(device)
        ledger.record_task("learn", task)
        own = [*module.named_parameters(), *module.named_buffers()]
        state = {name: tensor.expand(training.tasks, *tensor.shape) for name, tensor in own}
        start = PlacedLearner(module, state, trained)
        h = unroll(start, task, recipe, steps=training.steps)
        return recipe.loss(h(task.X_te), task.Y_te).mean(dim=1).mean()

    own = work and work.sub("maml", family, recipe, training, seed)
    # Not fused, as the committed results were made: second-order gradients amplify its rounding.
    history = optimize(
        module, loss, training, stage="MAML", work=own, callback=callback, fused=False
    )
    return module, history


def start_from(recipe: Recipe, module: nn.Module) -> Recipe:
    """Returns the same way to learn for learners that all start as copies of one module."""
    return replace(recipe, make=partial(copy.deepcopy, module))


def train_metareg(
    family: TaskFamily,
    recipe: Recipe,
    training: Optimization,
    *,
    tasks: int,
    seed: int,
    device: str = "cpu",
    work: Workspace | None = None,
    callback: ProgressCallback | None = None,
) -> list[Tensor]:
    """Meta-learns the weights of `weighted_l1_penalty` (MetaReg, Balaji et al. 2018).

    Each update trains new learners on new tasks with the current penalty, as a chain of
    differentiable updates, and moves the weights to where the test loss, averaged over all steps of
    the chain, is lower. The average serves learners that stop early as well as those that go on.
    """
    shapes = [p.shape[1:] for p in stack(recipe.make, 1, stream(seed, "metareg")).parameters()]
    weights = nn.ParameterList(torch.zeros(shape, device=device) for shape in shapes)

    def loss(update: int) -> Tensor:
        task = family.sample(tasks, stream(seed, "metareg tasks", update)).to(device)
        ledger.record_task("learn", task)
        h = stack(recipe.make, tasks, stream(seed, "metareg learners", update)).to(device).placed()
        penalty, losses = weighted_l1_penalty(list(weights)), []
        for _ in range(recipe.steps):
            h = unroll(h, task, recipe, steps=1, regularizer=penalty)
            losses.append(recipe.loss(h(task.X_te), task.Y_te).mean())
        return torch.stack(losses).mean()

    own = work and work.sub("metareg", family, recipe, training, tasks, seed)
    # Not fused: as in MAML.
    optimize(weights, loss, training, stage="MetaReg", work=own, callback=callback, fused=False)
    return [weight.detach() for weight in weights]
