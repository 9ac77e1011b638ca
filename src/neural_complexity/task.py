"""Learning tasks, B at a time, and what a family of tasks can do."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from neural_complexity.points import raw, values

__all__ = ["Task", "TaskFamily", "check_sets"]


def check_sets(**tensors: Tensor) -> None:
    """Checks that named tensors are batches of point sets whose sizes agree.

    Names are like `X_tr`: all tensors of one suffix must hold the same number of points, all of one
    letter the same features, and every tensor the same number of tasks.

    Args:
        tensors: The tensors by name, each (B, M, ...) or (B, N, ...). Labels come without features,
            (B, M); so do inputs that are `Points`.

    Raises:
        TypeError: If something is not a tensor.
        ValueError: If a shape or a size does not fit, or a set is empty.
    """
    first: dict[str, tuple[str, int]] = {}
    for name, given in tensors.items():
        tensor = raw(given)
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        whole = not (tensor.is_floating_point() or tensor.is_complex())
        if tensor.ndim < (2 if whole else 3):
            wanted = "(tasks, points)" if whole else "(tasks, points, features)"
            raise ValueError(f"{name} must be {wanted}, got shape {tuple(tensor.shape)}")
        if 0 in tensor.shape:
            raise ValueError(f"{name} must not be empty, got shape {tuple(tensor.shape)}")
        sizes = {
            "tasks": tensor.shape[0],
            f"points of *{name[-3:]}": tensor.shape[1],
            f"features of {name[0]}_*": tensor.shape[2:].numel(),
        }
        for what, size in sizes.items():
            other, expected = first.setdefault(what, (name, size))
            if size != expected:
                raise ValueError(
                    f"{name} must agree with {other} on the number of {what}, "
                    f"got {size} against {expected}"
                )


@dataclass(frozen=True)
class Task:
    """B tasks, each with a training set S and a held-out test set.

    Images are (B, M, channels, height, width) in the place of (B, M, D); labels are whole numbers,
    (B, M), in the place of (B, M, C). Inputs may be `Points`, indices into a store that all tasks
    share; `loaded` looks them up.
    """

    X_tr: Tensor  # (B, M, D)
    Y_tr: Tensor  # (B, M, C)
    X_te: Tensor  # (B, N, D)
    Y_te: Tensor  # (B, N, C)

    def __post_init__(self) -> None:
        check_sets(X_tr=self.X_tr, Y_tr=self.Y_tr, X_te=self.X_te, Y_te=self.Y_te)

    def __len__(self) -> int:
        return self.X_tr.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> "Task":
        return Task(self.X_tr[rows], self.Y_tr[rows], self.X_te[rows], self.Y_te[rows])

    def loaded(self) -> "Task":
        """Returns the tasks with values in the place of indices."""
        return Task(values(self.X_tr), self.Y_tr, values(self.X_te), self.Y_te)

    def to(self, device: torch.device | str) -> "Task":
        """Moves the four tensors to a device."""
        return Task(
            self.X_tr.to(device), self.Y_tr.to(device), self.X_te.to(device), self.Y_te.to(device)
        )


class TaskFamily(Protocol):
    """A distribution of tasks, T ~ tau."""

    def sample(self, batch: int, generator: torch.Generator) -> Task:
        """Draws `batch` independent tasks.

        Args:
            batch: The number of tasks, B.
            generator: The only source of randomness; tasks are made on its device.
        """
        ...
