"""Which files a model that lives elsewhere is assessed from; it loads at once."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["ModelFiles", "StreamFiles"]


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """The files of a model: CSV with a header, parquet (extra: tables) or npz, by their ending."""

    train: Path
    """Features and target of each training point, one row a point. As npz: X, of any shape that
    the NC knows, and y."""
    test: Path  # The same features, found by their names; a target there is ignored. As npz: X.
    predictions: Path
    """One row for each training row, in order, followed by one for each test row. As npz: H_tr and
    H_te, and the names of the classes in `classes` if need be. Labels: one column for each class;
    if the header has all labels of the target in it, it says which class a column is of, otherwise
    columns are in the order of the NC's classes. Real targets: one column for each output, in the
    order of the target."""
    predictions_train: Path | None = None
    """Predictions for the training rows, if those are a file of their own; as npz: H in each."""
    target: tuple[str, ...] = ()  # The target's columns; the last if left out. Others are features.
    probabilities: bool = False  # Whether predictions are probabilities instead of logits.
    max_memory: float = 1.0  # GB that a file may take; those that would take more are refused.


@dataclass(frozen=True, kw_only=True)
class StreamFiles:
    """The files of a model that is monitored: CSV with a header, parquet (extra: tables) or npz."""

    train: Path  # Features and target of each training row.
    stream: Path
    """The same features of the rows that came since, in the order of time unless there is a
    timestamp. A target there is used in the first chunk only, the reference."""
    predictions: Path
    """One row for each training row, in order, followed by one for each row of the stream: one
    column for each class, or one for a real target."""
    predictions_train: Path | None = None
    """Predictions for the training rows, if those are a file of their own."""
    target: tuple[str, ...] = ()  # The target's column; the last of the training file if left out.
    probabilities: bool = False  # Whether predictions are probabilities instead of logits.
    timestamp: str | None = None  # The column that has the time.
    period: str | None = None  # Of a chunk: D, W, MS, as pandas writes it.
    size: int | None = None  # Rows of a chunk; a tenth of the stream if there is no period either.
    max_memory: float = 1.0  # GB that a file may take; those that would take more are refused.

    def as_test(self) -> ModelFiles:
        """Returns the same files, the stream as test rows."""
        return ModelFiles(
            train=self.train,
            test=self.stream,
            predictions=self.predictions,
            predictions_train=self.predictions_train,
            target=self.target,
            probabilities=self.probabilities,
            max_memory=self.max_memory,
        )
