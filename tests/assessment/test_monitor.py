import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import binom
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_diabetes, load_iris, make_classification
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

from neural_complexity import Monitor
from neural_complexity.assessment import evidence
from neural_complexity.assessment.monitor import _p_of_larger, cut_stream
from neural_complexity.model.network import NeuralComplexity

pytestmark = pytest.mark.usefixtures("single_precision")
X, Y = make_classification(4000, 6, n_informative=4, flip_y=0.05, random_state=3)
FRAME = pd.DataFrame(X, columns=list("abcdef"))
TARGET = pd.Series(np.array(["no", "yes"])[Y], name="bought")
TIMES = pd.date_range("2026-01-01", periods=4000, freq="h")
A, B = slice(0, 120), slice(120, 240)
MODEL = LogisticRegression().fit(FRAME[A], TARGET[A])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    # What these tests are about does not need it, and it takes most of the time.
    slow = "neural_complexity.assessment.assess_table.detect_move"
    monkeypatch.setattr(slow, lambda *_, **__: None)


def test_chunks_that_are_harder_raise_an_alarm() -> None:
    monitor = Monitor(MODEL, FRAME[A], TARGET[A])
    usual = monitor.check(FRAME[B], "usual")
    edge = np.abs(MODEL.decision_function(FRAME))
    hard = FRAME[(edge < 0.3) & (np.arange(4000) > 240)][:100]
    found = monitor.check(hard)
    assert not usual.alarm
    assert found.alarm
    assert usual.p_value is not None
    assert found.p_value is not None
    assert found.p_value < 0.01 < usual.p_value
    assert found.error > usual.error
    assert (usual.name, found.name) == ("usual", "1")
    assert monitor.history.alarms == ["1"]
    assert "ALARM" in repr(found)


def test_a_chunk_like_the_reference_raises_an_alarm_as_rarely_as_stated() -> None:
    alarms, n, rate = 0, 60, 0.2
    for seed in range(n):
        rows = np.random.default_rng(seed).permutation(4000)
        known, reference, chunk = rows[:60], rows[60:120], rows[120:180]
        tree = DecisionTreeClassifier(random_state=0).fit(X[known], Y[known])
        monitor = Monitor(tree, X[known], Y[known], false_alarms=rate)
        alarms += monitor.fit(X[reference]).check(X[chunk]).alarm
    low, high = binom.ppf([0.001, 0.999], n, rate)
    assert low <= alarms <= high


def test_the_reference_may_have_labels_or_none_or_be_out_of_fold() -> None:
    seen = FRAME[B].assign(bought=TARGET[B])
    by_column = Monitor(MODEL, FRAME[A], TARGET[A]).fit(seen).check(FRAME[300:340])
    by_hand = Monitor(MODEL, FRAME[A], TARGET[A]).fit(FRAME[B], TARGET[B]).check(FRAME[300:340])
    assert by_column.p_value == by_hand.p_value
    assert by_column.assessment.loss_te == by_hand.assessment.loss_te
    assert by_column.assessment.checked is not None
    assert by_column.assessment.checked.points == 120
    assert by_column.expected == pytest.approx(by_column.assessment.checked.errors.mean())
    unlabelled = Monitor(MODEL, FRAME[A], TARGET[A]).fit(FRAME[B]).check(FRAME[300:340])
    assert unlabelled.assessment.checked is None
    assert unlabelled.p_value is not None
    folds = Monitor(MODEL, FRAME[A], TARGET[A], folds=4).check(FRAME[300:340])
    assert folds.assessment.cross_validated["accuracy"].value > 0.5
    told = Monitor(lambda x: x[:, :2], X[A].astype(np.float32), Y[A]).check(X[300:340])
    assert (told.p_value, told.expected, told.alarm) == (None, None, False)


