"""Results as data, one JSON object per number, and views of them: the lines of a table."""

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Self

import neural_complexity
from neural_complexity.files import write_text
from neural_complexity.meta.scores import Estimate

__all__ = ["Key", "Keys", "Row", "commit", "distinct", "find", "pivot", "read_rows", "select"]
__all__ += ["show", "write_rows"]

Key = str | int | float | bool
Keys = Mapping[str, Key]


@dataclass(frozen=True)
class Row:
    """One number, what it is about, how sure it is, and what the paper has in its place."""

    experiment: str
    metric: str
    keys: dict[str, Key]  # method, head, step, ...: typed columns of the table of all rows
    value: float
    ci95: float | None  # half-width over tasks
    n: int  # tasks
    paper: float | None
    seed: int
    commit: str

    @classmethod
    def of(
        cls,
        experiment: str,
        seed: int,
        metric: str,
        score: Estimate,
        paper: float | None = None,
        /,
        **keys: Key | None,
    ) -> Self:
        """Returns the row of a score, with the commit that runs; `None` keys are left out."""
        own = {name: key for name, key in keys.items() if key is not None}
        return cls(experiment, metric, own, score.value, score.ci95, score.n, paper, seed, commit())


def write_rows(path: Path, rows: list[Row]) -> None:
    """Writes rows as JSON lines, all or none."""
    write_text(path, "".join(json.dumps(asdict(row), allow_nan=False) + "\n" for row in rows))


def read_rows(path: Path) -> list[Row]:
    """Returns the rows of a file; raises `ValueError` if it is missing or a line is not a row."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    except UnicodeDecodeError:
        raise ValueError(f"{path} must hold rows in UTF-8, got other bytes") from None
    if not lines:
        got = "an empty file" if path.is_file() else "no such file"
        raise ValueError(f"{path} must hold the rows of a finished run, got {got}")
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(Row(**json.loads(line)))
        except (json.JSONDecodeError, TypeError):
            said = f"hold one row per line, got something else in line {number}"
            if '"setting"' in line:
                said = "have rows with keys, got those of an earlier version: run it again"
            raise ValueError(f"{path} must {said}") from None
    return rows


@cache
def commit() -> str:
    """Returns the name of the code that runs: a commit, marked if changed, or the release."""
    package = Path(neural_complexity.__file__).parent
    try:
        _git(package, "ls-files", "--error-unmatch", "__init__.py")  # not somebody else's checkout
        head = _git(package, "rev-parse", "HEAD")
        changed = _git(package, "status", "--porcelain", "--", ".")
        return head[:12] + ("-changed" if changed else "")
    except (OSError, subprocess.CalledProcessError):  # no git, or no checkout: a release
        try:
            return "release " + version("neural-complexity")
        except PackageNotFoundError:
            return "unknown"


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


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
