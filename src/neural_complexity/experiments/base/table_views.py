"""Views of rows: selecting, finding, and pivoting them into the lines of a table."""

from collections.abc import Callable, Iterable, Sequence

from neural_complexity.experiments.base.rows import Key, Keys, Row

__all__ = ["distinct", "find", "pivot", "select", "series", "show"]


def select(rows: Iterable[Row], metric: str | None = None, /, **keys: Key | None) -> list[Row]:
    """Returns the rows of a metric with these keys; `None` asks for rows without the key."""
    found = (row for row in rows if metric in (None, row.metric))
    return [row for row in found if all(row.keys.get(name) == key for name, key in keys.items())]


def find(rows: Iterable[Row], metric: str, /, **keys: Key | None) -> Row | None:
    """Returns the one row of a metric with these keys, if there is one."""
    found = select(rows, metric, **keys)
    assert len(found) < 2, f"{metric} with {keys} must be one row, got {len(found)}"
    return found[0] if found else None


def distinct(rows: Iterable[Row], *names: str) -> list[dict[str, Key]]:
    """Returns what rows have under these keys, each combination once, in order of appearance."""
    found = (tuple((n, row.keys[n]) for n in names if n in row.keys) for row in rows)
    return [dict(keys) for keys in dict.fromkeys(found)]


def show(row: Row | None, digits: int = 2) -> str:
    """Returns a number with its interval as text; nothing for no row."""
    if row is None:
        return ""
    interval = "" if row.ci95 is None else f" ± {row.ci95:.{digits}f}"
    value = round(row.value, digits) + 0.0  # there are two zeros, but one number
    return f"{value:.{digits}f}{interval}"


def pivot(
    rows: Sequence[Row],
    lines: Iterable[Keys],
    columns: Iterable[str | tuple[str, Keys]],
    label: Callable[[Keys], str],
    cell: Callable[[Row | None], str] = show,
) -> list[tuple[str, ...]]:
    """Returns lines: a label, then a cell per column, a metric, perhaps with further keys."""
    named = [(column, {}) if isinstance(column, str) else column for column in columns]
    return [
        (label(line), *(cell(find(rows, metric, **{**line, **keys})) for metric, keys in named))
        for line in lines
    ]


def series(
    rows: Iterable[Row], metric: str, x: str, /, **keys: Key | None
) -> tuple[list[float], list[float]]:
    """Returns the values of key `x`, which must be numbers, and of the metric, sorted by `x`."""
    found = sorted((float(row.keys[x]), row.value) for row in select(rows, metric, **keys))
    return [a for a, _ in found], [b for _, b in found]
