"""A dataset in one file that is mapped into memory, so that it may be larger than the memory."""

import json
import mmap
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from neural_complexity.files import write_chunks
from neural_complexity.tasks.formats import Part
from neural_complexity.tasks.images import Images, SingleDataset, chunks

__all__ = ["open_store", "store", "write_store"]

NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # mmap has the name from Python 3.13 on


def store(dataset: SingleDataset, path: str | Path) -> SingleDataset:
    """Writes a dataset to one safetensors file, whole or not at all, and opens it from there."""
    pixels = chunks(dataset.images.pixels)
    parts = zip(pixels, dataset.labels.split(len(pixels[0])), strict=True)
    return write_store(path, dataset.name, dataset.images.pixels.shape, dataset.train, parts)


def open_store(path: str | Path) -> SingleDataset:
    """Opens what `store` wrote: images are read from the disk as they are looked up."""
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
        images = Images(_map_pixels(path).reshape(shape), labels)
        return SingleDataset(header["name"], images, int(header["train"]))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} must hold pixels, labels, name and train of a dataset, "
            f"got another or a damaged file ({error})"
        ) from None


def write_store(
    path: str | Path, name: str, shape: Sequence[int], train: int, parts: Iterable[Part]
) -> SingleDataset:
    """Writes a dataset that comes in parts, of which only one need be in memory, and opens it.

    Args:
        path: The file; its folder must exist.
        name: As of a `SingleDataset`.
        shape: Of all pixels, (P, channels, height, width).
        train: As of a `SingleDataset`.
        parts: Pixels, uint8 (p, channels, height, width), with their labels, int64 (p,). If they
            are no dataset, nothing is written.
    """
    write_chunks(Path(path), _content(name, shape, train, parts))
    return open_store(path)


def _map_pixels(path: Path) -> Tensor:
    """Maps the pixels of a file that was checked already."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        start, end = json.loads(file.read(size))["pixels"]["data_offsets"]
        # A change would change a copy, never the file; and none is reserved in memory, without
        # which Linux would not map more than it has.
        flags = mmap.MAP_PRIVATE | NO_RESERVE
        pages = mmap.mmap(file.fileno(), 0, flags, mmap.PROT_READ | mmap.PROT_WRITE)
    return torch.frombuffer(pages, dtype=torch.uint8, count=end - start, offset=8 + size + start)


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
    for values, numbers in parts:
        yield values.cpu().contiguous().numpy().data
        labels.append(numbers.cpu())
    every = torch.cat(labels)
    # The same checks as on opening, on pixels that take no memory.
    SingleDataset(name, Images(torch.zeros(1, dtype=torch.uint8).expand(shape), every), train)
    yield every.numpy().data
