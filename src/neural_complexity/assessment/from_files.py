"""The assessment of a model that lives elsewhere, from files of points and predictions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neural_complexity.assessment.assess import assess_predictions
from neural_complexity.assessment.result import Assessment
from neural_complexity.convert.arrays_in import numbers
from neural_complexity.convert.predictions import logarithms
from neural_complexity.convert.tabular_files import Columns, read_arrays, read_columns
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.reliability.bounds import Method

__all__ = ["LAYOUT", "assess_files"]

LAYOUT = """\
Files are CSV (with a header), parquet (extra: tables) or npz, by their ending.

train        the features and the target of each training point, one row a point. The target is
             the last column unless --target says otherwise; all others are features. As npz: X,
             of any shape that the NC knows, and y.
test         the same features, found by their names; a target there is not looked at. As npz: X.
predictions  one row for each training row, in order, followed by one for each test row. Or two
             files: those for the training rows in --predictions-train. As npz: H_tr and H_te (or
             one array H in each of two files), and the names of the classes in `classes` if need
             be.
             Labels: one column for each class, logits, or probabilities with --probabilities. If
             the header has all labels of the target in it, it says which class a column is of;
             otherwise columns are in the order of the NC's classes.
             Real targets: one column for each output, in the order of --target."""

SUFFIXES = (".csv", ".parquet", ".npz")


@dataclass(frozen=True)
class _Points:
    X: NDArray[Any]
    y: NDArray[Any] | None
    features: list[str] | None  # names of the columns, if they have any
    target: list[str]


@dataclass(frozen=True)
class _Predictions:
    path: Path
    parts: dict[str, NDArray[Any]]  # "H", or "H_tr" and "H_te"
    header: list[str] | None


def assess_files(
    nc: NeuralComplexity,
    *,
    train: Path,
    test: Path,
    predictions: Path,
    predictions_train: Path | None = None,
    target: Sequence[str] | None = None,
    probabilities: bool = False,
    confidence: float = 0.95,
    method: Method = "conformal",
) -> tuple[Assessment, list[str]]:
    """Assesses a model by what it said, see `LAYOUT`.

    Args:
        nc: The gap predictor.
        train: Training points.
        test: Test points.
        predictions: Of both, or of the test points if there are two files.
        predictions_train: Of the training points, if there are two files.
        target: The columns of the target; the last one if `None`.
        probabilities: Whether predictions are probabilities instead of logits.
        confidence: As in `assess`.
        method: As in `assess`.

    Returns:
        The assessment, and notes on what was not used.

    Raises:
        OSError: If a file cannot be read.
        TypeError: If there is text where numbers belong.
        ValueError: If files do not fit each other or NC.
    """
    if probabilities and not nc.labels:
        raise ValueError("--probabilities must be left out for an NC of real targets, got it")
    notes: list[str] = []
    known = _read_train(train, target)
    X_te = _read_test(test, known.features, known.target, notes)
    H = _read_predictions(predictions)
    H_tr, H_te = _split(H, predictions_train, len(known.X), len(X_te))
    if probabilities:
        H_tr, H_te = (
            logarithms(f"predictions of {name}", numbers(name, part)).numpy()
            for name, part in ((str(train), H_tr), (str(test), H_te))
        )
    y, classes = _labels(nc, train, known.y, H) if nc.labels else (known.y, None)
    assessment = assess_predictions(
        nc, known.X, y, H_tr, X_te, H_te, classes=classes, confidence=confidence, method=method
    )
    return assessment, notes


def _is_npz(path: Path) -> bool:
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"{path} must end in {', '.join(SUFFIXES)}, got {path.suffix or 'nothing'}"
        )
    return path.suffix.lower() == ".npz"


def _read_train(path: Path, target: Sequence[str] | None) -> _Points:
    if _is_npz(path):
        arrays = read_arrays(path)
        names = list(target or ["y"])
        if len(names) > 1:
            raise ValueError(f"--target must be one array of {path}, got {', '.join(names)}")
        X, y = (_array(path, arrays, wanted) for wanted in ("X", *names))
        return _Points(X, y.squeeze(1) if y.ndim == 2 and y.shape[1] == 1 else y, None, names)
    table = read_columns(path)
    names = list(target or list(table.values)[-1:])
    table.check(names)
    features = [name for name in table.values if name not in names]
    if not features:
        raise ValueError(f"{path} must have features next to the target, got {', '.join(names)}")
    y = table.numbers(names) if len(names) > 1 else table.values[names[0]]
    return _Points(table.numbers(features), y, features, names)


def _read_test(
    path: Path, features: list[str] | None, target: list[str], notes: list[str]
) -> NDArray[Any]:
    if _is_npz(path):
        arrays = read_arrays(path)
        X = _array(path, arrays, "X")
        if len(arrays) > 1:
            notes.append(f"only X of {path} is looked at")
        return X
    table = read_columns(path)
    if features is None:
        features = [name for name in table.values if name not in target]
    rest = [name for name in table.values if name not in features]
    others = [name for name in rest if name not in target]
    X = table.numbers(features)
    if others:
        raise ValueError(
            f"{path} must have the features of the training file, got others: "
            f"{', '.join(others[:5])}"
        )
    if rest:
        notes.append(f"column {', '.join(rest)} of {path} is not looked at")
    return X


def _array(path: Path, arrays: dict[str, NDArray[Any]], name: str) -> NDArray[Any]:
    if name not in arrays:
        raise ValueError(f"{path} must have an array {name}, got {', '.join(arrays) or 'none'}")
    if not arrays[name].ndim:
        raise ValueError(f"{name} of {path} must be an array of points, got a single value")
    return arrays[name]


def _read_predictions(path: Path) -> _Predictions:
    if not _is_npz(path):
        table: Columns = read_columns(path)
        names = list(table.values)
        return _Predictions(path, {"H": table.numbers(names)}, names)
    arrays = read_arrays(path)
    header = list(map(str, arrays["classes"].ravel().tolist())) if "classes" in arrays else None
    wanted = ("H_tr", "H_te") if "H_tr" in arrays else ("H",)
    return _Predictions(path, {name: _array(path, arrays, name) for name in wanted}, header)


def _split(
    H: _Predictions, train: Path | None, M: int, N: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Gives the predictions for training points and for test points."""
    if train is not None:
        other = _read_predictions(train)
        if "H" not in H.parts or "H" not in other.parts or H.header != other.header:
            raise ValueError(
                f"{train} and {H.path} must have the same columns, or H each, got others"
            )
        _check_rows(train, other.parts["H"], M, "training row")
        _check_rows(H.path, H.parts["H"], N, "test row")
        return other.parts["H"], H.parts["H"]
    if "H_tr" in H.parts:
        return H.parts["H_tr"], H.parts["H_te"]
    whole = H.parts["H"]
    if len(whole) != M + N:
        raise ValueError(
            f"{H.path} must have {M} + {N} rows, one for each training row followed by one for "
            f"each test row, got {len(whole)}; two files go with --predictions-train"
        )
    return whole[:M], whole[M:]


