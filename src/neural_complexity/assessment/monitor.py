"""How a model does over time: an estimate for each chunk of new rows, and alarms."""

import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Unpack

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types
from rich.console import Console
from scipy.stats import ttest_ind

from neural_complexity.assessment.assess import assess
from neural_complexity.assessment.evidence import refit_out_of_fold
from neural_complexity.assessment.history import Check, History
from neural_complexity.assessment.prepare import Options, choose_nc
from neural_complexity.convert import arrays_in as given
from neural_complexity.convert.folds import take
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import check_dense
from neural_complexity.progress import ProgressDisplay

__all__ = ["Monitor", "cut_stream"]

FOLDS = 5
LABELLED = ("held_out", "out_of_fold")
PERMUTATIONS = 999  # at least
MANY = 1000  # points of both sets from which on a mean is as good as Gaussian
RAREST = 1e-5  # the least rate of false alarms
CHUNKS = 10  # into which a stream is cut unless something else is said
Array = NDArray[np.float64]


class Monitor:
    """Watches a model: predicts its metrics on chunks of new rows, without their labels.

    An alarm says that the error that NC expects on a chunk is larger than on reference points that
    the model did not learn from, by more than chance: the reference of `fit`, or else the training
    points, predicted by refits out of fold. If a chunk is like a reference of `fit`, it raises an
    alarm with a probability of at most `false_alarms`. With training points that is so only about,
    as refits have learned from fewer. All chunks are compared with one reference: if it
    is small, and easier than most by chance, many of them raise one. A change in how labels depend
    on inputs cannot be seen without labels.

    Example:
        >>> from sklearn.datasets import load_breast_cancer
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = load_breast_cancer(return_X_y=True, as_frame=True)
        >>> model = LogisticRegression(max_iter=5000).fit(X[:300], y[:300])
        >>> monitor = Monitor(model, X[:300], y[:300])
        >>> bool(monitor.check(X[300:]).alarm)
        False
    """

    def __init__(
        self,
        model: Any,
        X_tr: Any,
        y_tr: Any,
        *,
        nc: NeuralComplexity | str | None = None,
        false_alarms: float = 0.05,
        **options: Unpack[Options],
    ) -> None:
        """Takes a model, and what it learned from.

        Args:
            model: As of `assess`.
            X_tr: Its training inputs.
            y_tr: Their targets.
            nc: An NC for tables; the one that ships if `None`.
            false_alarms: How often a chunk that is like the reference may raise an alarm.
            options: As of `assess`. Without `folds`, `held_out` and `out_of_fold`, a scikit-learn
                estimator is fitted again on five folds, once.
        """
        if not RAREST <= false_alarms < 1:
            raise ValueError(f"false_alarms must be from {RAREST} to 1, got {false_alarms}")
        if options.get("folds") is not None and options.get("out_of_fold") is not None:
            raise ValueError("folds must be left out where out_of_fold is given, got both")
        self.nc = choose_nc(nc, model, y_tr)
        if not self.nc.architecture.for_tables:
            raise ValueError("nc must be for tables to monitor a model, got another")
        self.model, self.X_tr, self.y_tr = model, X_tr, y_tr
        self.false_alarms = false_alarms
        self._options: dict[str, Any] = {**options}
        self._reference: Array | None = None
        self._checks: list[Check] = []
        self._failed = False  # to fit the model again, though nobody asked for that

    def fit(self, reference: Any, y: Any = None) -> "Monitor":
        """Sets the reference: points that the model did not learn from, while all was well.

        Args:
            reference: Their inputs; a frame may have the column of the targets.
            y: Their targets, if they are known, which make estimates better.

        Returns:
            This monitor.
        """
        target, columns = getattr(self.y_tr, "name", None), list(getattr(self.X_tr, "columns", ()))
        there = target in getattr(reference, "columns", ()) and target not in columns
        if y is None and target is not None and there:
            y = reference[target]
        X = self._inputs(reference)
        if not len(X):
            raise ValueError("reference must have at least one row, got none")
        self._options.pop("held_out", None)
        if y is not None:
            if len(y) != len(X):
                raise ValueError(f"y must have {len(X)} targets, one for each row, got {len(y)}")
            known = np.flatnonzero(pd.notna(np.asarray(y, dtype=object)))
            if len(known):
                self._options["held_out"] = take(X, known), given.array(y)[known]
        if self._options.get("folds") is not None:
            self._refit()
        self._reference = self._assess(X).errors
        return self

    def check(self, chunk: Any, name: object = None) -> Check:
        """Predicts how the model does on a chunk of new rows, and compares with the reference.

        Args:
            chunk: Rows with the columns of the training inputs; others are left out of a frame.
            name: Of the chunk; its number if `None`.
        """
        X = self._inputs(chunk)
        if not len(X):
            raise ValueError("chunk must have at least one row, got none")
        self._refit()
        found = self._assess(X)
        known = found.checked.errors if found.checked is not None else None
        known = known if self._reference is None else self._reference
        p_value = None
        if known is not None and found.errors is not None:
            p_value = _p_of_larger(found.errors, known, draws=-(-2 // self.false_alarms))
        self._checks.append(
            Check(
                name=str(len(self._checks) if name is None else name),
                assessment=found,
                expected=None if known is None else float(known.mean()),
                p_value=p_value,
                alarm=p_value is not None and p_value <= self.false_alarms,
            )
        )
        return self._checks[-1]

    def estimate(
        self,
        chunks: Any,
        *,
        timestamp: str | None = None,
        period: str | None = None,
        size: int | None = None,
    ) -> History:
        """Checks several chunks, in their order, and returns what was found.

        Args:
            chunks: By name, or one after the other, or as pairs of name and chunk as of
                `DataFrame.groupby`; or one frame, which is cut as the others say.
            timestamp: The column of a frame that has the time; see `cut_stream`.
            period: Of a chunk, as pandas writes it (`"D"`, `"W"`, `"MS"`).
            size: Rows of a chunk.
        """
        if isinstance(chunks, pd.DataFrame):
            chunks = cut_stream(chunks, timestamp=timestamp, period=period, size=size)
            if timestamp is not None and timestamp not in getattr(self.X_tr, "columns", ()):
                chunks = [(name, rows.drop(columns=timestamp)) for name, rows in chunks]
        elif timestamp is not None or period is not None or size is not None:
            wanted = "left out unless chunks are one frame"
            raise ValueError(f"timestamp, period and size must be {wanted}, got one")
        first, each, started = len(self._checks), list(_named(chunks)), time.monotonic()
        with ProgressDisplay(Console(stderr=True)) as display:
            for i, (name, chunk) in enumerate(each, 1):
                self.check(chunk, name)
                seconds, alarms = (
                    time.monotonic() - started,
                    sum(c.alarm for c in self._checks[first:]),
                )
                display("chunks", i, len(each), seconds, {"alarms": alarms})
        return History(tuple(self._checks[first:]), self.false_alarms)

    @property
    def history(self) -> History:
        """All chunks that were checked."""
        return History(tuple(self._checks), self.false_alarms)

    def _assess(self, X: Any) -> Any:
        return assess(self.model, self.X_tr, self.y_tr, X, nc=self.nc, **self._options)

    def _refit(self) -> None:
        """Fits the model again, once, if that is asked for, or there is nothing to compare with."""
        options = self._options
        known = self._reference is not None or any(options.get(n) is not None for n in LABELLED)
        folds = options.get("folds")
        can = hasattr(self.model, "fit") and hasattr(self.model, "get_params")
        if folds is None and (known or self._failed or not can or callable(self.model)):
            return  # if nothing is known, there are no alarms
        classes = options.get("classes")
        classes = given.columns_of(self.model) if classes is None else list(classes)
        data = self.model, self.X_tr, self.y_tr, FOLDS if folds is None else folds
        try:
            found = refit_out_of_fold(*data, classes=classes if self.nc.labels else None)
        except (TypeError, ValueError) as error:
            if folds is not None:
                raise
            self._failed = True
            told = f"There are no alarms without a reference (see fit), as {error}"
            warnings.warn(told, stacklevel=3)
            return
        options["out_of_fold"] = found
        options.pop("folds", None)

    def _inputs(self, chunk: Any) -> Any:
        """Returns the columns that the model knows."""
        check_dense("chunk", chunk)
        known = list(getattr(self.X_tr, "columns", ()))
        if not known or not isinstance(chunk, pd.DataFrame):
            return chunk
        lost = [str(name) for name in known if name not in chunk.columns]
        if lost:
            raise ValueError(f"chunk must have the columns of X_tr, got none named {lost[0]}")
        return chunk[known]


def cut_stream(
    frame: pd.DataFrame,
    *,
    timestamp: str | None = None,
    period: str | None = None,
    size: int | None = None,
) -> list[tuple[str, pd.DataFrame]]:
    """Cuts rows into chunks with names, ten unless a period or a size is given.

    Args:
        frame: Rows; in the order of time if there is no timestamp.
        timestamp: The column that has the time; chunks are named by their first, or by the period
            as pandas calls it.
        period: Of a chunk, as pandas writes it; one without rows has no chunk.
        size: Rows of a chunk; the last may have fewer.
    """
    if period is not None and (size is not None or timestamp is None):
        got = "a size" if size is not None else "no timestamp"
        raise ValueError(f"period must be given with a timestamp and without a size, got {got}")
    if size is not None and size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if timestamp is not None:
        frame = _in_order_of_time(frame, timestamp)
        if period is not None:
            try:
                groups = frame.groupby(pd.Grouper(key=timestamp, freq=period), sort=True)
                return [(_date(name), rows) for name, rows in groups if len(rows)]
            except ValueError as error:
                wanted = "a period that pandas knows, such as D, W or MS"
                raise ValueError(f"period must be {wanted}, got {period} ({error})") from None
    size = size or max(1, -(-len(frame) // CHUNKS))
    starts = range(0, len(frame), size)
    parts = [frame.iloc[start : start + size] for start in starts]
    if timestamp is None:
        return [(f"rows {i} to {i + len(p) - 1}", p) for i, p in zip(starts, parts, strict=True)]
    names = [_date(part[timestamp].iloc[0]) for part in parts]
    before = [names[:i].count(name) for i, name in enumerate(names)]
    names = [f"{name} ({n + 1})" if n else name for name, n in zip(names, before, strict=True)]
    return list(zip(names, parts, strict=True))


def _date(time: Any) -> str:
    return str(time).removesuffix(" 00:00:00")


def _in_order_of_time(frame: pd.DataFrame, timestamp: str) -> pd.DataFrame:
    if timestamp not in frame.columns:
        raise ValueError(f"timestamp must be a column of the stream, got {timestamp}")
    if types.is_numeric_dtype(frame[timestamp]):  # of which unit?
        raise ValueError(f"column {timestamp} must hold dates or times, got numbers")
    try:
        # Text may have several offsets from UTC, as where clocks are changed.
        local = frame[timestamp].astype(object).map(lambda cell: isinstance(cell, str)).any()
        times = pd.to_datetime(frame[timestamp], utc=bool(local)).dt.tz_localize(None)
    except (ValueError, TypeError) as error:
        raise ValueError(f"column {timestamp} must hold dates or times, got {error}") from None
    if times.isna().any():
        got = f"{times.isna().sum()} of {len(times)} missing"
        raise ValueError(f"column {timestamp} must hold a time in every row, got {got}")
    frame = frame.copy()
    frame.index.name = None  # which may be that of the column
    frame[timestamp] = times
    return frame.iloc[np.argsort(times.to_numpy(), kind="stable")]


def _named(chunks: Mapping[Any, Any] | Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yields names, `None` where there is none, and chunks."""
    if isinstance(chunks, Mapping):
        yield from chunks.items()
        return
    for one in chunks:
        yield one if isinstance(one, tuple) and len(one) == 2 else (None, one)


def _p_of_larger(errors: Array, known: Array, *, draws: float = 0) -> float:
    """Tests whether expected errors of a chunk, (N,), are larger than those of a reference, (n,).

    If both are of one distribution, any division of all points into two such sets is as likely as
    any other, so that the test is exact. Of two large sets, means are as good as Gaussian.
    """
    few = min(len(errors), len(known))
    if few > MANY:
        return float(ttest_ind(errors, known, equal_var=False, alternative="greater").pvalue)
    pooled, random = np.concatenate([errors, known]), np.random.default_rng(0)
    pooled = pooled - pooled.mean()
    count = int(max(PERMUTATIONS, draws))
    draw = partial(random.choice, len(pooled), few, replace=False, shuffle=False)
    sums = np.array([pooled[draw()].sum() for _ in range(count)])  # of the smaller set
    seen = pooled[: len(errors)].sum()
    sums = sums if len(errors) == few else -sums  # the rest of all
    return float((1 + (sums >= seen - 1e-9 * max(1.0, abs(seen))).sum()) / (1 + count))
