"""Omniglot: characters of fifty alphabets, each drawn by twenty people (Lake et al. 2015)."""

import hashlib
import io
import re
import struct
import zipfile
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from neural_complexity.files import write_bytes
from neural_complexity.tasks.datasets import cache_folder, data_folder, find_file
from neural_complexity.tasks.images import Images

__all__ = ["SIZE", "omniglot", "preprocess"]

SIZE = 28
ADDRESS = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
CHECKSUMS = {  # as published; archives packed anew differ, and their content decides
    "background": "md5:68d2efa1b9178cc56df9314c21c6e718",
    "evaluation": "md5:6b91aef0f799c5bb55b94e3f2daec811",
}
DRAWN = 105  # pixels on each side of an original drawing
CACHE_VERSION = 1  # to be raised when the same archive gives other pixels

# Ten times the real archives: enough for anything honest, too little to fill a memory.
MAX_ARCHIVE = 100_000_000
MAX_ENTRIES = 200_000
MAX_CONTENT = 50_000_000
MAX_DRAWING = 50_000
MAX_DRAWINGS = 200


def preprocess(images: Tensor) -> Tensor:
    """Turns drawings into what an NC for Omniglot was trained on: 28 x 28, ink 1 and ground 0.

    Args:
        images: Dark ink on light ground, (..., height, width) of any size, or
            (..., 1, height, width): a third axis from the end of size one is the channel. Numbers
            of type uint8 go from 0 to 255, floats from 0 to 1, and booleans are true for ground.

    Returns:
        The images averaged over areas and inverted, (..., 1, 28, 28), in the default precision.

    Raises:
        TypeError: If the images are of another type.
        ValueError: If their shape or values are of another kind.

    Example:
        >>> preprocess(torch.zeros(5, 105, 105, dtype=torch.uint8)).shape
        torch.Size([5, 1, 28, 28])
    """
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a torch.Tensor, got {type(images).__name__}")
    if images.dtype not in (torch.uint8, torch.bool) and not images.is_floating_point():
        raise TypeError(f"images must be uint8, bool or floats, got {images.dtype}")
    if images.ndim < 2 or images.numel() == 0:
        shape = tuple(images.shape)
        raise ValueError(f"images must be (..., height, width) and not empty, got shape {shape}")
    ground = images.to(torch.get_default_dtype())
    if images.dtype == torch.uint8:
        ground = ground / 255
    if not ((ground >= 0) & (ground <= 1)).all():
        low, high = ground.aminmax()
        raise ValueError(f"images must have values from 0 to 1, got {low:g} to {high:g}")
    if images.ndim < 3 or images.shape[-3] != 1:
        ground = ground.unsqueeze(-3)  # (..., 1, height, width)
    ink = 1 - adaptive_avg_pool2d(ground.reshape(-1, *ground.shape[-3:]), SIZE)
    return ink.clamp(0, 1).reshape(*ground.shape[:-2], SIZE, SIZE)


def omniglot(
    part: Literal["background", "evaluation"],
    *,
    folder: str | Path | None = None,
    download: bool = True,
) -> Images:
    """Reads one part of Omniglot, from its zip archive or what an earlier reading left.

    Drawings are preprocessed as by `preprocess` and numbered by alphabet, character and drawing.
    The result is kept next to the archive, or else in the user's cache folder, and memory-mapped.

    Args:
        part: The 964 characters for meta-training, or the 659 that are held out.
        folder: The data folder with `images_background.zip` and `images_evaluation.zip`, there or
            in `omniglot/`; see `data_folder`.
        download: Whether to download an archive that is not there.

    Returns:
        Images of one channel, 28 x 28, ink 1 and ground 0.

    Raises:
        FileNotFoundError: If the archive is neither there nor to be had.
        ValueError: If there is no such part, or the archive is damaged or not Omniglot.
    """
    if part not in CHECKSUMS:
        raise ValueError(f"part must be background or evaluation, got {part}")
    name = f"images_{part}.zip"
    archive = find_file(
        data_folder(folder),
        name,
        dataset="omniglot",
        checksum=CHECKSUMS[part],
        urls=[f"{ADDRESS}/{name}"],
        download=download,
    )
    pixels = torch.from_numpy(_pixels(archive))  # (classes, drawings, 28, 28)
    labels = torch.arange(len(pixels)).repeat_interleave(pixels.shape[1])
    return Images(pixels.flatten(0, 1).unsqueeze(1), labels)


def _pixels(archive: Path) -> NDArray[np.uint8]:
    """Reads an archive, (classes, drawings, 28, 28), through a cache named after its content."""
    if archive.stat().st_size > MAX_ARCHIVE:
        size = archive.stat().st_size
        raise ValueError(f"{archive} must have at most {MAX_ARCHIVE} bytes, got {size}")
    content = archive.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:16]
    name = f"{archive.stem}-{SIZE}x{SIZE}-v{CACHE_VERSION}-{digest}.npy"
    places = [archive.parent / name, cache_folder() / name]
    for path in places:
        if (cached := _load_cache(path)) is not None:
            return cached
    pixels = _read_archive(archive, content)
    for path in places:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _save_cache(path, pixels)
        except OSError:
            continue  # a folder for reading only, a full disk: a cache is not worth failing for
        if (cached := _load_cache(path)) is not None:
            return cached
    return pixels


