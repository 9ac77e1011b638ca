"""The look that all figures share."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

__all__ = ["COLORS", "STYLE", "save"]

COLORS = {
    "none": "#7a7f87",
    "posterior": "#1f6fb4",
    "direct": "#d9772b",
    "oracle": "#2f8f5b",
    "target": "#222222",
}

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.dpi": 100,
    "savefig.dpi": 180,
    "pdf.fonttype": 42,
}


def save(canvas: Canvas, folder: Path, name: str) -> Path:
    """Writes a figure as PDF, for a paper, and PNG, for a page.

    Returns:
        The PNG's path.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        # No date inside: the same numbers give the same file.
        canvas.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None})
        canvas.savefig(folder / f"{name}.png", metadata={"Software": None})
    return folder / f"{name}.png"
