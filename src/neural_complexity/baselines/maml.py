"""MAML (Finn et al. 2017): one set of initial parameters from which learners learn quickly."""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from neural_complexity.learners.batched import PlacedLearner
from neural_complexity.learners.fit import unroll
from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta.checkpoint import pack, unpack
from neural_complexity.meta.trainer import lr_factor
from neural_complexity.meta.training_loop import Moment, Resume, Watch, keep, recall
from neural_complexity.seeding import seeded, stream
from neural_complexity.task import Task, TaskFamily

__all__ = ["Maml", "maml_loss", "start_from", "train_maml"]


def maml_loss(start: PlacedLearner, task: Task, recipe: Recipe, steps: int) -> Tensor:
    """Computes the test loss of learners after a few updates, as a function of where they start.

    Args:
        start: B learners; the result is differentiable in their parameters.
        task: Their tasks.
        recipe: How they learn; its number of steps and its optimizer are not used.
        steps: The number of updates, by plain gradient descent.

    Returns:
        One value per task, (B,).
    """
    h = unroll(start, task, loss=recipe.loss, steps=steps, lr=recipe.lr)
    return recipe.loss(h(task.X_te), task.Y_te).mean(dim=1)


class Maml:
    """The initial parameters and their optimizer, on their way.

    One iteration draws `tasks` tasks, lets one learner for each start from the current parameters
    and train for `steps` updates, and moves the parameters down the mean test loss of the trained
    learners, by gradients through their training (second order).

    Args:
        family: Where tasks come from.
        recipe: How learners learn.
        seed: The one seed of all draws.
        iterations: How often to update the parameters.
        tasks: Tasks per iteration.
        steps: Updates of a learner within an iteration.
        lr: The peak learning rate of Adam.
        warmup: The part of training in which the learning rate rises.
        decay: Whether it falls to zero afterwards.
        device: Where parameters and learners live.
        resume: The state of an earlier run, from `state`.
    """

    def __init__(
        self,
        family: TaskFamily,
        recipe: Recipe,
        *,
        seed: int,
        iterations: int,
        tasks: int,
        steps: int,
        lr: float,
        warmup: float = 0.05,
        decay: bool = True,
        device: str = "cpu",
        resume: Resume | None = None,
    ) -> None:
        for name, value in (("iterations", iterations), ("tasks", tasks), ("steps", steps)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.family, self.recipe, self.seed = family, recipe, seed
        self.iterations, self.tasks, self.steps = iterations, tasks, steps
        self.lr, self.warmup, self.decay, self.device = lr, warmup, decay, device
        with seeded(seed, "MAML weights"):
            self.module = recipe.make().to(device)
        self.trained = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        self.adam = torch.optim.Adam(self.trained.values(), lr=lr)
        self.iteration = 0
        self.loss = math.nan  # of the last iteration
        if resume is not None:
            tensors, counters = resume
            self.iteration, self.loss = counters["iteration"], counters["loss"]
            unpack(tensors, self.module, self.adam)

    @property
    def done(self) -> bool:
        """Whether all iterations are done."""
        return self.iteration >= self.iterations

    def iterate(self) -> None:
        """Updates the parameters once.

        Raises:
            FloatingPointError: If the test loss is not finite.
        """
        progress = self.iteration / self.iterations
        for group in self.adam.param_groups:
            group["lr"] = self.lr * lr_factor(progress, warmup=self.warmup, decay=self.decay)
        draw = stream(self.seed, "MAML tasks", self.iteration)
        task = self.family.sample(self.tasks, draw).to(self.device)
        loss = maml_loss(self._learners(), task, self.recipe, self.steps).mean()
        self.loss = loss.item()
        if not math.isfinite(self.loss):
            raise FloatingPointError(
                f"MAML's loss must be finite, got {self.loss} at iteration {self.iteration}; a "
                f"smaller lr may help"
            )
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        self.iteration += 1

    def _learners(self) -> PlacedLearner:
        """Gives one learner per task, all at the current parameters."""
        own = [*self.module.named_parameters(), *self.module.named_buffers()]
        state = {name: tensor.expand(self.tasks, *tensor.shape) for name, tensor in own}
        return PlacedLearner(self.module, state, tuple(self.trained))

    def state(self) -> Resume:
        """Gives all that a new process needs to go on."""
        return pack(self.module, self.adam), {"iteration": self.iteration, "loss": self.loss}


def train_maml(
    build: Callable[[Resume | None], Maml],
    *,
    save_every: int,
    folder: Path | None = None,
    identity: str = "",
    watch: Watch | None = None,
) -> tuple[nn.Module, list[Moment]]:
    """Runs all iterations of MAML; goes on where an earlier run in `folder` stopped.

    The result does not depend on where, or how often, it was stopped.

    Args:
        build: Makes MAML from the state to go on from.
        save_every: Iterations between two checkpoints, and between two moments kept.
        folder: Where the checkpoint is kept; nothing is kept if `None`.
        identity: Names the settings; a checkpoint of others is refused.
        watch: Told after each iteration.

    Returns:
        A module with the initial parameters found, and the losses on the way.

    Raises:
        ValueError: If the checkpoint does not fit.
    """
    resume, history = recall(folder, identity)
    maml = build(resume)
    before = history[-1].seconds if history else 0.0
    start = time.perf_counter()
    while not maml.done:
        maml.iterate()
        seconds = before + time.perf_counter() - start
        moment = Moment(maml.iteration, maml.iterations, 0, 0, seconds, maml.loss)
        if maml.iteration % save_every == 0 or maml.done:
            history.append(moment)
            if folder is not None:
                keep(folder, identity, maml.state(), history)
        if watch is not None:
            watch(moment)
    return maml.module, history


def start_from(recipe: Recipe, module: nn.Module) -> Recipe:
    """Gives the same way to learn for learners that all start as copies of one module."""
    return replace(recipe, make=partial(copy.deepcopy, module))