def _check_rows(path: Path, H: NDArray[Any], rows: int, what: str) -> None:
    if len(H) != rows:
        raise ValueError(f"{path} must have {rows} rows, one for each {what}, got {len(H)}")


def _labels(
    nc: NeuralComplexity, path: Path, y: Any, H: _Predictions
) -> tuple[Any, list[Any] | None]:
    """Gives labels, and the class of each column if the predictions tell it."""
    if np.ndim(y) != 1:
        raise ValueError("--target must be one column where targets are labels, got several")
    told = [_as_text(label) for label in y.tolist()]
    # Files know text and numbers; NC's own names may be of other types.
    names = {_as_text(name): name for name in nc.provenance.get("classes", [])}
    header = H.header
    # A table without names of its own has its columns numbered, which then says nothing.
    numbered = bool(names) and "0" not in names and header == list(map(str, range(len(names))))
    if header is None or not set(told) <= set(header) or numbered:
        if y.dtype.kind not in "biuf" and not names:
            raise ValueError(
                f"the header of {H.path} must have the classes of {path} in it, which are text, "
                f"got {', '.join(header or ['none'])}"
            )
        return [names.get(label, label) for label in told] if names else y, None
    lookup = {name: int(name) if name.isdecimal() else name for name in header} | names
    return [lookup[label] for label in told], [lookup[name] for name in header]


def _as_text(label: Any) -> str:
    whole = isinstance(label, float) and label.is_integer()
    return str(int(label)) if whole else str(label)
