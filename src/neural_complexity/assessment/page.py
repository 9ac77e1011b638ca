"""One self-contained HTML page of a run."""

import base64
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neural_complexity.assessment.tables import Table, to_html

__all__ = ["Figure", "render"]

STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5b6575; --line: #d9dee7; --paper: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ef; --soft: #9aa4b5; --line: #333c4b; --paper: #14181f; }
}
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 74rem; margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
.lead, .note, figcaption { color: var(--soft) } .note, figcaption { font-size: .88rem }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .86rem }
th, td { padding: .35rem .55rem; text-align: right; border-bottom: 1px solid var(--line);
         white-space: nowrap }
th:first-child, td:first-child { text-align: left }
figure { margin: 1.5rem 0 } img { max-width: 100%; background: #fff; border-radius: 6px }
.remarks { border-left: 4px solid #d9772b; padding: .4rem 1rem .4rem 2rem }
pre { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; padding: .8rem;
      font-size: .82rem }
"""


@dataclass(frozen=True)
class Figure:
    """A picture on disk, its title and what it shows."""

    path: Path  # a PNG
    title: str
    caption: str


def render(
    title: str,
    lead: str,
    tables: list[Table],
    figures: list[Figure],
    details: dict[str, Any],
    *,
    remarks: Sequence[str] = (),
    detailed: str = "How it was made",
) -> str:
    """Makes the page; it needs no other file and no network.

    Args:
        title: Its heading.
        lead: One paragraph on what was done.
        tables: Shown first.
        figures: Embedded.
        details: Config, machine and so on, shown as JSON.
        remarks: Sentences to read before anything else.
        detailed: The heading of the details.
    """
    said = "".join(f"<li>{html.escape(remark)}</li>" for remark in remarks)
    said = f"<ul class='remarks'>{said}</ul>" if said else ""
    pictures = "".join(_figure(figure) for figure in figures)
    facts = html.escape(json.dumps(details, indent=2))
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1><p class='lead'>{html.escape(lead)}</p>"
        f"{said}{''.join(to_html(table) for table in tables)}{pictures}"
        f"<h2>{html.escape(detailed)}</h2><pre>{facts}</pre></body></html>\n"
    )


def _figure(figure: Figure) -> str:
    picture = base64.b64encode(figure.path.read_bytes()).decode()
    title, caption = html.escape(figure.title), html.escape(figure.caption)
    return (
        f"<h2>{title}</h2><figure><img alt='{title}' src='data:image/png;base64,{picture}'>"
        f"<figcaption>{caption}</figcaption></figure>"
    )
