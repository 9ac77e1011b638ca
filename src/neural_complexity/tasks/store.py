"""A dataset in one file that is mapped into memory, so that it may be larger than the memory."""

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from neural_complexity.files import read_tensors, write_chunks
from neural_complexity.tasks.images import Images, chunks
from neural_complexity.tasks.single import SingleDataset

__all__ = ["open_store", "store", "write_store"]


def store(dataset: SingleDataset, path: str | Path) -> SingleDataset:
    """Writes a dataset to one file, whole or not at all, and opens it from there.

    Args:
        dataset: The dataset.
        path: The file, a safetensors file; its folder must exist.

    Returns:
        The same dataset, mapped.
    """
    parts = zip(chunks(dataset.images.pixels), _labels_alongside(dataset.images), strict=True)
    return write_store(path, dataset.name, dataset.images.pixels.shape, dataset.train, parts)


def open_store(path: str | Path) -> SingleDataset:
    """Opens what `store` wrote: images are read from the disk as they are looked up.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged or of another kind.
    """
    tensors, header = read_tensors(Path(path))
    if set(tensors) != {"pixels", "labels"} or set(header) != {"name", "train"}:
        found = ", ".join([*sorted(tensors), *sorted(header)])
        raise ValueError(f"{path} must hold pixels, labels, name and train, got {found or 'none'}")
    try:
        images = Images(tensors["pixels"], tensors["labels"])
        return SingleDataset(header["name"], images, int(header["train"]))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} must hold a dataset, got another content ({error})") from None


def write_store(
    path: str | Path,
    name: str,
    shape: Sequence[int],
    train: int,
    parts: Iterable[tuple[Tensor, Tensor]],
) -> SingleDataset:
    """Writes a dataset that comes in parts, of which only one need be in memory, and opens it.

    Args:
        path: The file; its folder must exist.
        name: What results call the dataset.
        shape: Of all pixels, (P, channels, height, width).
        train: How many of the P images are for training; they come first.
        parts: Pixels, uint8 (p, channels, height, width), with their labels, int64 (p,).

    Raises:
        ValueError: If the parts are no dataset; nothing is written then.
    """
    write_chunks(Path(path), _content(name, tuple(shape), train, parts))
    return open_store(path)


def _content(
    name: str, shape: tuple[int, ...], train: int, parts: Iterable[tuple[Tensor, Tensor]]
) -> Iterator[bytes | memoryview]:
    """Gives the bytes of a store: header, pixels and, when they are all known, labels."""
    pixels = torch.Size(shape).numel()
    offsets = [0, pixels, pixels + 8 * shape[0]]
    header = {
        "__metadata__": {"name": name, "train": str(train)},
        "pixels": {"dtype": "U8", "shape": shape, "data_offsets": offsets[:2]},
        "labels": {"dtype": "I64", "shape": shape[:1], "data_offsets": offsets[1:]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + pixels) % 8)  # labels can be mapped at multiples of 8 only
    yield struct.pack("<Q", len(text)) + text
    labels = []
    for values, numbers in parts:
        yield values.cpu().contiguous().numpy().data
        labels.append(numbers.cpu())
    every = torch.cat(labels)
    # The same checks as on opening, on pixels that take no memory.
    SingleDataset(name, Images(torch.zeros(1, dtype=torch.uint8).expand(shape), every), train)
    yield every.numpy().data


def _labels_alongside(images: Images) -> Iterator[Tensor]:
    """Cuts the labels as `chunks` cuts the pixels."""
    start = 0
    for part in chunks(images.pixels):
        yield images.labels[start : start + len(part)]
        start += len(part)
