"""Learning tasks, B at a time, and what a family of tasks can do."""

from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from neural_complexity.points import TensorFields, check_dense, raw, values

__all__ = ["PointSets", "Task", "TaskFamily", "check_sets"]


def check_sets(**tensors: Tensor) -> None:
    """Checks that named tensors, (B, M, ...) or (B, N, ...), are batches of sets whose sizes agree.

    Names are like `X_tr`: all tensors of one suffix must hold the same number of points, all of one
    letter the same features. Labels come without features, (B, M); so do `Points`.
    """
    first: dict[str, tuple[str, int]] = {}
    for name, given in tensors.items():
        tensor = raw(given)
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        check_dense(name, tensor)
        whole = not (tensor.is_floating_point() or tensor.is_complex())
        if tensor.ndim < (2 if whole else 3):
            wanted = "(tasks, points)" if whole else "(tasks, points, features)"
            raise ValueError(f"{name} must be {wanted}, got shape {tuple(tensor.shape)}")
        if 0 in tensor.shape:
            raise ValueError(f"{name} must not be empty, got shape {tuple(tensor.shape)}")
        axes = ("tasks", f"points of *{name[-3:]}", f"features of {name[0]}_*")
        sizes = (*tensor.shape[:2], tensor.shape[2:].numel())
        for what, size in zip(axes, sizes, strict=True):
            other, expected = first.setdefault(what, (name, size))
            if size != expected:
                wanted = f"agree with {other} on the number of {what}"
                raise ValueError(f"{name} must {wanted}, got {size} against {expected}")


@dataclass(frozen=True)
class PointSets(TensorFields):
    """Tensors of B tasks, checked when they are made; an index or a slice chooses tasks."""

    def __post_init__(self) -> None:
        check_sets(**vars(self))

    def __len__(self) -> int:
        return len(vars(self)["X_tr"])

    def __getitem__(self, rows: slice | Tensor) -> Self:
        return self.map(lambda tensor: tensor[rows])

    def to(self, device: torch.device | str) -> Self:
        """Moves the tensors to a device."""
        return self.map(lambda tensor: tensor.to(device))


@dataclass(frozen=True)
class Task(PointSets):
    """B tasks, each with a training set S and a held-out test set.

    Images are (B, M, channels, height, width) in the place of (B, M, D); labels are whole numbers,
    (B, M), in the place of (B, M, C). Inputs may be `Points`; `loaded` looks them up.
    """

    X_tr: Tensor  # (B, M, D)
    Y_tr: Tensor  # (B, M, C)
    X_te: Tensor  # (B, N, D)
    Y_te: Tensor  # (B, N, C)

    def loaded(self) -> "Task":
        """Returns the tasks with values in the place of indices."""
        return self.map(values)


class TaskFamily(Protocol):
    """A distribution of tasks, T ~ tau."""

    def sample(self, batch: int, generator: torch.Generator) -> Task:
        """Draws B = `batch` tasks on the generator's device; nothing else may be random."""
