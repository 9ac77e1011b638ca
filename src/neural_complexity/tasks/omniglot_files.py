"""Omniglot: characters of fifty alphabets, each drawn by twenty people (Lake et al. 2015)."""

import hashlib
import io
import re
import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from neural_complexity.tasks.image_datasets import DataFile, cached, data_folder, find_file
from neural_complexity.tasks.images import Images, check_values

__all__ = ["omniglot", "preprocess"]

SIZE = 28
ADDRESS = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
CHECKSUMS = {  # as published; archives packed anew differ, and their content decides
    "background": "md5:68d2efa1b9178cc56df9314c21c6e718",
    "evaluation": "md5:6b91aef0f799c5bb55b94e3f2daec811",
}
DRAWN = 105  # pixels on each side of an original drawing

# Ten times the real archives: enough for anything honest, too little to fill a memory.
MAX_ARCHIVE = 100_000_000
MAX_ENTRIES = 200_000
MAX_DRAWING = 50_000  # bytes of one file, unpacked


def preprocess(images: Tensor) -> Tensor:
    """Turns drawings into what an NC for Omniglot was trained on: ink 1, paper 0, (..., 1, 28, 28).

    Drawings are dark ink on light paper, (..., height, width) or (..., 1, height, width): uint8,
    floats from 0 to 1, or booleans, which are true for paper. They are averaged over areas.

    Example:
        >>> preprocess(torch.zeros(5, 105, 105, dtype=torch.uint8)).shape
        torch.Size([5, 1, 28, 28])
    """
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a torch.Tensor, got {type(images).__name__}")
    if len(shape := tuple(images.shape)) < 2 or 0 in shape:
        raise ValueError(f"images must be (..., height, width) and not empty, got shape {shape}")
    check_values("images", images)
    paper = images.to(torch.get_default_dtype())
    if images.dtype == torch.uint8:
        paper = paper / 255
    if images.ndim < 3 or images.shape[-3] != 1:
        paper = paper.unsqueeze(-3)  # (..., 1, height, width)
    ink = 1 - adaptive_avg_pool2d(paper.reshape(-1, *paper.shape[-3:]), SIZE)
    return ink.clamp(0, 1).reshape(*paper.shape[:-2], SIZE, SIZE)


def omniglot(part: str, *, folder: str | Path | None = None, download: bool = True) -> Images:
    """Reads the 964 characters for meta-training, or the 659 that are held out."""
    # Drawings, as by `preprocess`, are in the order of alphabet, character and drawing. The zips
    # are in `data_folder` or its `omniglot/`, or downloaded.
    if part not in CHECKSUMS:
        raise ValueError(f"part must be background or evaluation, got {part}")
    name = f"images_{part}.zip"
    file = DataFile("omniglot", name, (CHECKSUMS[part],), (f"{ADDRESS}/{name}",))
    archive = find_file(file, data_folder(folder), download)
    if (size := archive.stat().st_size) > MAX_ARCHIVE:
        raise ValueError(f"{archive} must have at most {MAX_ARCHIVE} bytes, got {size}")
    content = archive.read_bytes()
    name = f"{archive.stem}-{SIZE}x{SIZE}-v1"  # v2 when the same archive gives other pixels
    digest = hashlib.sha256(content).hexdigest()
    return Images(**cached(name, digest, archive.parent, lambda: _read_archive(archive, content)))


def _read_archive(archive: Path, content: bytes) -> dict[str, Tensor]:
    """Reads all drawings of an archive, in memory: nothing is ever extracted to the disk."""
    try:
        file = zipfile.ZipFile(io.BytesIO(content))
        entries = [entry for entry in file.infolist() if not entry.is_dir()]
    except Exception as error:  # a damaged archive makes the reader raise almost anything
        raise ValueError(f"{archive} must be a whole zip archive, got damage ({error})") from None
    names = sorted(entry.filename for entry in entries)
    if (count := len(names)) > MAX_ENTRIES or len(set(names)) < count:
        raise ValueError(f"{archive} must have at most {MAX_ENTRIES} different files, got {count}")
    methods = {entry.compress_type for entry in entries}
    if not methods <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:  # others may fill the memory
        raise ValueError(f"{archive} must be stored or deflated, got another method")
    pattern = re.compile(rf"{archive.stem}/[\w()-]+/character\d+/\w+\.png")
    wanted = f"{archive.stem}/ALPHABET/characterNN/DRAWING.png"
    for name in names:
        if not pattern.fullmatch(name):
            raise ValueError(f"{archive} must hold {wanted}, got {name!r}")
    characters = [name.rpartition("/")[0] for name in names]
    _, labels, counts = np.unique(characters, return_inverse=True, return_counts=True)
    if len(set(counts)) != 1:
        got = sorted(set(counts.tolist())) or "none"
        raise ValueError(f"{archive} must have equally many drawings of each character, got {got}")
    pixels = []  # (1, 28, 28) each, with ink 255 and paper 0
    for name in names:
        try:
            # Asked for a size, the reader unpacks no more than that, whatever the entry says.
            packed = io.BytesIO(file.open(name).read(MAX_DRAWING))
            with Image.open(packed, formats=["PNG"]) as image:
                if image.size != (DRAWN, DRAWN):  # known before any pixel is decoded
                    raise ValueError(f"{image.width} x {image.height} pixels")
                paper = torch.from_numpy(np.array(image.convert("L")))
        except Exception as error:  # as above, and decoders alike
            wanted = f"PNG images of {DRAWN} x {DRAWN} pixels"
            raise ValueError(f"{archive} must hold {wanted}, got {name!r} ({error})") from None
        # Means of few pixels are often halves; they go up whatever the precision makes of them.
        pixels.append((255 * preprocess(paper) + 0.501).floor().to(torch.uint8))
    return {"pixels": torch.stack(pixels), "labels": torch.from_numpy(labels)}
