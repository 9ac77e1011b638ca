"""Files of users, CSV, parquet or npz, as columns or arrays."""

import csv
import re
import textwrap
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from neural_complexity.convert.arrays_in import numbers

__all__ = ["File", "read_file"]

CSV = "CSV file in UTF-8 with a header, at least one row and equally many cells in every line"
CSV_ERRORS = (pd.errors.EmptyDataError, pd.errors.ParserError, pd.errors.ParserWarning)
NPZ_ERRORS = (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, AttributeError)
# By the ending of a file: what it must be, what it is, and what is raised, if it is not.
KINDS: dict[str, tuple[str, tuple[type[Exception], ...]]] = {
    ".csv": (f"a {CSV}, got another", (*CSV_ERRORS, UnicodeDecodeError)),
    ".parquet": ("a parquet file, got a damaged one", (Exception,)),  # pyarrow has many
    ".npz": ("an npz file of plain arrays, got another", NPZ_ERRORS),
}


@dataclass(frozen=True)
class File:
    """What is in a file, by name: columns of a table, (rows,) each, or arrays of any shape."""

    path: Path
    arrays: dict[str, NDArray[Any]]
    is_table: bool

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self.arrays:
            kind = "a column" if self.is_table else "an array"
            known = textwrap.shorten(", ".join(self.arrays), 80, placeholder=" ...") or "none"
            raise ValueError(f"{self.path} must have {kind} {name}, got {known}")
        if not self.arrays[name].ndim:
            raise ValueError(f"{name} of {self.path} must be an array of points, got one value")
        return self.arrays[name]

    def complete(self, name: str) -> NDArray[Any]:
        """Returns a column, or an array; a column must have no missing values."""
        values = self[name]
        lost = pd.isna(values) if self.is_table else np.zeros(1, dtype=bool)
        if lost.any():  # the header is line 1
            got = f"{lost.sum()} of {len(lost)}, the first in line {lost.argmax() + 2}"
            raise ValueError(f"column {name} of {self.path} must have no missing values, got {got}")
        return values

    def numbers(self, names: list[str]) -> Tensor:
        """Returns some columns, (rows, names), or raises a TypeError if one holds text."""
        return numbers(str(self.path), pd.DataFrame({name: self.complete(name) for name in names}))

    def frame(self, names: list[str]) -> pd.DataFrame:
        """Returns some columns as they are, of any kind and with missing values."""
        return pd.DataFrame({name: self[name] for name in names})

    def predictions(self) -> Any:
        """Returns predictions, (points, columns)."""
        return self.numbers(list(self.arrays)) if self.is_table else self["H"]

    def header(self) -> list[str] | None:
        """Returns the classes of predictions, as far as the file names its columns."""
        names = list(self.arrays) if self.is_table else self.arrays.get("classes")
        return None if names is None else list(map(_name, np.ravel(names).tolist()))


def _name(name: object) -> str:
    """Returns the name of a column; 1.0 is called 1."""
    text = str(name)
    return text.removesuffix(".0") if re.fullmatch(r"-?\d+\.0", text) else text


def read_file(path: Path, *, numbered: bool = False) -> File:
    """Reads CSV with a header, parquet (extra `tables`) or npz, by the ending; runs no code.

    Columns may be named by whole numbers, and if `numbered` also by -1 or 1.0, as classes are.
    """
    suffix = path.suffix.lower()
    if suffix not in KINDS:
        raise ValueError(f"{path} must end in {', '.join(KINDS)}, got {path.suffix or 'nothing'}")
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a file, got no such file")
    wanted, errors = KINDS[suffix]
    try:
        if suffix == ".npz":
            file = np.load(path, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it is a single array")
            with file:
                return File(path, dict(file), is_table=False)
        frame = _read_csv(path, numbered) if suffix == ".csv" else pd.read_parquet(path)
    except ImportError:
        raise ValueError(
            f"{path} must be CSV or npz unless the extra for tables is installed, got parquet: "
            "pip install 'neural-complexity[tables]'"
        ) from None
    except errors as error:
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        raise ValueError(f"{path} must be {wanted} ({reason})") from None
    if not frame.size:
        raise ValueError(f"{path} must have a header and at least one row, got no rows")
    columns = {str(name): column.to_numpy() for name, column in frame.items()}
    return File(path, columns, is_table=True)


def _check_cells(path: Path, count: int) -> None:
    """Refuses a file that has a line of fewer cells."""
    with path.open(newline="", encoding="utf-8-sig") as lines:
        for line in (reader := csv.reader(lines, skipinitialspace=True)):
            if line and len(line) != count:
                got = f"{len(line)} of {count} in line {reader.line_num}"
                raise ValueError(f"{path} must have equally many cells in every line, got {got}")


def _read_csv(path: Path, numbered: bool) -> pd.DataFrame:
    read = partial(pd.read_csv, path, encoding="utf-8-sig", skipinitialspace=True, index_col=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # lines of more cells
        header = read(header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0].str.strip()
        numeric = pd.to_numeric(header, errors="coerce")
        odd = numeric.notna() & ~(numeric.mod(1).eq(0) if numbered else header.str.isdecimal())
        split = header.str.contains(r"[;\t|]") & (len(header) == 1)
        for wrong, sentence in (
            (header == "", "name every column, got one without a name (see to_csv(index=False)){}"),
            # Whole numbers are names that pandas gives to columns.
            (odd, "start with names of columns, got the number {}"),
            (header.duplicated(), "name every column once, got {} twice"),
            (split, "separate cells by commas, got the header {}"),
        ):
            if wrong.any():
                raise ValueError(f"{path} must {sentence.format(header[wrong].iloc[0])}")
        frame = read(header=0, names=header.tolist(), low_memory=False)
    if frame.iloc[:, -1].hasnans:  # cells that are not there are read as missing values
        _check_cells(path, len(header))
    text = frame.select_dtypes(exclude=["number", "bool"]).columns
    return frame.assign(**{name: frame[name].map(_strip) for name in text})


def _strip(cell: Any) -> Any:
    return cell.strip() if isinstance(cell, str) else cell
