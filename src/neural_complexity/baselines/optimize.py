"""The optimizer loop that all baselines share."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from neural_complexity.meta.optimizer import ScheduledAdam, warmup_cosine
from neural_complexity.meta.trainer import Status
from neural_complexity.progress import ProgressCallback
from neural_complexity.workspace import Workspace

__all__ = ["Optimization", "optimize"]


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """The settings of Adam.

    Args:
        updates: How many.
        lr: The peak learning rate.
        warmup: The part of training in which the learning rate rises.
        decay: Whether it falls to zero afterwards, along a cosine.
    """

    updates: int
    lr: float
    warmup: float = 0.0
    decay: bool = True

    def __post_init__(self) -> None:
        if self.updates < 1:
            raise ValueError(f"updates must be at least 1, got {self.updates}")

    def lr_factor(self, update: int) -> float:
        """Returns what the learning rate is multiplied by at an update."""
        return warmup_cosine(update / self.updates, warmup=self.warmup, decay=self.decay)


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
    """Trains a module in place; the result does not depend on interruptions.

    Args:
        module: Its parameters that require gradients are trained.
        loss: Returns the loss to descend at an update, a scalar. With a workspace, it must depend
            on the update and the parameters alone.
        settings: Of Adam.
        stage: What the progress callback is told is under way.
        work: Where a checkpoint is kept, twenty times on the way; none if `None`.
        callback: Called after each update.
        fused: As in `ScheduledAdam`.

    Returns:
        One status for each twentieth of the way.

    Raises:
        FloatingPointError: If a loss is not finite.
        ValueError: If the checkpoint is of other settings.
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
