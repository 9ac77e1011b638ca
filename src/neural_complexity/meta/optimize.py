"""The loop that trains a module by a loss, with checkpoints: the same result after a kill."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from neural_complexity import ledger
from neural_complexity.learners.fit import warmup_cosine
from neural_complexity.meta import parallel
from neural_complexity.progress import ProgressCallback
from neural_complexity.workspace import Workspace

__all__ = ["Optimization", "ScheduledOptimizer", "Status", "optimize"]

Losses = Tensor | Iterable[Tensor]  # a scalar, or several that are added up, one graph at a time


class ScheduledOptimizer:
    """Adam on the parameters of a module that are trained, in place.

    At a step, `lr` is multiplied by `factor` of the number of steps done. A fused step is one
    kernel, which is faster and rounds differently.

    Args:
        module: What is trained.
        lr: The learning rate.
        factor: Of the learning rate, by the number of steps done.
        fused: Whether a step of Adam is one kernel.
        matrices: Parameters that are trained by Muon (Jordan et al. 2024) instead of Adam, at the
            same learning rate: weights between hidden layers.
        clip: The largest norm of the gradient; any if 0.
    """

    def __init__(
        self,
        module: nn.Module,
        lr: float,
        factor: Callable[[int], float],
        *,
        fused: bool = True,
        matrices: Sequence[nn.Parameter] = (),
        clip: float = 0.0,
    ) -> None:
        self.module, self.lr, self.factor, self.steps, self.clip = module, lr, factor, 0, clip
        hidden = {id(p) for p in matrices}
        trained = [p for p in module.parameters() if p.requires_grad and id(p) not in hidden]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam(trained, lr=lr, fused=fused)
        ]
        if matrices:
            as_adam = "match_rms_adamw"  # steps are as large as Adam's
            muon = torch.optim.Muon(list(matrices), lr, weight_decay=0.01, adjust_lr_fn=as_adam)
            self.optimizers.append(muon)

    def step(self, losses: Losses) -> float:
        """Descends a loss, or the sum of several, and returns its value.

        Where several processes train the module, it is the sum over all of them.
        """
        for optimizer in self.optimizers:
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = self.lr * self.factor(self.steps)
        value = 0.0
        for loss in [losses] if isinstance(losses, Tensor) else losses:
            loss.backward()
            value += loss.item()
        total = torch.tensor([value], dtype=torch.float64)
        parallel.add_up([total])
        parallel.add_up([p.grad for p in self.module.parameters() if p.grad is not None])
        value = total.item()
        if not math.isfinite(value):
            told = f"the loss must be finite, got {value} at update {self.steps}"
            raise FloatingPointError(f"{told}; a smaller lr may help")
        if self.clip:
            nn.utils.clip_grad_norm_(self.module.parameters(), self.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        self.steps += 1
        return value

    def state(self) -> dict[str, Tensor]:
        """Returns the state of module and optimizers as tensors by name, for a checkpoint."""
        tensors = {f"module.{name}": t for name, t in self.module.state_dict().items()}
        for which, optimizer in enumerate(self.optimizers):
            for i, moments in optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer.{which}.{i}.{name}": t for name, t in moments.items()}
        return tensors

    def load(self, tensors: dict[str, Tensor], steps: int) -> None:
        """Continues from what `state` returned after so many steps."""
        own = {n.removeprefix("module."): t for n, t in tensors.items() if n.startswith("module.")}
        self.module.load_state_dict(own)
        for which, optimizer in enumerate(self.optimizers):
            state, start = optimizer.state_dict(), f"optimizer.{which}."
            for name in (name for name in tensors if name.startswith(start)):
                i, moment = name.removeprefix(start).split(".")
                state["state"].setdefault(int(i), {})[moment] = tensors[name]
            optimizer.load_state_dict(state)
        self.steps = steps


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
    held_out: float | None = None  # the loss on held-out tasks, where that is measured

    def to_json(self) -> dict[str, float]:
        """Returns the numbers that JSON has; the others are NaN again in `Status(**numbers)`."""
        known = ((name, number) for name, number in asdict(self).items() if number is not None)
        return {name: number for name, number in known if math.isfinite(number)}


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """The settings of Adam, and of what it descends where that is learned from tasks."""

    updates: int
    lr: float  # at its peak
    warmup: float = 0.0  # the part of training in which the learning rate rises
    decay: bool = True  # whether it falls to zero afterwards, along a cosine
    tasks: int = 1  # per update
    steps: int = 1  # of a learner of MAML, that gradients flow through
    clip: float = 0.0  # the largest norm of the gradient; any if 0
    fused: bool = True  # whether a step of Adam is one kernel
    checkpoints: int = 20  # on the way

    def __post_init__(self) -> None:
        for name in ("updates", "tasks", "steps", "checkpoints"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def lr_factor(self, update: int) -> float:
        """Returns what the learning rate is multiplied by at an update."""
        return warmup_cosine(update / self.updates, warmup=self.warmup, decay=self.decay)


def optimize(
    module: nn.Module,
    loss: Callable[[int], Losses],
    settings: Optimization,
    stage: str,
    work: Workspace | None = None,
    callback: ProgressCallback | None = None,
    *,
    matrices: Sequence[nn.Parameter] = (),
    validate: Callable[[], float] | None = None,
) -> list[Status]:
    """Trains a module in place by `loss(update)`; returns a status per checkpoint.

    The loss must depend on update and parameters alone. Matrices are trained by Muon; `validate`
    measures the loss on held-out tasks at each checkpoint. Within `in_parallel`, each process gives
    its share of the loss, and the first one writes, validates and tells.
    """
    work = Workspace(None) if work is None else work
    options: dict[str, Any] = {"fused": settings.fused, "clip": settings.clip}
    optimizer = ScheduledOptimizer(
        module, settings.lr, settings.lr_factor, matrices=matrices, **options
    )
    tensors, content = work.read("checkpoint") or ({}, {"history": []})
    history = [Status(**status) for status in content["history"]]
    if history:
        optimizer.load(tensors, history[-1].iteration)
    start = time.perf_counter() - (history[-1].seconds if history else 0.0)
    period = max(1, settings.updates // settings.checkpoints)
    held_out = history[-1].held_out if history else None
    for update in range(optimizer.steps, settings.updates):
        value, done = optimizer.step(loss(update)), update + 1
        seconds = time.perf_counter() - start
        if done % period == 0 or done == settings.updates:
            if validate is not None and parallel.leads():
                with ledger.choosing():
                    held_out = validate()
            status = Status(done, settings.updates, 0, 0, seconds, value, held_out=held_out)
            history.append(status)
            content = {"history": [status.to_json() for status in history]}
            if parallel.leads():
                work.write("checkpoint", optimizer.state(), content)
        if callback is not None and parallel.leads():
            metrics = {"loss": value} | ({} if held_out is None else {"held out": held_out})
            callback(stage, done, settings.updates, seconds, metrics)
    return history
