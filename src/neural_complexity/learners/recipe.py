"""How learners are made and trained, as one value."""

from collections.abc import Callable, Container
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from neural_complexity.learners.batched import BatchedLearner, stack
from neural_complexity.learners.fit import (
    Batches,
    Objective,
    Observer,
    Regularizer,
    Visitor,
    fit,
    sgd,
)
from neural_complexity.losses import PointLoss, squared_error
from neural_complexity.task import Task

__all__ = ["Recipe"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A learning algorithm: everything `fit` needs but the tasks and the regularizer.

    Args:
        make: Builds one freshly initialised module.
        loss: The loss per point.
        steps: The number of updates.
        lr: The learning rate.
        optimizer: Makes the optimizer from the parameters and `lr`.
        objective: See `fit`.
        sharpness: See `fit`.
        look_up: Gives the inputs of numbers, for tasks that hold numbers.
    """

    make: Callable[[], nn.Module]
    loss: PointLoss = squared_error
    steps: int = 16
    lr: float = 0.01
    optimizer: Callable[..., Optimizer] = sgd
    objective: Objective | None = None
    sharpness: float = 0.0
    look_up: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps must not be negative, got {self.steps}")
        if not self.lr > 0:
            raise ValueError(f"lr must be positive, got {self.lr}")
        if not self.sharpness >= 0:
            raise ValueError(f"sharpness must not be negative, got {self.sharpness}")

    def train(
        self,
        task: Task | Batches,
        generator: torch.Generator,
        *,
        regularizer: Regularizer | None = None,
        schedule: Callable[[float], float] | None = None,
        observe: Observer | None = None,
        visit: Visitor | None = None,
        visits: Container[int] = (),
    ) -> BatchedLearner:
        """Makes one learner per task and trains it.

        Args:
            task: B tasks, or minibatches of them.
            generator: Draws the initial parameters, and the noise of layers that have some.
            regularizer: See `fit`.
            schedule: See `fit`.
            observe: See `fit`.
            visit: See `fit`.
            visits: See `fit`.

        Returns:
            The B trained learners, in evaluation mode.
        """
        device = (task if isinstance(task, Task) else task(0)).X_tr.device
        h = stack(self.make, len(task), generator, look_up=self.look_up).to(device)
        seed = int(torch.randint(2**62, (), generator=generator))
        elsewhere = [] if device.type == "cpu" else [device]
        # Noise layers draw from the global generators; so that learners depend on `generator`
        # alone, these are seeded for the time being.
        with torch.random.fork_rng(elsewhere, device_type=device.type if elsewhere else "cuda"):
            if elsewhere:
                torch.manual_seed(seed)
            else:
                torch.default_generator.manual_seed(seed)
            fit(
                h,
                task,
                loss=self.loss,
                steps=self.steps,
                lr=self.lr,
                optimizer=self.optimizer,
                objective=self.objective,
                sharpness=self.sharpness,
                regularizer=regularizer,
                schedule=schedule,
                observe=observe,
                visit=visit,
                visits=visits,
            )
        h.eval()
        return h
