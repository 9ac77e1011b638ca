"""The assessment of a model that lives elsewhere, from files of points and predictions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from torch import Tensor

from neural_complexity.assessment.assess import assess, assess_predictions
from neural_complexity.assessment.history import History
from neural_complexity.assessment.model_files import ModelFiles, StreamFiles
from neural_complexity.assessment.monitor import Monitor, cut_stream
from neural_complexity.assessment.prepare import check_columns
from neural_complexity.assessment.result import Assessment
from neural_complexity.convert.arrays_in import logarithms, looks_like_shares, numbers
from neural_complexity.convert.files_in import File, read_file
from neural_complexity.model.network import NeuralComplexity, find_nc

__all__ = ["Table", "ToldModel", "assess_files", "monitor_files", "read_table"]

NOT_LOOKED_AT = "{} {} of {} is not looked at"
SHARES = "predictions are taken for probabilities, as each row sums to one"
ROUNDED = "predictions are taken for rounded probabilities, and made to sum to one"
LOGITS = "predictions are taken for logits, as rows do not sum to one"
OFF = 0.05  # what sums of rounded probabilities may be off


class ToldModel(BaseEstimator):  # type: ignore[misc]
    """A fitted model that lives elsewhere: it says for a row what its files say, by its index."""

    def __init__(self, told: NDArray[Any], classes: list[Any] | None) -> None:
        self.told, self.classes = told, classes
        if classes is not None:
            self.classes_ = np.array(classes, dtype=object)

    def predict(self, X: pd.DataFrame) -> NDArray[Any]:
        """Returns real outputs."""
        return np.asarray(self.told[X.index])

    def predict_proba(self, X: pd.DataFrame) -> NDArray[Any]:
        """Returns probabilities."""
        return np.asarray(self.told[X.index])


@dataclass(frozen=True)
class Table:
    """What the files of a model of a table hold: rows of any kinds, and the model."""

    nc: NeuralComplexity
    model: ToldModel
    X_tr: pd.DataFrame  # rows are numbered through, those of the other file after these
    y_tr: NDArray[Any]
    X_te: pd.DataFrame
    test: File  # what else is known of these rows
    target: str  # the name of its column
    columns: list[str] | None  # of the predictions
    notes: list[str]  # on what was not used, or was guessed


def assess_files(
    nc: NeuralComplexity | None, files: ModelFiles, **options: Any
) -> tuple[Assessment, list[str]]:
    """Assesses a model from its files; returns the assessment, and notes on what was not used.

    Args:
        nc: The gap predictor; if `None`, the one for tables that fits the predictions.
        files: Where they are.
        options: As of `assess`, and of a table `out_of_fold`, the path of such predictions for the
            training rows.
    """
    if nc is None or nc.architecture.for_tables:
        table, path = read_table(files, nc=nc), options.pop("out_of_fold", None)
        options.pop("method", None)  # an NC for tables has one
        if path is not None:
            options["out_of_fold"] = _read_out_of_fold(files, path, table)
        model, rows = table.model, (table.X_tr, table.y_tr, table.X_te)
        return assess(model, *rows, nc=table.nc, **options), table.notes
    if options.pop("out_of_fold", None) is not None:
        raise ValueError("--out-of-fold must be left out unless the NC is for tables, got one")
    train, test = _read(files, files.train), _read(files, files.test)
    target, features, notes = _columns(files, train, test)
    X_tr, X_te = (file.numbers(features) if file.is_table else file["X"] for file in (train, test))
    y_tr = train.complete(target[0]) if len(target) == 1 else train.numbers(target)
    told, H = _predictions(files, len(X_tr), len(X_te))
    if files.probabilities and not nc.labels:
        raise ValueError("--probabilities must be left out for an NC of real targets, got it")
    if files.probabilities:
        names = ("training predictions", "test predictions")
        H = [logarithms(name, numbers(name, part)) for name, part in zip(names, H, strict=True)]
    y_tr, classes = _labels(nc, files.train, y_tr, told) if nc.labels else (y_tr, None)
    return assess_predictions(nc, X_tr, y_tr, H[0], X_te, H[1], classes=classes, **options), notes


def read_table(
    files: ModelFiles, *, nc: NeuralComplexity | None = None, aside: Sequence[str] = ()
) -> Table:
    """Reads the files of a model of a table, with columns of any kind.

    Args:
        files: Where they are.
        aside: Columns that are no features.
        nc: For tables; if `None`, that of labels where predictions have several columns, and of
            numbers where they have one.

    Raises:
        ValueError: If something is missing, or has a wrong size.
    """
    train, test = _read(files, files.train), _read(files, files.test)
    target, features, notes = _columns(files, train, test, aside)
    if len(target) > 1:
        raise ValueError(f"--target must be one column of a table, got {', '.join(target)}")
    X_tr, X_te = (
        file.frame(features) if file.is_table else _named(file["X"], features, train, test)
        for file in (train, test)
    )
    told, parts = _predictions(files, len(X_tr), len(X_te))
    H = torch.cat([numbers(str(told.path), part).double() for part in parts])
    H = H.unsqueeze(1) if H.ndim == 1 else H
    if nc is None:
        nc = find_nc("tables" if H.shape[1] > 1 else "tables-regression")
    if files.probabilities and not nc.labels:
        raise ValueError("--probabilities must be left out for an NC of real targets, got it")
    y, classes = train.complete(target[0]), None
    if nc.labels:
        y, classes = _labels(nc, files.train, y, told)
        classes = list(range(H.shape[1])) if classes is None else classes
        H, said = _as_probabilities(H, told.path, sure=files.probabilities)
        notes += said
    X_te.index = X_te.index + len(X_tr)
    model = ToldModel(H.numpy() if nc.labels else H.squeeze(1).numpy(), classes)
    # Names of classes may be numbers and text.
    rows = X_tr, np.array(y, dtype=object if nc.labels else None).reshape(-1), X_te
    return Table(nc, model, *rows, test, target[0], told.header(), notes)


def monitor_files(
    files: StreamFiles, *, nc: NeuralComplexity | None = None, **options: Any
) -> tuple[History, list[str]]:
    """Monitors a model from its files; returns what was found, and notes on what was not used.

    Args:
        files: Where they are, and how the stream is cut.
        nc: For tables; if `None`, the one that fits the predictions.
        options: As of `Monitor`.
    """
    path, time, y = options.pop("out_of_fold", None), files.timestamp, None
    aside = [] if time is None else [time]
    table = read_table(files.as_test(), nc=nc, aside=aside)
    stream = table.X_te if time is None else table.X_te.assign(**{time: table.test[time]})
    if path is not None:
        options["out_of_fold"] = _read_out_of_fold(files, path, table)
    chunks = cut_stream(stream, timestamp=time, period=files.period, size=files.size)
    monitor = Monitor(table.model, table.X_tr, table.y_tr, nc=table.nc, **options)
    if path is None:
        if len(chunks) < 2:
            wanted = "at least two chunks, the first of which is the reference"
            raise ValueError(f"{files.stream} must have {wanted}, got {len(chunks)}")
        (name, first), *chunks = chunks
        y = _known_targets(table, first)
        monitor.fit(first, y)
        known = "without labels" if y is None else "with their labels"
        said = f"the reference is the first chunk, {name}: {len(first)} rows {known}"
        table.notes.append(said)
    notes = [note for note in table.notes if y is None or note != _not_looked_at(table)]
    return monitor.estimate(chunks), notes


def _read(files: ModelFiles | StreamFiles, path: Path, *, numbered: bool = False) -> File:
    return read_file(path, numbered=numbered, max_memory=files.max_memory)


def _not_looked_at(table: Table) -> str:
    return NOT_LOOKED_AT.format("column", table.target, table.test.path)


def _known_targets(table: Table, rows: pd.DataFrame) -> NDArray[Any] | None:
    """Returns the targets of rows of the other file, if it has all of them."""
    if table.target not in table.test.arrays:
        return None
    y = table.test[table.target][rows.index - len(table.X_tr)]
    if pd.isna(y).any():
        return None
    if table.model.classes is None:
        return np.asarray(y)
    names = {_as_text(name): name for name in table.model.classes}
    found = [names.get(_as_text(label)) for label in y.tolist()]
    return None if None in found else np.array(found, dtype=object)


def _named(X: NDArray[Any], features: list[str], *files: File) -> pd.DataFrame:
    """Returns an array as a frame, with the names of the other file's features if that has any."""
    named = any(file.is_table for file in files) and X.shape[1:] == (len(features),)
    return pd.DataFrame(X, columns=features if named else None)


