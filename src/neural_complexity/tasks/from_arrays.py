"""Single datasets from what users have: arrays, tensors or PyTorch datasets."""

from collections.abc import Iterator, Sized
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from neural_complexity.tasks.image_datasets import SingleDataset
from neural_complexity.tasks.images import Images
from neural_complexity.tasks.store import write_store

__all__ = ["from_arrays", "from_datasets"]

Array = NDArray[Any] | Tensor
Part = tuple[Tensor, Tensor]  # pixels, uint8 (p, channels, height, width), and labels, (p,)

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

    Images are held as uint8, so floats are rounded to the next of 256 levels. Values are whitened
    when they are looked up: leave that to the dataset.

    Args:
        name: What results call it.
        X_train: Training images, uint8 or floats from 0 to 1, (P, height, width),
            (P, channels, height, width) or (P, height, width, channels) with one to four channels.
            Where both are possible the channels come first.
        y_train: Their labels, whole numbers, (P,): 0 ... classes - 1, with an image each.
        X_test: Test images of the same size.
        y_test: Their labels.
        path: Where to keep the dataset, see `store`, instead of in memory.

    Raises:
        TypeError: If the numbers are of another type.
        ValueError: If shapes, values or labels are of another kind.

    Example:
        >>> X = np.random.default_rng(0).random((6, 28, 28))
        >>> from_arrays("mine", X[:4], np.array([0, 1, 0, 1]), X[4:], np.array([1, 0])).train
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
        parts.append(_array_parts(f"X_{part}", X, f"y_{part}", y))
    return _build(name, len(X_train), len(X_train) + len(X_test), chain(*parts), path)


def from_datasets(
    name: str, train: Dataset[Any], test: Dataset[Any], *, path: str | Path | None = None
) -> SingleDataset:
    """Makes a dataset of two PyTorch datasets, each of which is gone through once.

    Args:
        name: What results call it.
        train: Gives `(image, label)` by number and has a length. An image is a tensor, an array or
            a PIL image; shapes, values and labels are as for `from_arrays`.
        test: The same for testing.
        path: Where to keep the dataset, see `store`, instead of in memory.

    Raises:
        TypeError: If they are not such datasets, or the numbers are of another type.
        ValueError: If shapes, values or labels are of another kind.
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
    for values, numbers in every:
        pixels[start : start + len(values)] = values
        labels[start : start + len(values)] = numbers
        start += len(values)
    return SingleDataset(name, Images(pixels, labels), train)


def _of_one_size(parts: Iterator[Part], shape: tuple[int, ...]) -> Iterator[Part]:
    """Lets parts pass whose images have the first one's size."""
    for values, numbers in parts:
        if values.shape[1:] != shape:
            got = tuple(values.shape[1:])
            raise ValueError(f"images must all have the size of the first, {shape}, got {got}")
        yield values, numbers


def _array_parts(X_name: str, X: Array, y_name: str, y: Array) -> Iterator[Part]:
    """Cuts images and labels into parts of a dataset."""
    for start in range(0, len(X), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        yield _pixels(X_name, _tensor(X_name, X[rows])), _labels(y_name, _tensor(y_name, y[rows]))


def _dataset_parts(name: str, dataset: Dataset[Any], size: int) -> Iterator[Part]:
    """Goes through a PyTorch dataset."""
    for start in range(0, size, AT_ONCE):
        images, labels = [], []
        for i in range(start, min(start + AT_ONCE, size)):
            item = dataset[i]
            if not isinstance(item, (tuple, list)) or len(item) != 2:
                raise TypeError(f"{name} must give (image, label), got {type(item).__name__}")
            images.append(_tensor(name, item[0]))
            labels.append(_tensor(name, item[1]).reshape(-1))
        shapes = {tuple(image.shape) for image in images}
        if len(shapes) > 1 or min(map(len, shapes)) < 2:
            raise ValueError(f"{name} must have images of one size, got {sorted(shapes)}")
        if any(len(label) != 1 for label in labels):
            raise ValueError(f"{name} must have one label an image, got several or none")
        yield _pixels(name, torch.stack(images)), _labels(name, torch.cat(labels))


def _tensor(name: str, values: object) -> Tensor:
    """Makes a tensor of a tensor, an array, a PIL image or a number."""
    if isinstance(values, Tensor):
        return values.detach().cpu()
    array = np.array(values)  # a copy: mapped arrays may be for reading only
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must hold numbers, got {array.dtype}")
    return torch.from_numpy(array)


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
    if images.ndim == 4 and images.shape[1] <= MAX_CHANNELS:
        return images
    if images.ndim == 4 and images.shape[3] <= MAX_CHANNELS:
        return images.permute(0, 3, 1, 2)
    raise ValueError(
        f"{name} must have 1 to {MAX_CHANNELS} channels, first or last, "
        f"got images of {tuple(images.shape[1:])}"
    )


def _labels(name: str, labels: Tensor) -> Tensor:
    """Makes labels into int64."""
    if labels.is_complex():
        raise TypeError(f"{name} must have whole numbers as labels, got {labels.dtype}")
    if labels.is_floating_point():
        # Beyond 2^53 floats are whole whatever was meant, and cannot be turned into numbers.
        wrong = ~((labels == labels.floor()) & (labels.abs() < 2**53))
        if wrong.any():
            raise ValueError(
                f"{name} must have whole numbers as labels, got {labels[wrong][0].item():g}"
            )
    return labels.to(torch.int64)
