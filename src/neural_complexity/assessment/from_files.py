"""The assessment of a model that lives elsewhere, from files of points and predictions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from neural_complexity.assessment.assess import BoundOptions, assess_predictions
from neural_complexity.assessment.result import Assessment
from neural_complexity.convert.arrays_in import numbers
from neural_complexity.convert.predictions import logarithms
from neural_complexity.convert.tabular_files import Columns, read_arrays, read_columns
from neural_complexity.model.network import NeuralComplexity

__all__ = ["ModelFiles", "assess_files"]

SUFFIXES = (".csv", ".parquet", ".npz")


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """The files of a model: CSV with a header, parquet (extra: tables) or npz, by their ending."""

    train: Path
    """Features and target of each training point, one row a point. As npz: X, of any shape that
    the NC knows, and y."""
    test: Path
    """The same features, found by their names; a target there is ignored. As npz: X."""
    predictions: Path
    """One row for each training row, in order, followed by one for each test row. As npz: H_tr and
    H_te, and the names of the classes in `classes` if need be. Labels: one column for each class;
    if the header has all labels of the target in it, it says which class a column is of, otherwise
    columns are in the order of the NC's classes. Real targets: one column for each output, in the
    order of the target."""
    predictions_train: Path | None = None
    """Predictions for the training rows, if those are a file of their own; as npz: H in each."""
    target: tuple[str, ...] = ()
    """Columns of the target; the last column if left out. All others are features."""
    probabilities: bool = False
    """Whether predictions are probabilities instead of logits."""


@dataclass(frozen=True)
class _File:
    """The arrays of a file by name: columns of a table, or arrays of any shape."""

    path: Path
    arrays: dict[str, NDArray[Any]]
    table: Columns | None  # none if the file is npz

    @classmethod
    def read(cls, path: Path) -> "_File":
        if path.suffix.lower() not in SUFFIXES:
            raise ValueError(
                f"{path} must end in {', '.join(SUFFIXES)}, got {path.suffix or 'nothing'}"
            )
        if path.suffix.lower() == ".npz":
            return cls(path, read_arrays(path), None)
        table = read_columns(path)
        return cls(path, table.values, table)

    def array(self, name: str) -> NDArray[Any]:
        if name not in self.arrays:
            known = ", ".join(self.arrays) or "none"
            raise ValueError(f"{self.path} must have an array {name}, got {known}")
        if not self.arrays[name].ndim:
            raise ValueError(f"{name} of {self.path} must be an array of points, got one value")
        return self.arrays[name]

    def predictions(self) -> NDArray[Any]:
        return self.array("H") if self.table is None else self.table.numbers(list(self.arrays))

    @property
    def header(self) -> list[str] | None:
        """The classes of predictions, as far as the file names its columns."""
        if self.table is not None:
            return list(self.arrays)
        names = self.arrays.get("classes")
        return None if names is None else [str(name) for name in names.ravel().tolist()]


def assess_files(
    nc: NeuralComplexity, files: ModelFiles, **bound: Unpack[BoundOptions]
) -> tuple[Assessment, list[str]]:
    """Assesses a model from its files; returns the assessment, and notes on what was not used.

    Raises:
        OSError: If a file cannot be read.
        TypeError: If there is text where numbers belong.
        ValueError: If files do not fit each other or NC.
    """
    if files.probabilities and not nc.labels:
        raise ValueError("--probabilities must be left out for an NC of real targets, got it")
    X_tr, y_tr, features, target = _read_train(files)
    X_te, notes = _read_test(_File.read(files.test), features, target)
    told = _File.read(files.predictions)
    H = _read_predictions(told, files.predictions_train, len(X_tr), len(X_te))
    if files.probabilities:
        H = [
            logarithms(f"predictions of {path}", numbers(str(path), part)).numpy()
            for path, part in zip((files.train, files.test), H, strict=True)
        ]
    classes = None
    if nc.labels:
        y_tr, classes = _labels(nc, files.train, y_tr, told)
    found = assess_predictions(nc, X_tr, y_tr, H[0], X_te, H[1], classes=classes, **bound)
    return found, notes


def _read_train(files: ModelFiles) -> tuple[Any, Any, list[str] | None, list[str]]:
    """Returns training inputs and targets, the names of the features, if any, and of the target."""
    file = _File.read(files.train)
    if file.table is None:
        target = list(files.target) or ["y"]
        if len(target) > 1:
            raise ValueError(f"--target must be one array of {file.path}, got {', '.join(target)}")
        X, y = file.array("X"), file.array(target[0])
        return X, y.squeeze(1) if y.ndim == 2 and y.shape[1] == 1 else y, None, target
    target = list(files.target) or list(file.arrays)[-1:]
    file.table.check(target)
    features = [name for name in file.arrays if name not in target]
    if not features:
        got = ", ".join(target)
        raise ValueError(f"{file.path} must have features next to the target, got {got}")
    y = file.table.numbers(target) if len(target) > 1 else file.arrays[target[0]]
    return file.table.numbers(features), y, features, target


def _read_test(
    file: _File, features: list[str] | None, target: list[str]
) -> tuple[NDArray[Any], list[str]]:
    """Returns test inputs, and notes on what else is in the file."""
    if file.table is None:
        notes = [f"only X of {file.path} is looked at"] if len(file.arrays) > 1 else []
        return file.array("X"), notes
    if features is None:
        features = [name for name in file.arrays if name not in target]
    X = file.table.numbers(features)
    rest = [name for name in file.arrays if name not in features]
    others = [name for name in rest if name not in target]
    if others:
        raise ValueError(
            f"{file.path} must have the features of the training file, got others: "
            f"{', '.join(others[:5])}"
        )
    return X, [f"column {', '.join(rest)} of {file.path} is not looked at"] if rest else []


def _read_predictions(told: _File, train: Path | None, M: int, N: int) -> list[NDArray[Any]]:
    """Returns the predictions for training points and for test points."""
    if train is None and told.table is None and "H_tr" in told.arrays:
        return [told.array("H_tr"), told.array("H_te")]
    if train is None:
        whole = told.predictions()
        if len(whole) != M + N:
            raise ValueError(
                f"{told.path} must have {M} + {N} rows, one for each training row followed by one "
                f"for each test row, got {len(whole)}; two files go with --predictions-train"
            )
        return [whole[:M], whole[M:]]
    other = _File.read(train)
    if told.header != other.header:
        raise ValueError(f"{train} and {told.path} must have the same columns, got others")
    both = [other.predictions(), told.predictions()]
    for path, H, rows, kind in ((train, both[0], M, "training"), (told.path, both[1], N, "test")):
        if len(H) != rows:
            raise ValueError(f"{path} must have {rows} rows, one for each {kind} row, got {len(H)}")
    return both


def _labels(nc: NeuralComplexity, path: Path, y: Any, told: _File) -> tuple[Any, list[Any] | None]:
    """Returns labels, and the class of each column if the header of the predictions names them."""
    if np.ndim(y) != 1:
        raise ValueError("--target must be one column where targets are labels, got several")
    labels = [_as_text(label) for label in y.tolist()]
    # Files know text and numbers; NC's own names may be of other types.
    names = {_as_text(name): name for name in nc.card.classes or ()}
    header = told.header
    # A table without names of its own has its columns numbered, which then says nothing.
    numbered = bool(names) and "0" not in names and header == list(map(str, range(len(names))))
    if header is None or not set(labels) <= set(header) or numbered:
        if y.dtype.kind not in "biuf" and not names:
            raise ValueError(
                f"the header of {told.path} must have the classes of {path} in it, which are text, "
                f"got {', '.join(header or ['none'])}"
            )
        return [names.get(label, label) for label in labels] if names else y, None
    lookup = {name: int(name) if name.isdecimal() else name for name in header} | names
    return [lookup[label] for label in labels], [lookup[name] for name in header]


def _as_text(label: Any) -> str:
    whole = isinstance(label, float) and label.is_integer()
    return str(int(label)) if whole else str(label)
