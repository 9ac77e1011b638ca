"""Single datasets from what users have: arrays, tensors or PyTorch datasets."""

from collections.abc import Iterator, Sized
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Subset

from neural_complexity.convert.arrays_in import numbers, pair, targets
from neural_complexity.tasks.formats import Part
from neural_complexity.tasks.images import Images, SingleDataset, check_values
from neural_complexity.tasks.store import write_store

__all__ = ["from_arrays", "from_datasets"]

Array = NDArray[Any] | Tensor

AT_ONCE = 64  # images
MAX_CHANNELS = 4


def from_arrays(
    name: str,
    X_train: Array,
    y_train: Array,
    X_test: Array,
    y_test: Array,
    *,
    path: str | Path | None = None,
) -> SingleDataset:
    """Makes a dataset of arrays or tensors; they may be memory-mapped.

    Images are uint8 or floats from 0 to 1, rounded to 256 levels: (P, height, width),
    (P, channels, height, width) or (P, height, width, channels) with one to four channels; where
    both are possible the channels come first. Labels, (P,), are 0 ... classes - 1. The dataset, not
    the user, standardizes values. It is kept in memory, or in the file `path`, see `store`.

    Example:
        >>> X, y = torch.rand(6, 28, 28), torch.tensor([0, 1, 0, 1, 1, 0])
        >>> from_arrays("mine", X[:4], y[:4], X[4:], y[4:]).train
        4
    """
    for part, X, y in (("train", X_train, y_train), ("test", X_test, y_test)):
        if len(X.shape) not in (3, 4) or 0 in X.shape or tuple(y.shape) != (len(X),):
            raise ValueError(
                f"X_{part} must be images, (P, height, width) or with channels, and y_{part} one "
                f"label each, got shapes {tuple(X.shape)} and {tuple(y.shape)}"
            )
    parts = chain(_array_parts("train", X_train, y_train), _array_parts("test", X_test, y_test))
    return _build(name, len(X_train), len(X_train) + len(X_test), parts, path)


def from_datasets(
    name: str, train: Dataset[Any], test: Dataset[Any], *, path: str | Path | None = None
) -> SingleDataset:
    """Makes a dataset of two PyTorch datasets, each of which is gone through once.

    They return `(image, label)` by index and have a length; an image is a tensor, an array or a PIL
    image. All else is as for `from_arrays`.
    """
    sizes = []
    for part, dataset in (("train", train), ("test", test)):
        if not isinstance(dataset, Sized):
            raise TypeError(f"{part} must have a length, got {type(dataset).__name__}")
        if len(dataset) == 0:
            raise ValueError(f"{part} must not be empty, got a dataset of length 0")
        sizes.append(len(dataset))
    parts = chain(_dataset_parts("train", train, sizes[0]), _dataset_parts("test", test, sizes[1]))
    return _build(name, sizes[0], sum(sizes), parts, path)


def _build(
    name: str, train: int, size: int, parts: Iterator[Part], path: str | Path | None
) -> SingleDataset:
    """Puts parts together, in memory or in a file."""
    first = next(parts)
    shape = (size, *first[0].shape[1:])
    every = _of_one_size(chain([first], parts), shape[1:])
    if path is not None:
        return write_store(path, name, shape, train, every)
    pixels, labels = (torch.cat(both) for both in zip(*every, strict=True))
    return SingleDataset(name, Images(pixels, labels), train)


def _of_one_size(parts: Iterator[Part], shape: tuple[int, ...]) -> Iterator[Part]:
    for values, labels in parts:
        if values.shape[1:] != shape:
            got = tuple(values.shape[1:])
            raise ValueError(f"images must all have the size of the first, {shape}, got {got}")
        yield values, labels


def _array_parts(name: str, X: Array, y: Array) -> Iterator[Part]:
    for start in range(0, len(X), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        yield _part(f"X_{name}", X[rows], f"y_{name}", y[rows])


def _dataset_parts(name: str, dataset: Dataset[Any], size: int) -> Iterator[Part]:
    for start in range(0, size, AT_ONCE):
        X, y = pair(name, Subset(dataset, range(start, min(start + AT_ONCE, size))))
        if y is None:
            raise TypeError(f"{name} must give (image, label), got images alone")
        yield _part(name, X, f"labels of {name}", y)


def _part(X_name: str, X: Any, y_name: str, y: Any) -> Part:
    """Returns images as uint8 with channels first, and labels."""
    images = numbers(X_name, X).cpu()
    if images.dtype != torch.uint8:
        check_values(X_name, images)
        images = (255 * images.double()).round().to(torch.uint8)
    images = images.unsqueeze(1) if images.ndim == 3 else images
    axes = [axis for axis in (1, 3) if images.ndim == 4 and images.shape[axis] <= MAX_CHANNELS]
    if not axes:
        raise ValueError(
            f"{X_name} must have 1 to {MAX_CHANNELS} channels, first or last, "
            f"got images of {tuple(images.shape[1:])}"
        )
    pixels = images.movedim(axes[0], 1).contiguous()
    return pixels, targets(y_name, y, labels=True, points=len(pixels)).cpu()
