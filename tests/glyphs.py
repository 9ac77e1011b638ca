"""Made-up characters, in the place of Omniglot where its files are not."""

import io
import zipfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from neural_complexity.tasks.images import Images
from neural_complexity.tasks.omniglot_files import preprocess

DRAWN = 105


def glyphs(classes: int = 30, drawings: int = 10, seed: int = 0) -> Images:
    """Makes what `omniglot` reads from the archive of `write_zip` with the same arguments."""
    ink = preprocess(torch.from_numpy(draw(classes, drawings, seed))[:, :, None])
    pixels = (255 * ink + 0.501).floor().to(torch.uint8)  # (classes, drawings, 1, 28, 28)
    return Images(pixels.flatten(0, 1), torch.arange(classes).repeat_interleave(drawings))


def thumbnails(classes: int = 12, drawings: int = 6, seed: int = 0) -> Images:
    """Makes `glyphs` of a quarter of the size, 7 x 7, where time counts more than looks."""
    whole = glyphs(classes, drawings, seed)
    ink = torch.nn.functional.max_pool2d(whole.pixels.float(), 4)
    return Images(ink.to(torch.uint8), whole.labels)


def write_zip(
    path: Path,
    classes: int = 30,
    drawings: int = 10,
    seed: int = 0,
) -> None:
    """Writes an archive like Omniglot's; the name, `images_background.zip`, says which part."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries(path.stem, classes, drawings, seed).items():
            archive.writestr(name, content)


def entries(stem: str, classes: int, drawings: int, seed: int = 0) -> dict[str, bytes]:
    """Returns the files of an archive like Omniglot's, in reading order."""
    every = draw(classes, drawings, seed)
    return {
        f"{stem}/Alphabet_{c // 10:02}/character{c % 10 + 1:02}/{c + 1:04}_{d + 1:02}.png": png(
            every[c, d]
        )
        for c in range(classes)
        for d in range(drawings)
    }


def draw(classes: int, drawings: int, seed: int) -> NDArray[np.bool_]:
    """Draws characters of three strokes, with jitter, as (classes, drawings, 105, 105).

    Like Omniglot's they are dark, false, on light ground, true. More classes or drawings leave
    those before them as they are.
    """
    every = np.empty((classes, drawings, DRAWN, DRAWN), dtype=np.bool_)
    for c in range(classes):
        random = np.random.default_rng([seed, c])
        strokes = random.uniform(20, DRAWN - 20, size=(3, 3, 2))  # each through three points
        for d in range(drawings):
            jitter = random.normal(0, 2, size=strokes.shape) + random.normal(0, 3, size=2)
            image = Image.new("1", (DRAWN, DRAWN), 1)
            for stroke in strokes + jitter:
                ImageDraw.Draw(image).line([tuple(p) for p in stroke], fill=0, width=3)
            every[c, d] = np.asarray(image)
    return every


def png(drawing: NDArray[np.bool_]) -> bytes:
    """Encodes one drawing with one bit a pixel, as Omniglot's are."""
    file = io.BytesIO()
    Image.fromarray(drawing).save(file, format="PNG")
    return file.getvalue()
