"""How learners are made and trained, as one value."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from neural_complexity.learners.batched import BatchedLearner, stack
from neural_complexity.learners.fit import Batches, Learning, fit
from neural_complexity.task import Task

__all__ = ["Recipe"]


@dataclass(frozen=True, kw_only=True)
class Recipe(Learning):
    """A learning algorithm: everything but the tasks and the regularizer.

    Args:
        make: Builds one freshly initialised module.
    """

    make: Callable[[], nn.Module]

    def train(
        self, task: Task | Batches, generator: torch.Generator, **options: Any
    ) -> BatchedLearner:
        """Trains one new learner per task and returns them, in evaluation mode.

        The generator draws the initial parameters, and the noise of layers that have some; the
        options are those of `fit`: `regularizer`, `schedule`, `observe`, `visit` and `visits`.
        """
        device = (task if isinstance(task, Task) else task(0)).X_tr.device
        h = stack(self.make, len(task), generator).to(device)
        seed = int(torch.randint(2**62, (), generator=generator))
        elsewhere = [] if device.type == "cpu" else [device]
        # Noise layers draw from the global generators; so that learners depend on `generator`
        # alone, these are seeded for the time being.
        with torch.random.fork_rng(elsewhere, device_type=device.type if elsewhere else "cuda"):
            start = torch.manual_seed if elsewhere else torch.default_generator.manual_seed
            start(seed)
            fit(h, task, self, **options)
        h.eval()
        return h
