"""What an untrained NC takes from a sample of tasks: its loss, its sizes and its units."""

from typing import Any

import torch
from torch import Tensor, nn

from neural_complexity.losses import LOSSES, cross_entropy, squared_error
from neural_complexity.model.heads import HEADS
from neural_complexity.task import Task

__all__ = ["default_fields", "set_units"]


def default_fields(task: Task, fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of an architecture for tasks; what is given counts more."""
    Y = task.Y_tr
    usual = squared_error if Y.is_floating_point() else cross_entropy
    fields = {"loss": usual.name, **fields}
    loss, head = LOSSES.get(fields["loss"]), HEADS.get(fields.get("head", "posterior"))
    if loss is None or not loss.labels:
        return {"outputs": Y.shape[-1], **fields}
    # An untrained NC has seen labels, which say how many classes there are at least.
    classes = int(torch.stack([Y.max(), task.Y_te.max()]).max()) + 1
    return {"outputs": classes, **({} if head is None else head.for_labels), **fields}


def set_units(nc: nn.Module, X: Tensor, Y: Tensor) -> None:
    """Sets means and scales to those of inputs, (B, M, D) or images, and of real targets."""
    flat = X.flatten(0, -4).transpose(0, 1).flatten(1).T if X.ndim == 5 else X.flatten(0, -2)
    for name, seen in (("x", flat), ("y", Y.flatten(0, -2))):
        if seen.is_floating_point():
            scale, mean = torch.std_mean(seen, dim=0, correction=0)
            own: Tensor = getattr(nc, f"{name}_mean")
            own.copy_(mean.view_as(own))
            # A constant feature has nothing to scale.
            getattr(nc, f"{name}_scale").copy_(torch.where(scale > 0, scale, 1.0).view_as(own))
