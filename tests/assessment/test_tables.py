import io

import pytest
from rich.console import Console

from neural_complexity.assessment.tables import Table, to_markdown, to_rich

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
