"""Tables of points from CSV, parquet and npz files."""

import csv
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["Columns", "read_arrays", "read_columns"]


@dataclass(frozen=True)
class Columns:
    """A table of one file: the name and the values of each column."""

    path: Path
    values: dict[str, NDArray[Any]]  # each (rows,), numbers or text

    def numbers(self, names: Sequence[str]) -> NDArray[np.float64]:
        """Returns some columns, (rows, names), or raises a TypeError if one holds text."""
        self.check(names)
        for name in names:
            if self.values[name].dtype.kind not in "biuf":
                text = pd.to_numeric(pd.Series(self.values[name]), errors="coerce").isna()
                got = self.values[name][text][:1].tolist()
                raise TypeError(f"column {name} of {self.path} must hold numbers, got text: {got}")
        return np.stack([self.values[name].astype(np.float64) for name in names], axis=1)

    def check(self, names: Sequence[str]) -> None:
        """Raises a ValueError if a column is not there."""
        for name in names:
            if name not in self.values:
                there = list(self.values)
                known = ", ".join(there[:8]) + (", ..." if len(there) > 8 else "")
                raise ValueError(f"{self.path} must have a column {name}, got {known}")


def read_columns(path: Path) -> Columns:
    """Reads a CSV file with a header, or a parquet file (extra `tables`).

    A ValueError says what is damaged or missing.
    """
    _check_file(path)
    frame = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
    if not frame.size:
        raise ValueError(f"{path} must have a header and at least one row, got no rows")
    for name, column in frame.items():
        if column.hasnans:
            line = int(column.isna().argmax()) + 2  # the header is line 1
            raise ValueError(
                f"column {name} of {path} must have no missing values, got "
                f"{int(column.isna().sum())} of {len(column)}, the first in line {line}"
            )
    return Columns(path, {str(name): column.to_numpy() for name, column in frame.items()})


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Reads all arrays of an npz file; runs no code from it."""
    _check_file(path)
    errors = (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, AttributeError)
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("it is a single array")
        with file:
            return {name: file[name] for name in file.files}
    except errors as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(
            f"{path} must be an npz file of plain arrays, got another ({reason})"
        ) from None


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a file, got no such file")


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = [cell.strip() for cell in next(filter(None, csv.reader(file)), [])]
        _check_header(path, header)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # lines of more cells
            frame = pd.read_csv(
                path,
                header=0,
                names=header,
                index_col=False,
                encoding="utf-8-sig",
                skipinitialspace=True,
                low_memory=False,
            )
    except (pd.errors.ParserError, pd.errors.ParserWarning, UnicodeDecodeError, csv.Error) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(
            f"{path} must be a CSV file in UTF-8 with equally many cells in every line, "
            f"got another ({reason})"
        ) from None
    text = frame.select_dtypes(exclude=["number", "bool"]).columns
    return frame.assign(**{name: frame[name].str.strip() for name in text})


def _check_header(path: Path, header: list[str]) -> None:
    if not header:
        raise ValueError(f"{path} must have a header and at least one row, got an empty file")
    if "" in header:
        raise ValueError(
            f"{path} must name every column, got one without a name (pandas leaves its index "
            "out with to_csv(index=False))"
        )
    for name in header:
        # Whole numbers are names that pandas gives to columns.
        if not name.isdecimal() and not np.isnan(pd.to_numeric(name, errors="coerce")):
            raise ValueError(
                f"{path} must start with a line that names the columns, got the number {name}"
            )
        if header.count(name) > 1:
            raise ValueError(f"{path} must name every column once, got {name} twice")
    if len(header) == 1 and any(sign in header[0] for sign in ";\t|"):
        raise ValueError(f"{path} must separate cells by commas, got the header {header[0]!r}")


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except ImportError:
        raise ValueError(
            f"{path} must be CSV or npz unless the extra for tables is installed, got parquet: "
            "pip install 'neural-complexity[tables]'"
        ) from None
    except Exception as error:  # pyarrow has many
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(f"{path} must be a parquet file, got a damaged one ({reason})") from None
