"""The style that all figures share."""

from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas
from PIL import Image

from neural_complexity.files import write_bytes

__all__ = ["COLORS", "STYLE", "save", "to_png"]

COLORS = {
    **{"none": "#7a7f87", "posterior": "#1f6fb4", "direct": "#d9772b"},
    **{"oracle": "#2f8f5b", "target": "#222222"},
}
STYLE: dict[Any, Any] = {
    **{"font.size": 9, "axes.titlesize": 9, "legend.fontsize": 8, "legend.frameon": False},
    **{"axes.spines.top": False, "axes.spines.right": False},
    **{"axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.6},
    **{"figure.dpi": 100, "savefig.dpi": 180, "pdf.fonttype": 42},
}


def save(canvas: Canvas, folder: Path, name: str) -> Path:
    """Writes a figure as PDF, for a paper, and as PNG, for a page; returns the path of the PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / f"{name}.pdf", _printed(canvas, "pdf", "CreationDate").getvalue())
    write_bytes(folder / f"{name}.png", to_png(canvas))
    return folder / f"{name}.png"


def to_png(canvas: Canvas) -> bytes:
    """Returns a PNG of 256 colours: pages embed pictures, and surfaces would take megabytes."""
    small = BytesIO()
    with Image.open(_printed(canvas, "png", "Software")) as full:
        full.convert("RGB").quantize(256).save(small, format="png", optimize=True)
    return small.getvalue()


def _printed(canvas: Canvas, kind: str, omitted: str) -> BytesIO:
    """Prints a figure without a date or version inside: the same numbers give the same file."""
    picture = BytesIO()
    with mpl.rc_context(STYLE):
        canvas.savefig(picture, format=kind, metadata={omitted: None})
    return picture