def _read_out_of_fold(files: ModelFiles | StreamFiles, path: Path, table: Table) -> NDArray[Any]:
    """Returns predictions for training rows of models that did not learn from them."""
    file = _read(files, path, numbered=True)
    H = numbers(str(path), file.predictions()).double()
    H = H.unsqueeze(1) if H.ndim == 1 else H
    _check_rows([str(path)], [H], [len(table.X_tr)])
    if table.model.classes is None:
        return H.numpy()
    header = file.header()
    if header is not None and table.columns is not None:
        if set(header) != set(table.columns):
            got = ", ".join(header)
            raise ValueError(f"{path} must have columns {', '.join(table.columns)}, got {got}")
        H = H[:, [header.index(name) for name in table.columns]]
    return _as_probabilities(H, path)[0].numpy()


def _as_probabilities(H: Tensor, path: Path, *, sure: bool = False) -> tuple[Tensor, list[str]]:
    """Returns probabilities, and what they were taken for if that was not said."""
    if looks_like_shares(H):
        return H, [] if sure else [SHARES]
    sums = H.sum(dim=1, keepdim=True)
    if (H >= 0).all() and (H <= 1).all() and ((sums - 1).abs() < OFF).all():
        return H / sums, [ROUNDED]
    if sure:
        raise ValueError(f"{path} must be probabilities, rows that sum to one, got other numbers")
    return H.softmax(dim=1), [LOGITS]


