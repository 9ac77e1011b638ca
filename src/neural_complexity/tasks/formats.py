"""Readers of the files that labelled images are published in: IDX, CIFAR-10's records, SVHN's.

A reader trusts no header: sizes are compared with the bytes that are really there before memory is
taken for them, and whatever is wrong with a file becomes one ValueError that names it.
"""

import gzip
import io
import math
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["CLASSES", "read_cifar10", "read_cifar10_archive", "read_idx", "read_svhn"]

CLASSES = 10  # of every dataset that comes in these formats

# What a packed file may hold: four times the largest real one, and no file packs more tightly.
MAX_UNPACKED = 1_000_000_000
MAX_RATIO = 1032
PIECE = 1 << 20  # bytes

CIFAR10_SHAPE = (3, 32, 32)
CIFAR10_RECORD = 1 + math.prod(CIFAR10_SHAPE)
CIFAR10_TRAIN = [f"data_batch_{i}.bin" for i in range(1, 6)]
CIFAR10_TEST = "test_batch.bin"
TAR_BLOCK = 512

MAT_HEADER = 128
MAT_MATRIX, MAT_COMPRESSED = 14, 15
MAT_CLASSES = range(6, 16)  # double, single, int8, ..., uint64
MAT_COMPLEX = 8
MAT_NUMBERS = {
    **{1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4"},
    **{7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"},
}


def read_idx(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    """Reads images and their labels from two IDX files, as they are or packed by gzip.

    Args:
        images: A file of bytes with three axes, such as `train-images-idx3-ubyte.gz`.
        labels: A file of bytes with one axis.

    Returns:
        Pixels, (P, 1, height, width), and labels, (P,).

    Raises:
        OSError: If a file cannot be opened.
        ValueError: If a file is damaged or of another kind, or the two do not belong together.
    """
    pixels = _read_idx(images, 3)
    numbers = _read_idx(labels, 1)
    if len(pixels) != len(numbers):
        raise ValueError(
            f"{labels} must hold a label for each of the {len(pixels)} images, got {len(numbers)}"
        )
    return torch.from_numpy(pixels[:, None]), _labels(labels, numbers)


def read_cifar10(path: Path) -> tuple[Tensor, Tensor]:
    """Reads a file of CIFAR-10's binary version, such as `data_batch_1.bin`.

    Returns:
        Pixels, (P, 3, 32, 32), and labels, (P,).

    Raises:
        OSError: If the file cannot be opened.
        ValueError: If it does not consist of records of a label and 3,072 pixels.
    """
    with path.open("rb") as file:
        return _records(path, _read(file, path.stat().st_size + 1))


def read_cifar10_archive(path: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Reads `cifar-10-binary.tar.gz`, in memory: nothing is ever extracted to the disk.

    Returns:
        Pixels and labels of the training images, and those of the test images.

    Raises:
        OSError: If the file cannot be opened.
        ValueError: If it is damaged or does not hold each of the six files once.
    """
    found: dict[str, tuple[Tensor, Tensor]] = {}
    wanted = [*CIFAR10_TRAIN, CIFAR10_TEST]
    with _unpacked(path) as file:
        for name, content in _tar_files(path, file, wanted):
            if name in found:
                raise ValueError(f"{path} must hold every file once, got {name} again")
            found[name] = _records(path, content)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(f"{path} must hold {', '.join(wanted)}, got none of {', '.join(missing)}")
    pixels, labels = zip(*(found[name] for name in CIFAR10_TRAIN), strict=True)
    return (torch.cat(pixels), torch.cat(labels)), found[CIFAR10_TEST]


def read_svhn(path: Path) -> tuple[Tensor, Tensor]:
    """Reads SVHN's cropped digits from a MATLAB 5 file, such as `train_32x32.mat`.

    Returns:
        Pixels, (P, 3, 32, 32), and labels, (P,); the file's label 10 is the digit 0.

    Raises:
        OSError: If the file cannot be opened.
        ValueError: If it is damaged, or X and y are not images and their labels.
    """
    try:
        variables = _variables(_unpacked_mat(path).getbuffer())
        if set(variables) != {"X", "y"}:
            raise ValueError(f"variables {', '.join(sorted(variables)) or 'of other names'}")
        X, y = variables["X"], variables["y"]
        P = y.size
        if X.dtype != np.uint8 or X.shape != (32, 32, 3, P) or y.shape not in ((P, 1), (1, P)):
            raise ValueError(f"X of {X.dtype}, {X.shape}, and y, {y.shape}")
    except (ValueError, struct.error) as error:
        raise ValueError(
            f"{path} must be a MATLAB 5 file with uint8 images X (32, 32, 3, P) and labels y "
            f"(P, 1), got another or a damaged one ({error})"
        ) from None
    if not ((y >= 1) & (y <= CLASSES) & (y == np.floor(y))).all():
        raise ValueError(f"{path} must have labels 1 to 10, got {y.min()} to {y.max()}")
    pixels = np.ascontiguousarray(X.transpose(3, 2, 0, 1))
    return torch.from_numpy(pixels), torch.from_numpy(y.reshape(-1).astype(np.int64) % CLASSES)


@contextmanager
def _unpacked(path: Path) -> Iterator[io.BufferedIOBase]:
    """Opens what a gzip file holds; damage found while reading becomes a ValueError."""
    with gzip.open(path) as file:
        try:
            yield file
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(
                f"{path} must be a whole gzip file, got a damaged one ({error})"
            ) from None


def _read(file: io.BufferedIOBase, size: int) -> bytearray:
    """Reads at most `size` bytes, taking memory only for those that come."""
    content = bytearray()
    while len(content) < size and (piece := file.read(min(PIECE, size - len(content)))):
        content += piece
    return content


def _most(path: Path) -> int:
    """Gives the most bytes that a packed file can hold and may hold."""
    return min(MAX_RATIO * path.stat().st_size, MAX_UNPACKED)


def _read_idx(path: Path, axes: int) -> NDArray[np.uint8]:
    """Reads an IDX file of bytes with so many axes."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    if packed:
        with _unpacked(path) as file:
            return _idx_values(path, file, axes, _most(path))
    with path.open("rb") as file:
        return _idx_values(path, file, axes, path.stat().st_size)


def _idx_values(path: Path, file: io.BufferedIOBase, axes: int, most: int) -> NDArray[np.uint8]:
    """Reads header and values of an IDX file that holds at most so many bytes."""
    header = _read(file, 4 + 4 * axes)
    magic = bytes([0, 0, 8, axes])
    if len(header) < 4 + 4 * axes or header[:4] != magic:
        raise ValueError(
            f"{path} must be an IDX file of bytes with {axes} axes, which starts with "
            f"{magic.hex()}, got {header[:4].hex() or 'an empty file'}"
        )
    shape = struct.unpack(f">{axes}I", header[4:])
    size = math.prod(shape)
    if size == 0 or size > most:
        raise ValueError(
            f"{path} must hold {' x '.join(map(str, shape))} values as its header says, "
            f"and it has room for 1 to {most}"
        )
    content = _read(file, size + 1)
    if len(content) != size:
        got = "more" if len(content) > size else len(content)
        raise ValueError(f"{path} must hold {size} values as its header says, got {got}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _labels(path: Path, numbers: NDArray[np.uint8]) -> Tensor:
    """Checks labels and gives them their type."""
    if numbers.max() >= CLASSES:
        raise ValueError(f"{path} must have labels 0 to {CLASSES - 1}, got {numbers.max()}")
    return torch.from_numpy(numbers.astype(np.int64))


def _records(path: Path, content: bytearray) -> tuple[Tensor, Tensor]:
    """Takes records of CIFAR-10 apart."""
    if len(content) == 0 or len(content) % CIFAR10_RECORD:
        raise ValueError(
            f"{path} must consist of records of {CIFAR10_RECORD} bytes, got {len(content)} bytes"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, CIFAR10_RECORD)
    labels = _labels(path, records[:, 0])
    return torch.from_numpy(records[:, 1:].reshape(-1, *CIFAR10_SHAPE)), labels


def _tar_files(
    path: Path, file: io.BufferedIOBase, wanted: list[str]
) -> Iterator[tuple[str, bytearray]]:
    """Gives the wanted files of a tar archive, by the last part of their names.

    Only plain files count: links and folders are passed over. Python's own reader keeps whatever
    an archive declares to be a header in memory, and may go back and forth in it.
    """
    left = _most(path)
    while any(header := _read(file, TAR_BLOCK)):
        name, kind, size = _tar_header(path, header)
        padded = -(-size // TAR_BLOCK) * TAR_BLOCK
        left -= TAR_BLOCK + padded
        if left < 0:
            raise ValueError(f"{path} must hold what its headers say, got {size} bytes for {name}")
        folder, _, base = name.rpartition("/")
        if kind in (b"0", b"\0") and base in wanted and folder in ("", "cifar-10-batches-bin"):
            content = _read(file, padded)
            if len(content) < size:
                raise ValueError(f"{path} must hold {size} bytes of {name}, got {len(content)}")
            yield base, content[:size]
        else:
            while padded > 0 and (piece := file.read(min(PIECE, padded))):
                padded -= len(piece)
    while left > 0 and (piece := file.read(PIECE)):  # only at the end is the checksum checked
        left -= len(piece)


def _tar_header(path: Path, header: bytearray) -> tuple[str, bytes, int]:
    """Reads name, kind and size of a file in a tar archive."""
    try:
        checksum = int(header[148:156].strip(b" \0"), 8)
        size = int(header[124:136].strip(b" \0") or b"0", 8)
    except ValueError:
        checksum, size = -1, 0
    if checksum != sum(header[:148]) + 8 * ord(" ") + sum(header[156:]) or size < 0:
        raise ValueError(f"{path} must be a tar archive packed by gzip, got a damaged header in it")
    name = header[:100].split(b"\0")[0].decode("ascii", "backslashreplace")
    return name.removeprefix("./"), bytes(header[156:157]), size


def _unpacked_mat(path: Path) -> io.BytesIO:
    """Reads the variables of a MATLAB 5 file and unpacks them, none further than its own size."""
    size, left = path.stat().st_size, _most(path)
    out = io.BytesIO()
    with path.open("rb") as file:
        if file.read(MAT_HEADER)[124:] != b"\x00\x01IM":
            raise ValueError("another header")
        while tag := file.read(8):
            kind, length = struct.unpack("<II", tag)
            end = file.tell() + length
            if kind not in (MAT_MATRIX, MAT_COMPRESSED) or end > size:
                raise ValueError("a file that was cut")
            if kind == MAT_COMPRESSED:
                left -= _inflate(file, length, out, left)
                continue
            out.write(tag)
            while piece := file.read(min(PIECE, end - file.tell())):
                out.write(piece)
    return out


def _inflate(file: io.BufferedIOBase, length: int, out: io.BytesIO, most: int) -> int:
    """Unpacks a variable of so many packed bytes: a tag that gives its size, and its content."""
    stream = zlib.decompressobj()
    start, end = out.tell(), file.tell() + length
    kind, size = 0, most
    try:
        for piece in _inflated(stream, file, length):
            out.write(piece)
            if out.tell() - start >= 8:
                kind, size = struct.unpack("<II", out.getbuffer()[start : start + 8])
            if out.tell() - start > min(8 + size, most):
                break
    except zlib.error as error:
        raise ValueError(str(error)) from None
    whole = stream.eof and not stream.unused_data and file.tell() == end
    got = out.tell() - start
    if not whole or kind != MAT_MATRIX or got != 8 + size or got > most:
        raise ValueError("a variable of another size than it says")
    return got


def _inflated(stream: "zlib._Decompress", file: io.BufferedIOBase, length: int) -> Iterator[bytes]:
    """Gives what so many packed bytes of a file hold, in pieces, until the stream ends."""
    while length > 0 and not stream.eof and (packed := file.read(min(PIECE, length))):
        length -= len(packed)
        full = True
        while not stream.eof and (packed or full):  # a full piece may have left some behind
            yield (piece := stream.decompress(packed, PIECE))
            packed, full = stream.unconsumed_tail, len(piece) == PIECE


def _variables(content: memoryview) -> dict[str, NDArray[Any]]:
    """Gives X and y of a MATLAB file's unpacked variables, where they are arrays of numbers.

    SciPy's reader would do, but a wrong byte in the right place makes it crash the process.
    """
    found: dict[str, NDArray[Any]] = {}
    for _, variable in _elements(content):
        (_, flags), (_, sizes), (_, name), (kind, values) = islice(_elements(variable), 4)
        key = bytes(name).decode("latin-1")
        if key not in ("X", "y"):
            continue
        shape = struct.unpack(f"<{len(sizes) // 4}i", sizes)
        group, marks = struct.unpack("<BB6x", flags)
        numbers = group in MAT_CLASSES and not marks & MAT_COMPLEX and kind in MAT_NUMBERS
        if key in found or not numbers or min(shape, default=0) < 1:
            raise ValueError(f"{key} of another kind, {shape}")
        array = np.frombuffer(values, MAT_NUMBERS[kind])
        found[key] = array.reshape(shape, order="F")
    return found


def _elements(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Takes apart a sequence of elements, each with a tag of its kind and size."""
    while content:
        kind, size = struct.unpack_from("<II", content)
        start = 8
        if kind >> 16:  # up to four bytes stand in the tag itself
            kind, size, start = kind & 0xFFFF, kind >> 16, 4
        value = content[start : start + size]
        if len(value) < size or (start == 4 and size > 4):
            raise ValueError("an element that was cut")
        yield kind, value
        content = content[-(-(start + size) // 8) * 8 :]
