"""Files of users, CSV, parquet or npz, as columns or arrays."""

import csv
import math
import os
import re
import textwrap
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types
from torch import Tensor

from neural_complexity.convert.arrays_in import numbers

__all__ = ["File", "read_file"]

CSV = "CSV file in UTF-8 with a header, at least one row and equally many cells in every line"
CSV_ERRORS = (pd.errors.EmptyDataError, pd.errors.ParserError, pd.errors.ParserWarning, csv.Error)
NPZ_ERRORS = (ValueError, EOFError, KeyError, OSError, zipfile.BadZipFile, zlib.error)
SIZE_ERRORS = (AttributeError, OverflowError, RuntimeError)  # also of archives with passwords
# By the ending of a file: what it must be, what it is, and what is raised, if it is not.
KINDS: dict[str, tuple[str, tuple[type[Exception], ...]]] = {
    ".csv": (f"a {CSV}, got another", (*CSV_ERRORS, UnicodeDecodeError)),
    ".parquet": ("a parquet file, got a damaged one", (Exception,)),  # pyarrow has many
    ".npz": ("an npz file of plain arrays, got another", (*NPZ_ERRORS, *SIZE_ERRORS)),
}
ZIP64, ZIP_END = 2**16 - 1, 2**16 + 21  # a count that is elsewhere; where the last record begins
NUMBER = 40  # bytes that a number takes at most, as it is read and as it is computed with


@dataclass(frozen=True)
class File:
    """What is in a file, by name: columns of a table, (rows,) each, or arrays of any shape."""

    path: Path
    arrays: Mapping[str, NDArray[Any]]
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
        return numbers(str(self.path), _joined({name: self.complete(name) for name in names}))

    def frame(self, names: list[str]) -> pd.DataFrame:
        """Returns some columns as they are, of any kind and with missing values."""
        return _joined({name: self[name] for name in names})

    def predictions(self) -> Any:
        """Returns predictions, (points, columns)."""
        return self.numbers(list(self.arrays)) if self.is_table else self["H"]

    def header(self) -> list[str] | None:
        """Returns the classes of predictions, as far as the file names its columns."""
        names = list(self.arrays) if self.is_table else self.arrays.get("classes")
        return None if names is None else list(map(_name, np.ravel(names).tolist()))


def _joined(columns: dict[str, NDArray[Any]]) -> pd.DataFrame:
    """Returns columns as a frame, in which words that repeat stay one object."""
    return pd.DataFrame({name: pd.Series(v, dtype=v.dtype) for name, v in columns.items()})


def _name(name: object) -> str:
    """Returns the name of a column; 1.0 is called 1."""
    text = str(name)
    return text.removesuffix(".0") if re.fullmatch(r"-?\d+\.0", text) else text


class _Arrays(Mapping[str, NDArray[Any]]):
    """The arrays of an npz file, each of which is read when it is asked for."""

    def __init__(self, path: Path, max_memory: float) -> None:
        with path.open("rb") as file:
            if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
                raise ValueError("it is a single array")
        with zipfile.ZipFile(path) as archive:
            self._members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        if not self._members:
            raise ValueError("it has no arrays")
        if (count := _count_entries(path)) not in (len(self._members), ZIP64):
            raise ValueError(f"{len(self._members)} of {count} arrays are there")
        self._path, self._max_memory = path, max_memory
        self._read: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        place = self._members[name]
        if name not in self._read:
            with _explained(self._path), self._open(place) as member:
                takes = _array_takes(member) + sum(a.size * NUMBER for a in self._read.values())
            _check_memory(self._path, takes, self._max_memory)
            with _explained(self._path), self._open(place) as member:
                self._read[name] = np.lib.format.read_array(member, allow_pickle=False)
                if member.read(1):  # also lets the reader compare the checksum
                    raise ValueError(f"{place} is longer than it says")
        return self._read[name]

    @contextmanager
    def _open(self, place: str) -> Iterator[IO[bytes]]:
        with zipfile.ZipFile(self._path) as file, file.open(place) as member:
            yield member

    def __contains__(self, name: object) -> bool:
        return name in self._members  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


