"""The assessment of a model that lives elsewhere, from files of points and predictions."""

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

from neural_complexity.assessment.assess import assess_predictions
from neural_complexity.assessment.model_files import ModelFiles
from neural_complexity.assessment.result import Assessment
from neural_complexity.convert.arrays_in import logarithms, numbers
from neural_complexity.model.network import NeuralComplexity

__all__ = ["File", "assess_files", "read_file"]

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

    def numbers(self, names: list[str]) -> Tensor:
        """Returns some columns, (rows, names), or raises a TypeError if one holds text."""
        return numbers(str(self.path), pd.DataFrame({name: self[name] for name in names}))

    def predictions(self) -> Any:
        """Returns predictions, (points, columns)."""
        return self.numbers(list(self.arrays)) if self.is_table else self["H"]

    def header(self) -> list[str] | None:
        """Returns the classes of predictions, as far as the file names its columns."""
        names = list(self.arrays) if self.is_table else self.arrays.get("classes")
        return None if names is None else list(map(str, np.ravel(names).tolist()))


def read_file(path: Path) -> File:
    """Reads CSV with a header, parquet (extra `tables`) or npz, by the ending; runs no code."""
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
        frame = _read_csv(path) if suffix == ".csv" else pd.read_parquet(path)
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
    for name, column in frame.items():
        if column.hasnans:
            lost = column.isna()  # the header is line 1
            got = f"{lost.sum()} of {len(lost)}, the first in line {lost.argmax() + 2}"
            raise ValueError(f"column {name} of {path} must have no missing values, got {got}")
    columns = {str(name): column.to_numpy() for name, column in frame.items()}
    return File(path, columns, is_table=True)


def _read_csv(path: Path) -> pd.DataFrame:
    read = partial(pd.read_csv, path, encoding="utf-8-sig", skipinitialspace=True, index_col=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # lines of more cells
        header = read(header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0].str.strip()
        numeric = pd.to_numeric(header, errors="coerce").notna()
        split = header.str.contains(r"[;\t|]") & (len(header) == 1)
        for wrong, sentence in (
            (header == "", "name every column, got one without a name (see to_csv(index=False)){}"),
            # Whole numbers are names that pandas gives to columns.
            (numeric & ~header.str.isdecimal(), "start with names of columns, got the number {}"),
            (header.duplicated(), "name every column once, got {} twice"),
            (split, "separate cells by commas, got the header {}"),
        ):
            if wrong.any():
                raise ValueError(f"{path} must {sentence.format(header[wrong].iloc[0])}")
        frame = read(header=0, names=header.tolist(), low_memory=False)
    text = frame.select_dtypes(exclude=["number", "bool"]).columns
    return frame.assign(**{name: frame[name].str.strip() for name in text})


def assess_files(
    nc: NeuralComplexity, files: ModelFiles, **options: Any
) -> tuple[Assessment, list[str]]:
    """Assesses a model from its files; returns the assessment, and notes on what was not used."""
    if files.probabilities and not nc.labels:
        raise ValueError("--probabilities must be left out for an NC of real targets, got it")
    X_tr, y_tr, X_te, notes = _read_points(files)
    M, N, told, train = len(X_tr), len(X_te), read_file(files.predictions), files.predictions_train
    if train is not None:
        other = read_file(train)
        if told.header() != other.header():
            raise ValueError(f"{train} and {told.path} must have the same columns, got others")
        H = [other.predictions(), told.predictions()]
        for path, part, rows, kind in ((train, H[0], M, "training"), (told.path, H[1], N, "test")):
            if len(part) != rows:
                wanted = f"{rows} rows, one for each {kind} row"
                raise ValueError(f"{path} must have {wanted}, got {len(part)}")
    elif not told.is_table and "H_tr" in told.arrays:
        H = [told["H_tr"], told["H_te"]]
    else:
        whole = told.predictions()
        H = [whole[:M], whole[M:]]
        if len(whole) != M + N:
            raise ValueError(
                f"{told.path} must have {M} + {N} rows, one for each training row followed by one "
                f"for each test row, got {len(whole)}; two files go with --predictions-train"
            )
    if files.probabilities:
        names = ("training predictions", "test predictions")
        H = [logarithms(name, numbers(name, part)) for name, part in zip(names, H, strict=True)]
    y_tr, classes = _labels(nc, files.train, y_tr, told) if nc.labels else (y_tr, None)
    return assess_predictions(nc, X_tr, y_tr, H[0], X_te, H[1], classes=classes, **options), notes


def _read_points(files: ModelFiles) -> tuple[Any, Any, Any, list[str]]:
    """Returns training inputs and targets, test inputs, and notes on what else is in that file."""
    train, test = read_file(files.train), read_file(files.test)
    target = list(dict.fromkeys(files.target)) or [[*train.arrays][-1] if train.is_table else "y"]
    named, got = train if train.is_table else test, ", ".join(target)  # arrays name no features
    features = [name for name in named.arrays if name not in target]
    if not features and named.is_table:
        raise ValueError(f"{named.path} must have features next to the target, got {got}")
    if len(target) > 1 and not train.is_table:
        raise ValueError(f"--target must be one array of {train.path}, got {got}")
    y_tr = train[target[0]] if len(target) == 1 else train.numbers(target)
    X_tr, X_te = (file.numbers(features) if file.is_table else file["X"] for file in (train, test))
    kind, looked = ("column", features) if test.is_table else ("array", ["X"])
    rest = [name for name in test.arrays if name not in looked]
    others = ", ".join([name for name in rest if name not in target][:5])
    if others and test.is_table:
        wanted = "have the features of the training file"
        raise ValueError(f"{test.path} must {wanted}, got others: {others}")
    notes = [f"{kind} {', '.join(rest)} of {test.path} is not looked at"] if rest else []
    return X_tr, y_tr, X_te, notes


def _labels(nc: NeuralComplexity, path: Path, y: Any, told: File) -> tuple[Any, list[Any] | None]:
    """Returns labels, and the class of each column if the header of the predictions names them."""
    if y.shape[1:] not in ((), (1,)):
        raise ValueError("--target must be one column where targets are labels, got several")
    labels = [_as_text(label) for label in y.ravel().tolist()]
    # Files know text and numbers; NC's own names may be of other types.
    names = {_as_text(name): name for name in nc.card.classes or ()}
    header = told.header()
    # A table without names of its own has its columns numbered, which then says nothing.
    numbered = bool(names) and "0" not in names and header == list(map(str, range(len(names))))
    if header is None or not set(labels) <= set(header) or numbered:
        if y.dtype.kind not in "biuf" and not names:
            wanted = f"have the classes of {path} in it, which are text"
            got = ", ".join(header or ["none"])
            raise ValueError(f"the header of {told.path} must {wanted}, got {got}")
        return [names.get(label, label) for label in labels] if names else y, None
    lookup = {name: int(name) if name.isdecimal() else name for name in header} | names
    return [lookup[label] for label in labels], [lookup[name] for name in header]


def _as_text(label: Any) -> str:
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)
