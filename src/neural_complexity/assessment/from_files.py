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
from neural_complexity.convert.tabular_files import read_arrays, read_columns
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
class _Predictions:
    path: Path
    parts: dict[str, NDArray[Any]]  # "H", or "H_tr" and "H_te"
    header: list[str] | None


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
    X_te, notes = _read_test(files.test, features, target)
    told = _read_predictions(files.predictions)
    H = _split(told, files.predictions_train, len(X_tr), len(X_te))
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


def _is_npz(path: Path) -> bool:
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"{path} must end in {', '.join(SUFFIXES)}, got {path.suffix or 'nothing'}"
        )
    return path.suffix.lower() == ".npz"


def _read_train(files: ModelFiles) -> tuple[Any, Any, list[str] | None, list[str]]:
    """Returns training inputs and targets, the names of the features, if any, and of the target."""
    path = files.train
    if _is_npz(path):
        arrays, target = read_arrays(path), list(files.target) or ["y"]
        if len(target) > 1:
            raise ValueError(f"--target must be one array of {path}, got {', '.join(target)}")
        X, y = (_array(path, arrays, name) for name in ("X", *target))
        return X, y.squeeze(1) if y.ndim == 2 and y.shape[1] == 1 else y, None, target
    table = read_columns(path)
    target = list(files.target) or list(table.values)[-1:]
    table.check(target)
    features = [name for name in table.values if name not in target]
    if not features:
        raise ValueError(f"{path} must have features next to the target, got {', '.join(target)}")
    y = table.numbers(target) if len(target) > 1 else table.values[target[0]]
    return table.numbers(features), y, features, target


def _read_test(
    path: Path, features: list[str] | None, target: list[str]
) -> tuple[NDArray[Any], list[str]]:
    """Returns test inputs, and notes on what else is in the file."""
    if _is_npz(path):
        arrays = read_arrays(path)
        notes = [f"only X of {path} is looked at"] if len(arrays) > 1 else []
        return _array(path, arrays, "X"), notes
    table = read_columns(path)
    if features is None:
        features = [name for name in table.values if name not in target]
    X = table.numbers(features)
    rest = [name for name in table.values if name not in features]
    others = [name for name in rest if name not in target]
    if others:
        raise ValueError(
            f"{path} must have the features of the training file, got others: "
            f"{', '.join(others[:5])}"
        )
    return X, [f"column {', '.join(rest)} of {path} is not looked at"] if rest else []


def _array(path: Path, arrays: dict[str, NDArray[Any]], name: str) -> NDArray[Any]:
    if name not in arrays:
        raise ValueError(f"{path} must have an array {name}, got {', '.join(arrays) or 'none'}")
    if not arrays[name].ndim:
        raise ValueError(f"{name} of {path} must be an array of points, got a single value")
    return arrays[name]


def _read_predictions(path: Path) -> _Predictions:
    if not _is_npz(path):
        table = read_columns(path)
        names = list(table.values)
        return _Predictions(path, {"H": table.numbers(names)}, names)
    arrays = read_arrays(path)
    header = list(map(str, arrays["classes"].ravel().tolist())) if "classes" in arrays else None
    names = ["H_tr", "H_te"] if "H_tr" in arrays else ["H"]
    return _Predictions(path, {name: _array(path, arrays, name) for name in names}, header)


def _split(told: _Predictions, train: Path | None, M: int, N: int) -> list[NDArray[Any]]:
    """Returns the predictions for training points and for test points."""
    if train is None and "H_tr" in told.parts:
        return [told.parts["H_tr"], told.parts["H_te"]]
    if train is None:
        whole = told.parts["H"]
        if len(whole) != M + N:
            raise ValueError(
                f"{told.path} must have {M} + {N} rows, one for each training row followed by one "
                f"for each test row, got {len(whole)}; two files go with --predictions-train"
            )
        return [whole[:M], whole[M:]]
    other = _read_predictions(train)
    if "H" not in told.parts or "H" not in other.parts or told.header != other.header:
        raise ValueError(
            f"{train} and {told.path} must have the same columns, or H each, got others"
        )
    for file, rows, kind in ((other, M, "training"), (told, N, "test")):
        if len(file.parts["H"]) != rows:
            raise ValueError(
                f"{file.path} must have {rows} rows, one for each {kind} row, got "
                f"{len(file.parts['H'])}"
            )
    return [other.parts["H"], told.parts["H"]]


def _labels(
    nc: NeuralComplexity, path: Path, y: Any, told: _Predictions
) -> tuple[Any, list[Any] | None]:
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