def test_models_are_fitted_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, refit = [], evidence.refit_out_of_fold

    def counted(*args: object, **kwargs: object) -> object:
        calls.append(args)
        return refit(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr("neural_complexity.assessment.monitor.refit_out_of_fold", counted)
    monitor = Monitor(MODEL, FRAME[A], TARGET[A])
    first, second = (monitor.check(FRAME[B]) for _ in range(2))
    assert len(calls) == 1
    assert first.assessment.loss_te == second.assessment.loss_te


def test_streams_are_cut_and_checked_in_the_order_of_time() -> None:
    stream = FRAME[200:300].assign(time=TIMES[200:300], other="text")[::-1]
    monitor = Monitor(MODEL, FRAME[A], TARGET[A]).fit(FRAME[B])
    found = monitor.estimate(stream, timestamp="time", period="D")
    assert [check.name for check in found.checks] == [
        *("2026-01-09", "2026-01-10", "2026-01-11", "2026-01-12", "2026-01-13")
    ]
    frame = found.to_df()
    assert frame["rows"].tolist() == [16, 24, 24, 24, 12]
    by_name = monitor.estimate({"a": FRAME[200:216], "b": FRAME[216:240]})
    assert by_name.to_df()["loss"].tolist() == pytest.approx(frame["loss"].tolist()[:2])
    pairs = monitor.estimate([("a", FRAME[200:216]), FRAME[216:240]])
    assert [check.name for check in pairs.checks] == ["a", "8"]
    assert len(monitor.history.checks) == 9


def test_a_stream_is_cut_whole() -> None:
    for chunks in (
        cut_stream(FRAME[:95]),
        cut_stream(FRAME[:95], size=7),
        cut_stream(FRAME[:95].assign(t=TIMES[:95]), timestamp="t"),
        cut_stream(FRAME[:95].assign(t=TIMES[:95].astype(str)), timestamp="t", period="D"),
    ):
        joined = pd.concat([rows for _, rows in chunks])
        assert joined.index.tolist() == list(range(95))
        assert len({name for name, _ in chunks}) == len(chunks)
    assert len(cut_stream(FRAME[:95])) == 10
    assert len(cut_stream(FRAME[:3])) == 3


def test_regressors_are_monitored() -> None:
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    model = Ridge().fit(X[:150], y[:150])
    check = Monitor(model, X[:150], y[:150]).check(X[150:250])
    assert check.expected is not None
    assert check.error == pytest.approx(check.assessment.loss_te)
    assert next(iter(check.assessment.metrics)) == "r2"


@pytest.mark.parametrize(
    ("sentence", "ask"),
    [
        ("false_alarms must be from 1e-05 to 1, got 2", lambda m: m(false_alarms=2)),
        ("false_alarms must be from 1e-05 to 1, got 1e-06", lambda m: m(false_alarms=1e-6)),
        ("y must have 9 targets, one for each row, got 3", lambda m: m().fit(FRAME[:9], Y[:3])),
        ("nc must be for tables to monitor", lambda m: m(nc=NeuralComplexity(2, 1))),
        ("folds must be left out", lambda m: m(folds=3, out_of_fold=[])),
        ("reference must have at least one row, got none", lambda m: m().fit(FRAME[:0])),
        ("chunk must have at least one row, got none", lambda m: m().check(FRAME[:0])),
        (
            "chunk must have the columns of X_tr, got none named c",
            lambda m: m().check(FRAME.drop(columns="c")),
        ),
        ("timestamp, period and size must be left out", lambda m: m().estimate([FRAME], size=3)),
        ("size must be at least 1, got 0", lambda m: m().estimate(FRAME, size=0)),
        ("period must be given with a timestamp", lambda m: m().estimate(FRAME, period="D")),
        ("timestamp must be a column", lambda m: m().estimate(FRAME, timestamp="time")),
        (
            "period must be a period that pandas knows, such as D, W or MS, got soon",
            lambda m: m().estimate(FRAME.assign(t=TIMES), timestamp="t", period="soon"),
        ),
        (
            "column t must hold a time in every row, got 4000 of 4000 missing",
            lambda m: m().estimate(FRAME.assign(t=pd.NaT), timestamp="t"),
        ),
        (
            "column t must hold dates or times, got numbers",
            lambda m: m().estimate(FRAME.assign(t=1_700_000_000), timestamp="t", period="D"),
        ),
        (
            "column t must hold dates or times, got",
            lambda m: m().estimate(FRAME.assign(t="soon"), timestamp="t"),
        ),
    ],
)
def test_bad_input_is_one_sentence(sentence: str, ask: object) -> None:
    def make(**options: object) -> Monitor:
        return Monitor(MODEL, FRAME[A], TARGET[A], **options)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match=sentence) as error:
        ask(make)  # type: ignore[operator]
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("N", "n"), [(1, 40), (5, 3000), (3000, 5), (2000, 1500)])
def test_a_test_of_any_sizes_is_as_rarely_wrong_as_stated(N: int, n: int) -> None:
    # Errors that are far from Gaussian, alike in both sets.
    g, found = np.random.default_rng(0), []
    for _ in range(200):
        errors, known = (np.where(g.random(size) < 0.7, 0.4, 0.05) for size in (N, n))
        found.append(_p_of_larger(errors + g.normal(0, 1e-3, N), known + g.normal(0, 1e-3, n)))
    for rate in (0.05, 0.2):
        assert sum(p <= rate for p in found) <= binom.ppf(0.999, 200, rate)


