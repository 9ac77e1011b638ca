import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib import figure
from PIL import Image
from rich.console import Console

from neural_complexity.assessment.report import (
    Figure,
    Table,
    render,
    save,
    to_markdown,
    to_png,
    to_rich,
)

TABLE = Table(
    "A <title>", ("method", "loss [x]"), (("none & all", "1.00 ± 0.10"),), "A note [with brackets]."
)


def test_rows_fit_the_header() -> None:
    with pytest.raises(AssertionError, match="does not fit"):
        Table("t", ("a", "b"), (("1",),))


def test_markdown_has_a_line_per_row() -> None:
    assert to_markdown(TABLE).splitlines() == [
        "**A <title>**",
        "",
        "| method | loss [x] |",
        "| --- | ---: |",
        "| none & all | 1.00 ± 0.10 |",
        "",
        "A note [with brackets].",
    ]


def test_brackets_survive_the_terminal() -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(to_rich(TABLE))
    text = console.export_text()
    assert "[with brackets]" in text
    assert "loss [x]" in text


def picture() -> figure.Figure:
    canvas = figure.Figure(figsize=(2, 2))
    canvas.subplots().imshow(np.random.default_rng(0).random((40, 40)))
    return canvas


def test_the_same_numbers_make_the_same_files(tmp_path: Path) -> None:
    first, second = (save(picture(), tmp_path / part, "a") for part in ("one", "two"))
    assert first == tmp_path / "one" / "a.png"
    assert first.read_bytes() == second.read_bytes() == to_png(picture())
    assert first.with_suffix(".pdf").read_bytes() == second.with_suffix(".pdf").read_bytes()
    with Image.open(first) as image:
        assert image.mode == "P"  # at most 256 colours


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    page = render(
        "Title <1>",
        "lead & more",
        [Table("T", ("a", "b"), (("x & y", "1"),), "as <noted>")],
        [
            Figure(tmp_path / "a.png", "Picture", "what it shows"),
            Figure(b"\x89PNG", "Another", "the same"),
        ],
        {"seed": 3, "note": "</pre><script>"},
        warnings=["Beware <of it>"],
    )
    assert page.count("data:image/png;base64,iVBORw==") == 2
    assert "<td>x &amp; y</td>" in page
    assert "as &lt;noted&gt;" in page
    assert "<li>Beware &lt;of it&gt;</li>" in page
    for foreign in ("http:", "https:", "src='/", "<script", str(tmp_path)):
        assert foreign not in page
    assert "Title &lt;1&gt;" in page
    assert "&#34;seed&#34;: 3" in page