def _count_entries(path: Path) -> int:
    """Returns how many entries a zip file says that it has; `zipfile` believes its directory."""
    with path.open("rb") as file:
        file.seek(-min(path.stat().st_size, ZIP_END), os.SEEK_END)
        tail = file.read()
    return int.from_bytes(tail[tail.rindex(b"PK\5\6") :][10:12], "little")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Says in one sentence what a file must be, where reading it fails."""
    wanted, errors = KINDS[path.suffix.lower()]
    try:
        yield
    except ImportError:
        raise ValueError(
            f"{path} must be CSV or npz unless the extra for tables is installed, got parquet: "
            "pip install 'neural-complexity[tables]'"
        ) from None
    except errors as error:
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        raise ValueError(f"{path} must be {wanted} ({reason})") from None


def read_file(path: Path, *, numbered: bool = False, max_memory: float = 1.0) -> File:
    """Reads CSV with a header, parquet (extra `tables`) or npz, by the ending; runs no code.

    Args:
        path: The file. Arrays of an npz file are read when they are asked for.
        numbered: Whether columns may be named by -1 or 1.0, as classes are, not by whole numbers
            alone.
        max_memory: GB that it may take, by what it declares.

    Raises:
        ValueError: If it cannot be read, or would take more memory.
    """
    suffix = path.suffix.lower()
    if suffix not in KINDS:
        raise ValueError(f"{path} must end in {', '.join(KINDS)}, got {path.suffix or 'nothing'}")
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a file, got no such file")
    with _explained(path):
        if suffix == ".npz":
            return File(path, _Arrays(path, max_memory), is_table=False)
        takes = _csv_takes(path) if suffix == ".csv" else _parquet_takes(path)
    _check_memory(path, takes, max_memory)
    with _explained(path):
        frame = _read_csv(path, numbered) if suffix == ".csv" else _read_parquet(path)
    if not frame.size:
        raise ValueError(f"{path} must have a header and at least one row, got no rows")
    columns = {str(name): _values(column) for name, column in frame.items()}
    if suffix == ".csv":
        columns = {name: _stripped(column) for name, column in columns.items()}
    return File(path, columns, is_table=True)


def _check_memory(path: Path, takes: int, max_memory: float) -> None:
    """Refuses a file that would take more bytes than it may in GB."""
    if takes > max_memory * 2**30:
        wanted = f"at most {max_memory:g} GB of memory (--max-memory)"
        raise ValueError(f"{path} must take {wanted}, got one that takes {takes / 2**30:.1f} GB")


def _array_takes(member: IO[bytes]) -> int:
    """Returns how many bytes an array takes, by its header."""
    version = np.lib.format.read_magic(member)
    read = "read_array_header_1_0" if version == (1, 0) else "read_array_header_2_0"
    shape, _, dtype = getattr(np.lib.format, read)(member)
    return int(math.prod(shape) * max(NUMBER, dtype.itemsize))


def _csv_takes(path: Path) -> int:
    """Returns how many bytes a table takes, by its number of cells."""
    with path.open("rb") as file:
        parts = iter(partial(file.read, 2**20), b"")
        cells = sum(part.count(b",") + part.count(b"\n") for part in parts)
    return cells * NUMBER + 4 * path.stat().st_size  # text may take four bytes a letter


def _parquet_takes(path: Path) -> int:
    """Returns how many bytes a table takes, by its metadata; words that repeat count once."""
    from pyarrow import parquet

    about, takes = parquet.read_metadata(path), 0
    columns = [about.schema.column(j) for j in range(about.num_columns)]
    if any(column.max_repetition_level for column in columns):
        raise ValueError("it has lists in its cells")
    # Metadata of single columns, if it is damaged, makes pyarrow end the process.
    for i in range(about.num_row_groups):
        rows = about.row_group(i)
        cells = sum(max(NUMBER, column.length) for column in columns)
        takes += rows.num_rows * cells + 4 * rows.total_byte_size
    return takes


def _read_parquet(path: Path) -> pd.DataFrame:
    from pyarrow import parquet

    schema = parquet.read_metadata(path).schema
    columns = [schema.column(j) for j in range(len(schema))]
    # As dictionaries: a word that repeats may be long.
    text = [c.path for c in columns if c.physical_type == "BYTE_ARRAY" and c.path == c.name]
    return parquet.read_table(path, read_dictionary=text).to_pandas()


def _values(column: pd.Series) -> NDArray[Any]:
    """Returns a column as an array, where words that repeat are one object."""
    kind = column.dtype
    if not isinstance(kind, pd.CategoricalDtype) or types.is_numeric_dtype(kind.categories.dtype):
        return np.asarray(column.to_numpy())
    words: NDArray[Any] = np.array([*kind.categories, np.nan], dtype=object)
    return np.asarray(words[column.cat.codes.to_numpy()])


def _header(path: Path) -> list[str]:
    """Returns the first line; as a row of a frame, each name would be a column of one cell."""
    with path.open(newline="", encoding="utf-8-sig") as lines:
        for line in csv.reader(lines, skipinitialspace=True):
            if line:
                return line
    raise pd.errors.EmptyDataError("no line in it")


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
        header = pd.Series(_header(path), dtype=object).str.strip()
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
    return frame


def _stripped(column: NDArray[Any]) -> NDArray[Any]:
    """Returns a column without the white space around its words."""
    if column.dtype != object:
        return column
    cells = [cell.strip() if isinstance(cell, str) else cell for cell in column]
    return np.array(cells, dtype=object)
