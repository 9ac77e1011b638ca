"""Refuses what NC cannot judge, before it returns a number that looks like an answer."""

import torch
from torch import Tensor

from neural_complexity.model.architecture import Architecture
from neural_complexity.points import raw, values
from neural_complexity.task import check_sets

__all__ = ["check_tensors"]


def check_tensors(
    architecture: Architecture, dtype: torch.dtype, classes: int | None, tensors: dict[str, Tensor]
) -> None:
    """Checks tensors by name, as in `NeuralComplexity.predict_points`.

    Args:
        architecture: Of NC.
        dtype: Of NC.
        classes: How many classes labels are of; those of the predictions, or NC's own number if
            there are none, if `None`.
        tensors: Any of X_tr, Y_tr, H_tr, X_te, Y_te and H_te.

    Raises:
        TypeError: If something is not a tensor of NC's own type, or labels are not int64.
        ValueError: If shapes disagree, a set is empty, a value is not finite, or a label is none of
            the classes.
    """
    labels = {n: t for n, t in tensors.items() if n[0] == "Y" and architecture.the_loss.labels}
    for name, tensor in labels.items():
        # First: real numbers would be asked for features, which labels do not have.
        if isinstance(tensor, Tensor) and tensor.dtype != torch.int64:
            raise TypeError(f"{name} must be labels of type torch.int64, got {tensor.dtype}")
    check_sets(**tensors)
    if not architecture.the_loss.labels:
        classes = architecture.outputs
    elif classes is None:
        given = (t.shape[-1] for name, t in tensors.items() if name[0] == "H")
        classes = next(given, architecture.outputs)
    if classes != architecture.outputs and not architecture.symmetric:
        raise ValueError(
            f"labels must be of the {architecture.outputs} classes that NC was made for, got "
            f"{classes}"
        )
    for name, tensor in tensors.items():
        if name in labels:
            _check_labels(name, tensor, classes)
        elif name[0] == "X":
            # Points are many and come from one store: the first of them speaks for all.
            seen = tensor if raw(tensor) is tensor else values(tensor[:1, :1])
            _check_values(name, seen, architecture.shape, dtype)
        else:
            _check_values(name, tensor, (classes,), dtype)


def _check_values(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(tensor.shape[2:]) != shape:
        wanted = ", ".join(map(str, shape))
        raise ValueError(
            f"{name} must be (tasks, points, {wanted}), got shape {tuple(tensor.shape)}"
        )
    if tensor.dtype != dtype:
        raise TypeError(f"{name} must be {dtype} like NC, got {tensor.dtype}")
    if not tensor.isfinite().all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")


def _check_labels(name: str, labels: Tensor, classes: int) -> None:
    if labels.ndim != 2:
        raise ValueError(f"{name} must be (tasks, points), got shape {tuple(labels.shape)}")
    low, high = torch.aminmax(labels)
    if low < 0 or high >= classes:
        raise ValueError(f"{name} must be from 0 to {classes - 1}, got {int(low)} to {int(high)}")
