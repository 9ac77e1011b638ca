"""Tables of results, for a terminal, a page and a document."""

import html
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table as RichTable

from neural_complexity.experiments.base.rows import Row

__all__ = ["Table", "find", "show", "to_html", "to_markdown", "to_rich"]


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


def find(rows: list[Row], method: str, setting: str, metric: str) -> Row | None:
    """Gives the one row of a method, setting and metric, if there is one."""
    found = [r for r in rows if (r.method, r.setting, r.metric) == (method, setting, metric)]
    return found[0] if found else None


def show(row: Row | None, digits: int = 2) -> str:
    """Writes a number with its interval."""
    if row is None:
        return ""
    interval = "" if row.ci95 is None else f" ± {row.ci95:.{digits}f}"
    value = round(row.value, digits) + 0.0  # there are two zeros, but one number
    return f"{value:.{digits}f}{interval}"


def to_rich(table: Table) -> RichTable:
    """Makes a table for the terminal."""
    rich = RichTable(
        title=escape(table.title),
        caption=escape(table.note) or None,
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
    )
    for i, name in enumerate(table.header):
        rich.add_column(escape(name), justify="left" if i == 0 else "right", no_wrap=i == 0)
    for row in table.rows:
        rich.add_row(*(escape(cell) for cell in row))
    return rich


def to_markdown(table: Table) -> str:
    """Makes a table for a Markdown document."""
    lines = [
        "| " + " | ".join(table.header) + " |",
        "| --- |" + " ---: |" * (len(table.header) - 1),
        *("| " + " | ".join(row) + " |" for row in table.rows),
    ]
    note = f"\n{table.note}\n" if table.note else ""
    return f"**{table.title}**\n\n" + "\n".join(lines) + "\n" + note


def to_html(table: Table) -> str:
    """Makes a table for a page."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    note = f"<p class='note'>{html.escape(table.note)}</p>" if table.note else ""
    return (
        f"<h2>{html.escape(table.title)}</h2><div class='scroll'><table><thead><tr>{head}</tr>"
        f"</thead><tbody>{body}</tbody></table></div>{note}"
    )