def _columns(
    files: ModelFiles, train: File, test: File, aside: Sequence[str] = ()
) -> tuple[list[str], list[str], list[str]]:
    """Returns the names of targets and of features, and notes on what else is in the test file."""
    known = [name for name in train.arrays if name not in aside]
    target = list(dict.fromkeys(files.target)) or [known[-1] if train.is_table and known else "y"]
    named, got = train if train.is_table else test, ", ".join(target)  # arrays name no features
    others = {*target, *aside}
    features = [name for name in named.arrays if name not in others]
    if not features and named.is_table:
        raise ValueError(f"{named.path} must have features next to the target, got {got}")
    if len(target) > 1 and not train.is_table:
        raise ValueError(f"--target must be one array of {train.path}, got {got}")
    for file, names in ((train, target), *((f, features) for f in (train, test) if f.is_table)):
        for name in names:
            file[name]  # or it is told that there is none
    kind, looked = ("column", features) if test.is_table else ("array", ["X"])
    seen = {*looked, *aside}
    rest = [name for name in test.arrays if name not in seen]
    odd = ", ".join([name for name in rest if name not in target][:5])
    if odd and test.is_table:
        wanted = "have the features of the training file"
        raise ValueError(f"{test.path} must {wanted}, got others: {odd}")
    notes = [NOT_LOOKED_AT.format(kind, ", ".join(rest), test.path)] if rest else []
    return target, features, notes


def _predictions(files: ModelFiles, M: int, N: int) -> tuple[File, list[Any]]:
    """Returns the file of predictions, and these for training and for test rows."""
    told, train = _read(files, files.predictions, numbered=True), files.predictions_train
    if train is not None:
        other = _read(files, train, numbered=True)
        if told.header() != other.header():
            raise ValueError(f"{train} and {told.path} must have the same columns, got others")
        H = [other.predictions(), told.predictions()]
        _check_rows((str(train), str(told.path)), H, (M, N))
        check_columns(*H)
        return told, H
    if not told.is_table and "H_tr" in told.arrays:
        H = [told["H_tr"], told["H_te"]]
        _check_rows((f"H_tr of {told.path}", f"H_te of {told.path}"), H, (M, N))
        check_columns(*H)
        return told, H
    whole = told.predictions()
    if len(whole) != M + N:
        raise ValueError(
            f"{told.path} must have {M} + {N} rows, one for each training row followed by one "
            f"for each test row, got {len(whole)}; two files go with --predictions-train"
        )
    return told, [whole[:M], whole[M:]]


def _check_rows(names: Sequence[str], H: Sequence[Any], rows: Sequence[int]) -> None:
    """Refuses predictions that are not one for each training and each test row."""
    kinds = ("training", "test")
    for name, part, count, kind in zip(names, H, rows, kinds[: len(H)], strict=True):
        if len(part) != count:
            wanted = f"{count} rows, one for each {kind} row"
            raise ValueError(f"{name} must have {wanted}, got {len(part)}")


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
    lookup = {name: _whole(name) for name in header} | names
    return [lookup[label] for label in labels], [lookup[name] for name in header]


def _as_text(label: Any) -> str:
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _whole(name: str) -> Any:
    """Returns a whole number that is written, or the text."""
    try:
        return int(name)
    except ValueError:
        return name
