"""Tables and figures of a run or an assessment, for a terminal, documents and one HTML page."""

import json
from base64 import b64encode
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, PackageLoader
from matplotlib.figure import Figure as Canvas
from PIL import Image
from rich import box, markup
from rich.table import Table as RichTable

from neural_complexity.files import write_bytes

__all__ = ["COLORS", "STYLE", "Figure", "Table", "plain", "render", "save", "to_markdown", "to_png"]
__all__ += ["to_rich"]

COLORS = {
    **{"none": "#7a7f87", "posterior": "#1f6fb4", "direct": "#d9772b"},
    **{"oracle": "#2f8f5b", "target": "#222222"},
}
STYLE: dict[Any, Any] = {  # of all figures
    **{"font.size": 9, "axes.titlesize": 9, "legend.fontsize": 8, "legend.frameon": False},
    **{"axes.spines.top": False, "axes.spines.right": False},
    **{"axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.6},
    **{"figure.dpi": 100, "savefig.dpi": 180, "pdf.fonttype": 42},
}


@dataclass(frozen=True)
class Table:
    """A title, a header and rows of text; the first column names the row."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row) == len(self.header), f"{row} does not fit {self.header}"


@dataclass(frozen=True)
class Figure:
    """A picture, PNG or a file of it, with a title and a caption."""

    png: Path | bytes
    title: str
    caption: str

    def base64(self) -> str:
        """Returns the picture as a page embeds it."""
        content = self.png if isinstance(self.png, bytes) else self.png.read_bytes()
        return b64encode(content).decode()


def to_rich(table: Table) -> RichTable:
    """Returns the table for a terminal."""
    title, note = markup.escape(table.title), markup.escape(table.note) or None
    rich = RichTable(title=title, caption=note, title_justify="left", box=box.SIMPLE_HEAD)
    rich.caption_justify = "left"
    for i, name in enumerate(table.header):
        rich.add_column(markup.escape(name), justify="right" if i else "left", no_wrap=i == 0)
    for row in table.rows:
        rich.add_row(*map(markup.escape, row))
    return rich


def to_markdown(table: Table) -> str:
    """Returns the table for a Markdown document."""
    rule = ("---", *["---:"] * (len(table.header) - 1))
    lines = [f"| {' | '.join(row)} |" for row in (table.header, rule, *table.rows)]
    note = f"\n{table.note}\n" if table.note else ""
    return f"**{table.title}**\n\n" + "\n".join(lines) + "\n" + note


def save(canvas: Canvas, folder: Path, name: str) -> Path:
    """Writes a figure as PDF, for a paper, and as PNG, for a page; returns the path of the PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        canvas.draw_without_rendering()
        canvas.set_layout_engine(None)  # laid out once, which takes as long as to draw it
    write_bytes(folder / f"{name}.pdf", _printed(canvas, "pdf", "CreationDate").getvalue())
    write_bytes(folder / f"{name}.png", to_png(canvas))
    return folder / f"{name}.png"


def plain(text: str) -> str:
    """Returns text as a figure shows it, of which nothing is a formula."""
    return text.replace("$", r"\$")


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


def render(
    title: str, lead: str, tables: list[Table], figures: list[Figure], details: Any, **more: Any
) -> str:
    """Renders `page.html`, which needs no other file and no network.

    Details are shown as JSON; `warnings`, and a `details_title` of another kind, may be added.
    """
    loader = PackageLoader("neural_complexity.assessment", "")
    template = Environment(loader=loader, autoescape=True).get_template("page.html")
    shown = {"title": title, "lead": lead, "tables": tables, "figures": figures}
    return template.render(shown, details=json.dumps(details, indent=2), **more)