def test_larger_errors_are_found_and_smaller_ones_are_not() -> None:
    g = np.random.default_rng(0)
    for N, n in ((20, 500), (500, 20), (1200, 1300)):
        errors, known = g.normal(0.5, 0.1, N), g.normal(0.3, 0.1, n)
        assert _p_of_larger(errors, known) <= 0.001
        assert _p_of_larger(known, errors) > 0.99
    assert _p_of_larger(np.ones(50), np.zeros(50), draws=1e4) < 2e-4


def test_the_reference_is_the_one_that_fit_was_given() -> None:
    fresh = Monitor(MODEL, FRAME[A], TARGET[A]).fit(FRAME[B], TARGET[B]).check(FRAME[300:340])
    used = Monitor(MODEL, FRAME[A], TARGET[A])
    used.check(FRAME[400:440])  # which fits the model again
    assert used.fit(FRAME[B], TARGET[B]).check(FRAME[300:340]).expected == pytest.approx(
        fresh.expected, rel=0.2
    )
    some = TARGET[B].where(np.arange(120) % 2 == 0)  # labels of half of the rows
    half = Monitor(MODEL, FRAME[A], TARGET[A]).fit(FRAME[B], some).check(FRAME[300:340])
    assert half.assessment.checked is not None
    assert half.assessment.checked.points == 60


def test_a_feature_is_not_taken_for_the_target() -> None:
    X, y = load_diabetes(return_X_y=True)
    frame, target = pd.DataFrame(X), pd.Series(y, name=0)  # which is a feature, too
    model = Ridge().fit(frame[:100], target[:100])
    check = Monitor(model, frame[:100], target[:100]).fit(frame[100:150]).check(frame[150:200])
    assert check.assessment.checked is None


def test_a_model_that_cannot_be_fitted_again_is_monitored_without_alarms() -> None:
    frame = FRAME[A].assign(g=["x"] * 119 + ["once"])
    encode = make_column_transformer((OneHotEncoder(), ["g"]), remainder="passthrough")
    model = make_pipeline(encode, LogisticRegression()).fit(frame, TARGET[A])
    monitor = Monitor(model, frame, TARGET[A])
    with pytest.warns(UserWarning, match="There are no alarms without a reference"):
        assert monitor.check(frame[:50]).p_value is None
    assert monitor.check(frame[:50]).p_value is None  # and says so once
    with pytest.raises(ValueError, match="the model must fit 4 folds"):
        Monitor(model, frame, TARGET[A], folds=4).check(frame[:50])


def test_times_of_every_kind_are_read() -> None:
    stream = FRAME[:60].copy()
    stream[7] = ["2026-03-28T12:00:00+01:00"] * 30 + ["2026-03-30T12:00:00+02:00"] * 30
    chunks = cut_stream(stream, timestamp=7, period="D")  # type: ignore[arg-type]
    assert [len(rows) for _, rows in chunks] == [30, 30]
    stream.index.name = "t"
    same_day = cut_stream(stream.assign(t="2026-01-01"), timestamp="t", size=20)
    assert [name for name, _ in same_day] == ["2026-01-01", "2026-01-01 (2)", "2026-01-01 (3)"]
    assert [name for name, _ in cut_stream(FRAME[100:130], size=20)] == [
        *("rows 0 to 19", "rows 20 to 29")
    ]
    arrays = Monitor(LogisticRegression().fit(X[A], Y[A]), X[A], Y[A]).fit(X[B])
    timed = pd.DataFrame(X[300:340]).assign(t=TIMES[:40])
    assert len(arrays.estimate(timed, timestamp="t", size=40).checks) == 1


def test_a_chunk_without_values_is_refused() -> None:
    X, y = load_iris(return_X_y=True)
    monitor = Monitor(LogisticRegression(max_iter=1000).fit(X, y), X, y)
    with pytest.raises(TypeError, match="chunk must be a dense tensor .* got a meta"):
        monitor.check(torch.ones(2, 4, device="meta"))
