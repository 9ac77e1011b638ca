from dataclasses import replace

import pytest

from neural_complexity.experiments.base.rows import Key, Row
from neural_complexity.experiments.base.table_views import (
    distinct,
    find,
    pivot,
    select,
    series,
    show,
)

ROW = Row(
    experiment="e",
    metric="loss",
    keys={},
    value=4.123,
    ci95=0.056,
    n=3,
    paper=None,
    seed=0,
    commit="c",
)


def row(value: float, metric: str = "loss", **keys: Key) -> Row:
    return replace(ROW, metric=metric, value=value, ci95=None, keys=keys)


ROWS = [
    row(1.0, method="none", step=2),
    row(2.0, method="none", step=1),
    row(3.0, method="NC", head="direct", step=1),
    row(4.0, "gap", method="none", step=1),
]


def test_numbers_come_with_their_interval() -> None:
    assert show(ROW) == "4.12 ± 0.06"
    assert show(replace(ROW, ci95=None), digits=1) == "4.1"
    assert show(row(-0.001)) == "0.00"
    assert show(None) == ""


def test_rows_are_found_by_metric_and_keys() -> None:
    assert select(ROWS, step=1) == ROWS[1:]
    assert select(ROWS, "loss", head=None) == ROWS[:2]  # those without a head
    assert find(ROWS, "gap", method="none") is ROWS[3]
    assert find(ROWS, "loss", method="NC", step=2) is None
    with pytest.raises(AssertionError, match="must be one row, got 2"):
        find(ROWS, "loss", step=1)


def test_distinct_keys_come_in_order_of_appearance() -> None:
    assert distinct(ROWS, "method", "head") == [
        {"method": "none"},
        {"method": "NC", "head": "direct"},
    ]


def test_a_pivot_has_a_line_per_name_and_a_cell_per_column() -> None:
    lines = pivot(
        ROWS,
        distinct(ROWS, "method"),
        [("loss", {"step": 1}), ("gap", {})],
        lambda keys: str(keys["method"]),
    )
    assert lines == [("none", "2.00", "4.00"), ("NC", "3.00", "")]


def test_a_series_is_sorted() -> None:
    assert series(ROWS, "loss", "step", method="none") == ([1.0, 2.0], [2.0, 1.0])
