"""Readers of the files that labelled images are published in: IDX, CIFAR-10's records, SVHN's.

The simple formats are read from any file, and whatever is wrong becomes one ValueError. Archives
and MATLAB files are left to libraries, which hostile files can crash: their checksum must be known.
"""

import gzip
import math
import struct
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.io import loadmat
from torch import Tensor

__all__ = ["CLASSES", "read_cifar10", "read_idx", "read_svhn"]

CLASSES = 10  # of every dataset that comes in these formats
CIFAR10_SHAPE = (3, 32, 32)
CIFAR10_RECORD = 1 + math.prod(CIFAR10_SHAPE)
CIFAR10_TRAIN = [f"data_batch_{i}.bin" for i in range(1, 6)]
CIFAR10_TEST = "test_batch.bin"
MAX_RATIO = 1032  # no gzip file packs more tightly

Part = tuple[Tensor, Tensor]  # pixels, uint8 (P, channels, height, width), and labels, int64 (P,)


def read_idx(paths: Sequence[Path]) -> list[Part]:
    """Reads IDX files of images, each followed by one of labels, packed by gzip or not."""
    parts = []
    for images, labels in zip(paths[::2], paths[1::2], strict=True):
        pixels, numbers = _idx_values(images, 3), _idx_values(labels, 1)
        if (P := len(pixels)) != (got := len(numbers)):
            raise ValueError(f"{labels} must hold a label for each of the {P} images, got {got}")
        parts.append((torch.from_numpy(pixels[:, None]), _labels(labels, numbers)))
    return parts


def read_cifar10(path: Path) -> list[Part]:
    """Reads CIFAR-10 from its archive, which must be trusted, or from `test_batch.bin` etc."""
    names = [*CIFAR10_TRAIN, CIFAR10_TEST]
    if path.name == CIFAR10_TEST:
        found = {name: path.with_name(name).read_bytes() for name in names}
    else:
        with tarfile.open(path, "r|gz") as archive:  # nothing is extracted to the disk
            files = ((Path(entry.name).name, archive.extractfile(entry)) for entry in archive)
            found = {name: file.read() for name, file in files if file and name in names}
    pixels, labels = zip(*(_records(path.with_name(n), found[n]) for n in names), strict=True)
    return [(torch.cat(pixels[:-1]), torch.cat(labels[:-1])), (pixels[-1], labels[-1])]


def read_svhn(path: Path) -> Part:
    """Reads SVHN's cropped digits from a MATLAB file that must be trusted."""
    with path.open("rb") as file:
        content = loadmat(file, variable_names=["X", "y"])
    pixels = np.ascontiguousarray(content["X"].transpose(3, 2, 0, 1))
    labels = content["y"].reshape(-1) % CLASSES  # there 10 is the digit 0
    return torch.from_numpy(pixels), _labels(path, labels)


def _idx_values(path: Path, axes: int) -> NDArray[np.uint8]:
    """Reads an IDX file of bytes with so many axes."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    most = path.stat().st_size * (MAX_RATIO if packed else 1)
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            header, magic = file.read(4 + 4 * axes), bytes([0, 0, 8, axes])
            if len(header) < 4 + 4 * axes or header[:4] != magic:
                raise ValueError(
                    f"{path} must be an IDX file of bytes with {axes} axes, which starts with "
                    f"{magic.hex()}, got {header[:4].hex() or 'an empty file'}"
                )
            shape = struct.unpack(f">{axes}I", header[4:])
            size = math.prod(shape)
            # Reading takes memory for all that is asked for, whether it is there or not.
            content = bytearray(file.read(size + 1) if 0 < size <= most else b"")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} must be a whole gzip file, got a damaged one ({error})") from None
    if size == 0 or len(content) != size:
        raise ValueError(
            f"{path} must hold {' x '.join(map(str, shape))} values as its header says, "
            f"got {'more' if len(content) > size else 'fewer'}"
        )
    return np.frombuffer(content, np.uint8).reshape(shape)


def _records(path: Path, content: bytes) -> Part:
    """Takes records of CIFAR-10 apart."""
    if not (size := len(content)) or size % CIFAR10_RECORD:
        raise ValueError(f"{path} must be records of {CIFAR10_RECORD} bytes, got {size} bytes")
    records = np.frombuffer(bytearray(content), np.uint8).reshape(-1, CIFAR10_RECORD)
    pixels = records[:, 1:].reshape(-1, *CIFAR10_SHAPE)
    return torch.from_numpy(pixels), _labels(path, records[:, 0])


def _labels(path: Path, labels: NDArray[np.uint8]) -> Tensor:
    if labels.max() >= CLASSES:
        raise ValueError(f"{path} must have labels 0 to {CLASSES - 1}, got {labels.max()}")
    return torch.from_numpy(labels.astype(np.int64))
