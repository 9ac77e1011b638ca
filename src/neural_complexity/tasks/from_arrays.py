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
from neural_complexity.tasks.images import Images, SingleDataset
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

    Images are held as uint8, so floats are rounded to the next of 256 levels. Values are
    standardized when they are looked up: leave that to the dataset.

    Args:
        name: What results call it.
        X_train: Training images, uint8 or floats from 0 to 1, (P, height, width),
            (P, channels, height, width) or (P, height, width, channels) with one to four channels.
            Where both are possible the channels come first.
        y_train: Their labels, whole numbers, (P,): 0 ... classes - 1, with an image each.
        X_test: Test images of the same size.
        y_test: Their labels.
        path: Where to keep the dataset, see `store`, instead of in memory.

    Example:
        >>> X, y = torch.rand(6, 28, 28), torch.tensor([0, 1, 0, 1, 1, 0])
        >>> from_arrays("mine", X[:4], y[:4], X[4:], y[4:]).train
        4
    """
    parts = []
    for part, X, y in (("train", X_train, y_train), ("test", X_test, y_test)):
        if len(X.shape) not in (3, 4) or 0 in X.shape:
            raise ValueError(
                f"X_{part} must be images, (P, height, width) or with channels, and not empty, "
                f"got shape {tuple(X.shape)}"
            )
        if tuple(y.shape) != (len(X),):
            raise ValueError(
                f"y_{part} must be one label for each of {len(X)} images, got {tuple(y.shape)}"
            )
        parts.append(_array_parts(part, X, y))
    return _build(name, len(X_train), len(X_train) + len(X_test), chain(*parts), path)


def from_datasets(
    name: str, train: Dataset[Any], test: Dataset[Any], *, path: str | Path | None = None
) -> SingleDataset:
    """Makes a dataset of two PyTorch datasets, each of which is gone through once.

    Args:
        name: What results call it.
        train: Returns `(image, label)` by index and has a length. An image is a tensor, an array or
            a PIL image; shapes, values and labels are as for `from_arrays`.
        test: The same for testing.
        path: Where to keep the dataset, see `store`, instead of in memory.
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
    pixels = torch.empty(shape, dtype=torch.uint8)
    labels = torch.empty(size, dtype=torch.int64)
    start = 0
    for values, own in every:
        end = start + len(values)
        pixels[start:end], labels[start:end] = values, own
        start = end
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
    pixels = _pixels(X_name, numbers(X_name, X).cpu())
    return pixels, targets(y_name, y, labels=True, points=len(pixels)).cpu()


def _pixels(name: str, images: Tensor) -> Tensor:
    """Makes images into uint8 with channels first."""
    if images.dtype != torch.uint8:
        if not images.is_floating_point():
            raise TypeError(f"{name} must be uint8 or floats from 0 to 1, got {images.dtype}")
        if not ((images >= 0) & (images <= 1)).all():
            low, high = images.aminmax()
            raise ValueError(f"{name} must have values from 0 to 1, got {low:g} to {high:g}")
        images = (255 * images.double()).round().to(torch.uint8)
    if images.ndim == 3:
        return images.unsqueeze(1)
    for axis in (1, 3) if images.ndim == 4 else ():
        if images.shape[axis] <= MAX_CHANNELS:
            return images.movedim(axis, 1)
    raise ValueError(
        f"{name} must have 1 to {MAX_CHANNELS} channels, first or last, "
        f"got images of {tuple(images.shape[1:])}"
    )
