"""Datasets of images that users have, in memory, or in one file that is mapped into memory."""

import json
import math
import mmap
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.utils.data import Dataset, Subset

from neural_complexity.convert.arrays_in import numbers, pair, targets
from neural_complexity.files import write_bytes
from neural_complexity.tasks.images import Images, Part, SingleDataset, check_values

__all__ = ["from_arrays", "from_datasets", "open_store", "write_store"]

Array = NDArray[Any] | Tensor
Place = str | Path | None  # of a file; none for in memory
Parts = Iterator[Part]

AT_ONCE = 64  # images
MAX_CHANNELS = 4
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # mmap has the name from Python 3.13 on


def from_arrays(
    name: str, X_train: Array, y_train: Array, X_test: Array, y_test: Array, *, path: Place = None
) -> SingleDataset:
    """Makes a dataset of arrays or tensors; they may be memory-mapped.

    Images are uint8 or floats from 0 to 1, rounded to 256 levels: (P, height, width),
    (P, channels, height, width) or (P, height, width, channels) with one to four channels; where
    both are possible the channels come first. Labels, (P,), are 0 ... classes - 1. The dataset, not
    the user, standardizes values. It is kept in memory, or in the file `path`, see `open_store`.

    Example:
        >>> X, y = torch.rand(6, 28, 28), torch.tensor([0, 1, 0, 1, 1, 0])
        >>> from_arrays("mine", X[:4], y[:4], X[4:], y[4:]).train
        4
    """
    sets = (("train", X_train, y_train), ("test", X_test, y_test))
    for part, X, y in sets:
        if len(X.shape) not in (3, 4) or 0 in X.shape or tuple(y.shape) != (len(X),):
            raise ValueError(
                f"X_{part} must be images, (P, height, width) or with channels, and y_{part} one "
                f"label each, got shapes {tuple(X.shape)} and {tuple(y.shape)}"
            )
    parts = (
        _part(f"X_{part}", f"y_{part}", X[i : i + AT_ONCE], y[i : i + AT_ONCE])
        for part, X, y in sets
        for i in range(0, len(X), AT_ONCE)
    )
    return _build(name, len(X_train), len(X_train) + len(X_test), parts, path)


def from_datasets(
    name: str, train: Dataset[Any], test: Dataset[Any], *, path: Place = None
) -> SingleDataset:
    """Makes a dataset of two PyTorch datasets with a length, each of which is gone through once.

    An image is a tensor, an array or a PIL image; all else is as for `from_arrays`.
    """
    sizes = []
    for part, dataset in (("train", train), ("test", test)):
        if not isinstance(dataset, Sized):
            raise TypeError(f"{part} must have a length, got {type(dataset).__name__}")
        if len(dataset) == 0:
            raise ValueError(f"{part} must not be empty, got a dataset of length 0")
        sizes.append(len(dataset))
    parts = (
        _part(part, f"labels of {part}", *pair(part, Subset(dataset, rows)))
        for part, dataset, size in zip(("train", "test"), (train, test), sizes, strict=True)
        for rows in (range(size)[i : i + AT_ONCE] for i in range(0, size, AT_ONCE))
    )
    return _build(name, sizes[0], sum(sizes), parts, path)


def open_store(path: str | Path) -> SingleDataset:
    """Opens a dataset kept in a file: images are read from the disk as they are looked up."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a stored dataset, got no such file")
    try:
        with safe_open(path, framework="np") as file:  # checks the file, and reads no pixel
            header = file.metadata() or {}
            kind, shape = file.get_slice("pixels").get_dtype(), file.get_slice("pixels").get_shape()
            labels = torch.from_numpy(file.get_tensor("labels"))
        if kind != "U8":
            raise ValueError(f"pixels of {kind}")
        with path.open("rb") as raw:
            (size,) = struct.unpack("<Q", raw.read(8))
            start, _ = json.loads(raw.read(size))["pixels"]["data_offsets"]
            # A change would change a copy, never the file; and none is reserved in memory, without
            # which Linux would not map more than it has.
            flags = mmap.MAP_PRIVATE | NO_RESERVE
            pages = mmap.mmap(raw.fileno(), 0, flags, mmap.PROT_READ | mmap.PROT_WRITE)
        where = {"count": math.prod(shape), "offset": 8 + size + start}
        images = Images(torch.frombuffer(pages, dtype=torch.uint8, **where).reshape(shape), labels)
        return SingleDataset(header["name"], images, int(header["train"]))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        wanted = "must hold pixels, labels, name and train of a dataset"
        raise ValueError(f"{path} {wanted}, got another or a damaged file ({error})") from None


def write_store(
    path: str | Path, name: str, shape: Sequence[int], train: int, parts: Iterable[Part]
) -> SingleDataset:
    """Writes a dataset of `shape` pixels in parts, of which one need be in memory, and opens it."""
    write_bytes(Path(path), _content(name, shape, train, parts))
    return open_store(path)


def _build(name: str, train: int, size: int, parts: Parts, path: Place) -> SingleDataset:
    """Puts parts together, in memory or in a file."""
    first = next(parts)
    shape = tuple(first[0].shape[1:])

    def checked(part: Part) -> Part:
        if (got := tuple(part[0].shape[1:])) != shape:
            raise ValueError(f"images must all have the size of the first, {shape}, got {got}")
        return part

    every = map(checked, chain([first], parts))
    if path is not None:
        return write_store(path, name, (size, *shape), train, every)
    pixels, labels = (torch.cat(both) for both in zip(*every, strict=True))
    return SingleDataset(name, Images(pixels, labels), train)


def _part(X_name: str, y_name: str, X: Any, y: Any) -> Part:
    """Returns images as uint8 with channels first, and labels."""
    if y is None:
        raise TypeError(f"{X_name} must give (image, label), got images alone")
    images = numbers(X_name, X).cpu()
    if images.dtype != torch.uint8:
        check_values(X_name, images)
        images = (255 * images.double()).round().to(torch.uint8)
    images = images.unsqueeze(1) if images.ndim == 3 else images
    axes = [axis for axis in (1, 3) if images.ndim == 4 and images.shape[axis] <= MAX_CHANNELS]
    if not axes:
        wanted, got = f"1 to {MAX_CHANNELS} channels, first or last", tuple(images.shape[1:])
        raise ValueError(f"{X_name} must have {wanted}, got images of {got}")
    pixels = images.movedim(axes[0], 1).contiguous()
    return pixels, targets(y_name, y, labels=True, points=len(pixels)).cpu()


def _content(
    name: str, shape: Sequence[int], train: int, parts: Iterable[Part]
) -> Iterator[bytes | memoryview]:
    """Yields the bytes of a store: header, pixels and, when they are all known, labels."""
    pixels = torch.Size(shape).numel()
    ends = [0, pixels, pixels + 8 * shape[0]]
    header = {
        "__metadata__": {"name": name, "train": str(train)},
        "pixels": {"dtype": "U8", "shape": list(shape), "data_offsets": ends[:2]},
        "labels": {"dtype": "I64", "shape": [shape[0]], "data_offsets": ends[1:]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + pixels) % 8)  # labels can be mapped at multiples of 8 only
    yield struct.pack("<Q", len(text)) + text
    labels = []
    for values, own in parts:
        yield values.cpu().contiguous().numpy().data
        labels.append(own.cpu())
    every = torch.cat(labels)
    # The same checks as on opening, on pixels that take no memory.
    SingleDataset(name, Images(torch.zeros(1, dtype=torch.uint8).expand(shape), every), train)
    yield every.numpy().data
