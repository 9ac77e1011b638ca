"""Results as data: one JSON object per number."""

import json
import subprocess
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import neural_complexity
from neural_complexity.files import write_text
from neural_complexity.meta.scores import Estimate

__all__ = ["Row", "commit", "read_rows", "score_row", "write_rows"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number, how sure it is, where it comes from, and what the paper has in its place."""

    experiment: str
    method: str
    setting: str
    metric: str
    value: float
    ci95: float | None  # half-width over tasks
    n: int  # tasks
    paper: float | None
    seed: int
    commit: str


def score_row(
    experiment: str,
    seed: int,
    method: str,
    setting: str,
    metric: str,
    score: Estimate,
    paper: float | None = None,
) -> Row:
    """Makes the row of a score, with the commit that runs."""
    return Row(
        experiment=experiment,
        method=method,
        setting=setting,
        metric=metric,
        value=score.value,
        ci95=score.ci95,
        n=score.n,
        paper=paper,
        seed=seed,
        commit=commit(),
    )


def write_rows(path: Path, rows: list[Row]) -> None:
    """Writes rows as JSON lines, all or none."""
    write_text(path, "".join(json.dumps(asdict(row), allow_nan=False) + "\n" for row in rows))


def read_rows(path: Path) -> list[Row]:
    """Reads rows.

    Raises:
        ValueError: If the file is missing or a line is not a row.
    """
    if not path.is_file():
        raise ValueError(f"{path} must hold the rows of a finished run, got no such file")
    rows = []
    names = {field.name for field in fields(Row)}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            content = json.loads(line)
        except json.JSONDecodeError:
            content = None
        if not isinstance(content, dict) or set(content) != names:
            raise ValueError(
                f"{path} must hold one row per line, got something else in line {number}"
            )
        rows.append(Row(**content))
    if not rows:
        raise ValueError(f"{path} must hold the rows of a finished run, got an empty file")
    return rows


@cache
def commit() -> str:
    """Names the code that runs: the commit of a checkout, marked if changed, or the release."""
    package = Path(neural_complexity.__file__).parent
    try:
        _git(package, "ls-files", "--error-unmatch", "__init__.py")  # not somebody else's checkout
        head = _git(package, "rev-parse", "HEAD")
        changed = _git(package, "status", "--porcelain", "--", ".")
        return head[:12] + ("-changed" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        pass  # no git, or not a checkout: an installed release
    try:
        return "release " + version("neural-complexity")
    except PackageNotFoundError:
        return "unknown"


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
