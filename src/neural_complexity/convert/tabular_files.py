"""Tables of points from CSV, parquet and npz files."""

import textwrap
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["Columns", "read_arrays", "read_columns"]

CSV_ERRORS = (pd.errors.EmptyDataError, pd.errors.ParserError, pd.errors.ParserWarning)
NPZ_ERRORS = (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, AttributeError)


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
        missing = [name for name in names if name not in self.values]
        if missing:
            known = textwrap.shorten(", ".join(self.values), 80, placeholder=" ...")
            raise ValueError(f"{self.path} must have a column {missing[0]}, got {known}")


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
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("it is a single array")
        with file:
            return dict(file)
    except NPZ_ERRORS as error:
        got = f"got another ({_first_line(error)})"
        raise ValueError(f"{path} must be an npz file of plain arrays, {got}") from None


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a file, got no such file")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".")


def _read_csv(path: Path) -> pd.DataFrame:
    read = partial(pd.read_csv, path, encoding="utf-8-sig", skipinitialspace=True, index_col=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # lines of more cells
            first = read(header=None, nrows=1, dtype=str, keep_default_na=False)
            header = first.iloc[0].str.strip()
            _check_header(path, header)
            frame = read(header=0, names=header.tolist(), low_memory=False)
    except (*CSV_ERRORS, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} must be a CSV file in UTF-8 with a header, at least one row and equally many "
            f"cells in every line, got another ({_first_line(error)})"
        ) from None
    text = frame.select_dtypes(exclude=["number", "bool"]).columns
    return frame.assign(**{name: frame[name].str.strip() for name in text})


def _check_header(path: Path, header: "pd.Series[str]") -> None:
    numeric = pd.to_numeric(header, errors="coerce").notna()
    alone = len(header) == 1
    for wrong, sentence in (
        (header == "", "name every column, got one without a name (see to_csv(index=False)){}"),
        # Whole numbers are names that pandas gives to columns.
        (numeric & ~header.str.isdecimal(), "start with names of columns, got the number {}"),
        (header.duplicated(), "name every column once, got {} twice"),
        (header.str.contains(r"[;\t|]") & alone, "separate cells by commas, got the header {}"),
    ):
        if wrong.any():
            raise ValueError(f"{path} must {sentence.format(header[wrong].iloc[0])}")


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except ImportError:
        raise ValueError(
            f"{path} must be CSV or npz unless the extra for tables is installed, got parquet: "
            "pip install 'neural-complexity[tables]'"
        ) from None
    except Exception as error:  # pyarrow has many
        got = f"got a damaged one ({_first_line(error)})"
        raise ValueError(f"{path} must be a parquet file, {got}") from None
