"""Tables of text: one value that the terminal, Markdown documents and pages are made from."""

from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table as RichTable

__all__ = ["Table", "to_markdown", "to_rich"]


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


def to_rich(table: Table) -> RichTable:
    """Returns the table for a terminal."""
    title, note = escape(table.title), escape(table.note) or None
    rich = RichTable(title=title, caption=note, title_justify="left", box=SIMPLE_HEAD)
    rich.caption_justify = "left"
    for i, name in enumerate(table.header):
        rich.add_column(escape(name), justify="left" if i == 0 else "right", no_wrap=i == 0)
    for row in table.rows:
        rich.add_row(*map(escape, row))
    return rich


def to_markdown(table: Table) -> str:
    """Returns the table for a Markdown document."""
    rule = ("---", *["---:"] * (len(table.header) - 1))
    lines = [f"| {' | '.join(row)} |" for row in (table.header, rule, *table.rows)]
    note = f"\n{table.note}\n" if table.note else ""
    return f"**{table.title}**\n\n" + "\n".join(lines) + "\n" + note
