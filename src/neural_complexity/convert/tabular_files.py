"""Tables of points from CSV, parquet and npz files."""

import csv
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Columns", "read_arrays", "read_columns"]

MISSING = ("", "na", "n/a", "nan", "null", "none")


@dataclass(frozen=True)
class Columns:
    """A table of one file: the name and the values of each column."""

    path: Path
    values: dict[str, NDArray[Any]]  # each (rows,), numbers or text

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.values.values())))

    def numbers(self, names: Sequence[str]) -> NDArray[np.float64]:
        """Gives some columns, (rows, names).

        Raises:
            TypeError: If one of them holds text.
            ValueError: If one is not there.
        """
        self.check(names)
        for name in names:
            if self.values[name].dtype.kind not in "biuf":
                got = _first_text(self.values[name])
                raise TypeError(f"column {name} of {self.path} must hold numbers, got {got}")
        return np.stack([self.values[name].astype(np.float64) for name in names], axis=1)

    def check(self, names: Sequence[str]) -> None:
        """Checks that columns are there.

        Raises:
            ValueError: If one is not.
        """
        for name in names:
            if name not in self.values:
                there = list(self.values)
                shown = ", ".join(there[:8]) + (", ..." if len(there) > 8 else "")
                raise ValueError(f"{self.path} must have a column {name}, got {shown}")


def read_columns(path: Path) -> Columns:
    """Reads a CSV file with a header, or a parquet file (extra `tables`).

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is damaged or has a hole.
    """
    _check_file(path)
    return _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Reads all arrays of an npz file; runs no code from it.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is damaged or holds other things than arrays of numbers or text.
    """
    _check_file(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it is a single array")
            return {name: file[name] for name in file.files}
    except (
        ValueError,
        EOFError,
        KeyError,
        zipfile.BadZipFile,
        zlib.error,
        AttributeError,
    ) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(
            f"{path} must be an npz file of plain arrays, got another ({reason})"
        ) from None


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a file, got no such file")


def _read_csv(path: Path) -> Columns:
    """Goes through the file twice, as a list of all its cells would be many times as large."""
    try:
        header, text, rows = _look_through(path)
        table: dict[str, Any] = {n: [] if n in text else np.empty(rows) for n in header}
        for i, (_, cells) in enumerate(_lines(path)):
            for name, cell in zip(header, cells, strict=True) if i else ():
                if name in text:
                    table[name].append(cell)
                else:
                    table[name][i - 1] = float(cell)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} must be a CSV file in UTF-8, got another ({error})") from None
    return Columns(path, {name: np.asarray(column) for name, column in table.items()})


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Gives the cells of each line that is not empty, with its number."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        for row in reader:
            if row:
                yield reader.line_num, [cell.strip() for cell in row]


def _look_through(path: Path) -> tuple[list[str], set[str], int]:
    """Gives the names of columns, which of them hold text, and the number of rows."""
    lines = _lines(path)
    _, header = next(lines, (0, []))
    _check_header(path, header)
    text, rows = set(), 0
    for number, cells in lines:
        rows += 1
        if len(cells) != len(header):
            raise ValueError(
                f"{path} must have {len(header)} cells in every line, like its header, got "
                f"{len(cells)} in line {number}"
            )
        for name, cell in zip(header, cells, strict=True):
            if _is_number(cell) and cell.lower() != "nan":
                continue
            if cell.lower() in MISSING:
                raise ValueError(
                    f"column {name} of {path} must have no missing values, got "
                    f"{cell or 'nothing'} in line {number}"
                )
            text.add(name)
    if not rows:
        raise ValueError(f"{path} must have a header and at least one row, got no rows")
    return header, text, rows


def _check_header(path: Path, header: list[str]) -> None:
    for name in header:
        if not name:
            raise ValueError(
                f"{path} must name every column, got one without a name (pandas leaves its index "
                "out with to_csv(index=False))"
            )
        # Whole numbers are names that pandas gives to columns.
        if _is_number(name) and not name.isdecimal():
            raise ValueError(
                f"{path} must start with a line that names the columns, got the number {name}"
            )
    twice = [name for name, times in Counter(header).items() if times > 1]
    if twice:
        raise ValueError(f"{path} must name every column once, got {twice[0]} twice")
    if len(header) == 1 and any(sign in header[0] for sign in ";\t|"):
        raise ValueError(f"{path} must separate cells by commas, got the header {header[0]!r}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _first_text(values: NDArray[Any]) -> str:
    return next((f"text: {v!s}" for v in values.tolist() if not _is_number(str(v))), "text")


def _read_parquet(path: Path) -> Columns:
    try:
        import pandas  # type: ignore[import-untyped, unused-ignore]
        import pyarrow  # type: ignore[import-untyped, unused-ignore]  # noqa: F401
    except ImportError:
        raise ValueError(
            f"{path} must be CSV or npz unless the extra for tables is installed, got parquet: "
            "pip install 'neural-complexity[tables]'"
        ) from None
    try:
        frame = pandas.read_parquet(path)
    except Exception as error:  # pyarrow has many
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(f"{path} must be a parquet file, got a damaged one ({reason})") from None
    columns = {}
    for i, name in enumerate(map(str, frame.columns)):
        column = frame.iloc[:, i]
        missing = column.isna().to_numpy()
        if missing.any():
            raise ValueError(
                f"column {name} of {path} must have no missing values, got "
                f"{int(missing.sum())} of {len(column)}"
            )
        values = column.to_numpy()
        if values.dtype.kind == "O" and all(isinstance(v, int | float) for v in values):
            values = values.astype(np.float64)
        columns[name] = values
    if not columns or not len(frame):
        raise ValueError(f"{path} must have columns and at least one row, got an empty table")
    return Columns(path, columns)