def _save_cache(path: Path, pixels: NDArray[np.uint8]) -> None:
    """Writes an array with a checksum behind it, where readers of arrays do not look."""
    file = io.BytesIO()
    np.save(file, pixels, allow_pickle=False)
    write_bytes(path, file.getvalue() + hashlib.sha256(file.getvalue()).digest())


def _load_cache(path: Path) -> NDArray[np.uint8] | None:
    """Maps what `_save_cache` wrote; None if there is nothing, or nothing whole."""
    try:
        content = memoryview(path.read_bytes())
        if hashlib.sha256(content[:-32]).digest() != content[-32:]:
            return None
        # Copy on write: torch takes arrays only that it may write to, and the file stays as it is.
        pixels: NDArray[np.uint8] = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError):
        return None
    whole = pixels.dtype == np.uint8 and pixels.ndim == 4 and pixels.shape[2:] == (SIZE, SIZE)
    return pixels if whole else None


def _read_archive(archive: Path, content: bytes) -> NDArray[np.uint8]:
    """Reads all drawings of an archive, in memory: nothing is ever extracted to the disk."""
    try:
        file = zipfile.ZipFile(io.BytesIO(content))
    except Exception as error:  # a damaged archive makes the reader raise almost anything
        raise ValueError(f"{archive} must be a whole zip archive, got damage ({error})") from None
    with file:
        characters = _characters(archive, file.infolist())
        return np.stack([_read_character(archive, file, entries) for entries in characters])


def _characters(archive: Path, entries: list[zipfile.ZipInfo]) -> list[list[zipfile.ZipInfo]]:
    """Sorts the drawings of an archive by character, and refuses what has no place in it."""
    size = sum(entry.file_size for entry in entries)
    if len(entries) > MAX_ENTRIES or size > MAX_CONTENT:
        raise ValueError(
            f"{archive} must have at most {MAX_ENTRIES} entries and {MAX_CONTENT} bytes unpacked, "
            f"got {len(entries)} and {size}"
        )
    for entry in entries:
        _check_entry(archive, entry)
    names = [entry.filename for entry in entries]
    if len(set(names)) < len(names):
        raise ValueError(f"{archive} must have every name once, got {len(names)} entries")
    pattern = re.compile(rf"({archive.stem}/[^/]+/character\d+)/[^/]+\.png")
    found: dict[str, list[zipfile.ZipInfo]] = {}
    for entry in sorted(entries, key=lambda entry: entry.filename):
        if entry.is_dir():
            continue
        match = pattern.fullmatch(entry.filename)
        if match is None:
            raise ValueError(
                f"{archive} must hold {archive.stem}/ALPHABET/characterNN/DRAWING.png, "
                f"got {entry.filename!r}"
            )
        found.setdefault(match[1], []).append(entry)
    counts = {len(drawings) for drawings in found.values()}
    if len(counts) != 1 or max(counts) > MAX_DRAWINGS:
        raise ValueError(
            f"{archive} must have equally many drawings of each character, at most {MAX_DRAWINGS}, "
            f"got {sorted(counts) or 'none'}"
        )
    return list(found.values())


def _check_entry(archive: Path, entry: zipfile.ZipInfo) -> None:
    """Refuses names that leave the archive's folder, and entries made to fill a memory."""
    name = entry.orig_filename
    outside = name.startswith("/") or ".." in name.split("/")
    if outside or any(sign in name for sign in "\\:\0"):
        raise ValueError(f"{archive} must hold names inside its own folder, got {name!r}")
    if entry.file_size > MAX_DRAWING:
        raise ValueError(
            f"{archive} must hold drawings of at most {MAX_DRAWING} bytes, "
            f"got {entry.file_size} of {name!r}"
        )
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{archive} must be stored or deflated, got another method of {name!r}")


def _read_character(
    archive: Path, file: zipfile.ZipFile, entries: list[zipfile.ZipInfo]
) -> NDArray[np.uint8]:
    """Reads the drawings of one character, (drawings, 28, 28), with ink 255 and ground 0."""
    drawings = np.stack([_read_drawing(archive, file, entry) for entry in entries])
    ink = preprocess(torch.from_numpy(drawings)[:, None])[:, 0]
    # Means of few pixels are often halves; they go up whatever the precision makes of them.
    pixels: NDArray[np.uint8] = (255 * ink + 0.501).floor().to(torch.uint8).numpy()
    return pixels


def _read_drawing(
    archive: Path, file: zipfile.ZipFile, entry: zipfile.ZipInfo
) -> NDArray[np.uint8]:
    """Decodes one drawing, (105, 105)."""
    try:
        with file.open(entry) as packed:
            # Asked for a size, the reader unpacks no more than that, whatever the entry says.
            content = packed.read(MAX_DRAWING)
        signature, width, height = struct.unpack(">16sII", content[:24])
        if not signature.startswith(b"\x89PNG\r\n\x1a\n"):
            raise ValueError("not a PNG")
        if (width, height) != (DRAWN, DRAWN):
            raise ValueError(f"{width} x {height} pixels")
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            return np.asarray(image.convert("L"))
    except Exception as error:  # as above, and decoders alike
        raise ValueError(
            f"{archive} must hold PNG images of {DRAWN} x {DRAWN} pixels, "
            f"got {entry.filename!r} ({error})"
        ) from None
