"""Adam with a schedule: the state, the step and the checkpoint of every network that is trained."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["ScheduledAdam", "warmup_cosine"]

Factor = Callable[[int], float]  # of the learning rate, after so many steps


def warmup_cosine(progress: float, *, warmup: float, decay: bool) -> float:
    """Returns the learning rate's factor: up linearly, then constant or down along a cosine.

    `progress` is how much of training is done, from 0 to 1; `warmup` is the part that goes up.
    """
    if progress < warmup:
        return (progress / warmup) * 0.96 + 0.04
    if not decay:
        return 1.0
    return 0.5 * (1.0 + math.cos(math.pi * (progress - warmup) / (1.0 - warmup)))


class ScheduledAdam:
    """Adam on the parameters of a module that are trained, in place.

    At a step, `lr` is multiplied by `factor` of the number of steps done, by 1 if `None`. A fused
    step is one kernel, which is faster and rounds differently.
    """

    def __init__(
        self, module: nn.Module, lr: float, factor: Factor | None = None, *, fused: bool = True
    ) -> None:
        self.module, self.lr, self.factor, self.steps = module, lr, factor, 0
        trained = [p for p in module.parameters() if p.requires_grad]
        self.adam = torch.optim.Adam(trained, lr=lr, fused=fused)

    def step(self, loss: Tensor) -> float:
        """Descends a loss, a scalar, and returns its value."""
        (group,) = self.adam.param_groups
        group["lr"] = self.lr if self.factor is None else self.lr * self.factor(self.steps)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        value = loss.item()
        if not math.isfinite(value):
            raise FloatingPointError(
                f"the loss must be finite, got {value} at update {self.steps}; "
                "a smaller lr may help"
            )
        self.steps += 1
        return value

    def state(self) -> dict[str, Tensor]:
        """Returns the state of module and optimizer as tensors by name, for a checkpoint."""
        tensors = {f"module.{name}": t for name, t in self.module.state_dict().items()}
        for i, moments in self.adam.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{name}": t for name, t in moments.items()}
        return tensors

    def load(self, tensors: dict[str, Tensor], steps: int) -> None:
        """Continues from what `state` returned after so many steps."""
        weights, state = {}, self.adam.state_dict()
        for name, tensor in tensors.items():
            kind, own = name.split(".", 1)
            if kind == "module":
                weights[own] = tensor
            elif kind == "optimizer":
                i, moment = own.split(".")
                state["state"].setdefault(int(i), {})[moment] = tensor
        self.module.load_state_dict(weights)
        self.adam.load_state_dict(state)
        self.steps = steps
