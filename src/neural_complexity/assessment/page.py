"""One self-contained HTML page of a run or an assessment, by the template `page.html`."""

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from neural_complexity.assessment.tables import Table

__all__ = ["Figure", "render"]


@dataclass(frozen=True)
class Figure:
    """A picture with a title and a caption."""

    png: Path | bytes  # the content, or a file of it
    title: str
    caption: str

    def base64(self) -> str:
        """Returns the picture as a page embeds it."""
        content = self.png if isinstance(self.png, bytes) else self.png.read_bytes()
        return b64encode(content).decode()


def render(
    title: str,
    lead: str,
    tables: Sequence[Table],
    figures: Sequence[Figure],
    details: dict[str, Any],
    *,
    warnings: Sequence[str] = (),
    details_title: str = "How it was made",
) -> str:
    """Renders a page that needs no other file and no network; details are shown as JSON."""
    loader = PackageLoader("neural_complexity.assessment", "")
    template = Environment(loader=loader, autoescape=True).get_template("page.html")
    shown = {"title": title, "lead": lead, "tables": tables, "figures": figures}
    text = json.dumps(details, indent=2)
    return template.render(shown, warnings=warnings, details=text, details_title=details_title)
