import io
from dataclasses import replace

from rich.console import Console

from neural_complexity.assessment.tables import Table, find, show, to_html, to_markdown, to_rich
from neural_complexity.experiments.base.rows import Row

ROW = Row(
    experiment="e",
    method="none",
    setting="s",
    metric="m",
    value=4.123,
    ci95=0.056,
    n=3,
    paper=None,
    seed=0,
    commit="c",
)
TABLE = Table(
    "A <title>", ("method", "loss [x]"), (("none & all", "1.00 ± 0.10"),), "A note [with brackets]."
)


def test_numbers_come_with_their_interval() -> None:
    assert show(ROW) == "4.12 ± 0.06"
    assert show(replace(ROW, ci95=None), digits=1) == "4.1"
    assert show(None) == ""


def test_rows_are_found_by_method_setting_and_metric() -> None:
    assert find([replace(ROW, metric="other"), ROW], "none", "s", "m") is ROW
    assert find([ROW], "none", "s", "other") is None


def test_html_is_escaped() -> None:
    page = to_html(TABLE)
    assert "A &lt;title&gt;" in page
    assert "none &amp; all" in page


def test_markdown_has_a_line_per_row() -> None:
    assert "| none & all | 1.00 ± 0.10 |" in to_markdown(TABLE).splitlines()


def test_brackets_survive_the_terminal() -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(to_rich(TABLE))
    text = console.export_text()
    assert "[with brackets]" in text
    assert "loss [x]" in text
