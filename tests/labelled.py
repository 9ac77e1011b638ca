"""Small files in the formats that labelled images are published in."""

import gzip
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.io import savemat

from neural_complexity.tasks.image_datasets import CIFAR10_TEST, CIFAR10_TRAIN

Bytes = NDArray[np.uint8]


def draw(P: int, *shape: int, seed: int = 0) -> tuple[Bytes, Bytes]:
    """Draws images, (P, *shape), and labels from 0 to 9, (P,)."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (P, *shape), dtype=np.uint8), np.arange(P, dtype="u1") % 10


def idx(values: Bytes) -> bytes:
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


def cifar10(pixels: Bytes, labels: Bytes) -> bytes:
    return np.concatenate([labels[:, None], pixels.reshape(len(pixels), -1)], axis=1).tobytes()


def svhn(pixels: Bytes, labels: Bytes, compressed: bool = True) -> bytes:
    file = io.BytesIO()
    y = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
    variables = {"X": pixels.transpose(2, 3, 1, 0), "y": y}
    savemat(file, variables, do_compression=compressed)
    return file.getvalue()


def cifar10_tar(files: dict[str, bytes], format: int = tarfile.GNU_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1, format=format) as archive:
        folder = tarfile.TarInfo("cifar-10-batches-bin")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def cifar10_files(P: int = 10) -> dict[str, bytes]:
    names = [*CIFAR10_TRAIN, CIFAR10_TEST]
    return {
        f"cifar-10-batches-bin/{name}": cifar10(*draw(P, 3, 32, 32, seed=i))
        for i, name in enumerate(names)
    }


def write_idx(folder: Path, train: int = 20, test: int = 10, packed: bool = True) -> None:
    """Writes the four files of a dataset like MNIST, with images of 6 x 5 pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, P, seed in (("train", train, 0), ("t10k", test, 1)):
        images, labels = draw(P, 6, 5, seed=seed)
        for name, values in (("images-idx3", images), ("labels-idx1", labels)):
            path = folder / f"{part}-{name}-ubyte{'.gz' if packed else ''}"
            content = idx(values)
            path.write_bytes(gzip.compress(content) if packed else content)


def expected(*sets: tuple[Bytes, Bytes]) -> tuple[torch.Tensor, torch.Tensor]:
    """Puts images and labels together as tensors; images without a channel get one."""
    pixels = torch.cat([torch.from_numpy(images) for images, _ in sets])
    labels = torch.cat([torch.from_numpy(labels).long() for _, labels in sets])
    return pixels[:, None] if pixels.ndim == 3 else pixels, labels
