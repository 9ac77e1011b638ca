import numpy as np
import pandas as pd
import pytest

from neural_complexity.experiments.base.table_models import (
    MODELS,
    MOVES,
    as_numbers,
    draw_split,
    make_model,
)
from neural_complexity.tasks.real_tables import RealTable

random = np.random.default_rng(0)


def make_table(labels: bool = True, rows: int = 300, name: str = "some table") -> RealTable:
    X = pd.DataFrame({"day": np.arange(rows) // 7, "b": random.normal(size=rows)})
    X["kind"] = pd.Categorical(random.choice(["x", "y", "z"], rows))
    X.loc[::9, "b"] = np.nan
    y = X["b"].fillna(0) + (X["kind"] == "x")
    return RealTable(name, X, (y > 0).map({True: "yes", False: "no"}) if labels else y, labels)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_fitted_to_frames_as_they_are(name: str, labels: bool) -> None:
    split = draw_split(make_table(labels), 60, 50)
    assert split is not None
    model = make_model(name, labels=labels, seed=0)
    if model is None:
        assert (name, labels) == ("naive Bayes", False)
        return
    model.fit(split.X_tr, split.y_tr)
    again = make_model(name, labels=labels, seed=0).fit(split.X_tr, split.y_tr)
    told, same = (m.predict_proba if labels else m.predict for m in (model, again))
    np.testing.assert_array_equal(told(split.X_te), same(split.X_te))
    assert np.isfinite(told(split.X_te)).all()


@pytest.mark.parametrize("move", ["", *MOVES])
def test_rows_are_used_once_and_test_rows_are_where_they_should_be(move: str) -> None:
    table = make_table(name="ISLP Bikeshare bikers")
    split = draw_split(table, 100, 80, move=move)
    assert split is not None
    assert (len(split.X_tr), len(split.X_te)) == (100, 80)
    assert not set(split.X_tr.index) & set(split.X_te.index)
    assert set(np.unique(split.y_te)) <= set(np.unique(split.y_tr)) == {0, 1}
    for X, y in ((split.X_tr, split.y_tr), (split.X_te, split.y_te)):
        assert (table.y.loc[X.index] == "yes").to_numpy().tolist() == (y == 1).tolist()
    if move == "time":
        assert split.X_tr["day"].max() <= split.X_te["day"].min()
    elif move:
        Z_tr, Z_te = (np.nan_to_num(as_numbers(X)) for X in (split.X_tr, split.X_te))
        apart = abs(Z_tr.mean(axis=0) - Z_te.mean(axis=0)) / Z_tr.std(axis=0)
        assert apart.max() > 0.7


def test_seeds_say_everything() -> None:
    table = make_table()
    first, again, other = (
        draw_split(table, 50, 40, move="direction", seed=seed) for seed in (1, 1, 2)
    )
    assert first is not None
    assert again is not None
    assert other is not None
    assert first.X_tr.index.tolist() == again.X_tr.index.tolist() != other.X_tr.index.tolist()


def test_tables_that_are_too_small_are_left_out() -> None:
    assert draw_split(make_table(rows=50), 45, 40) is None
    assert draw_split(make_table(rows=50), 45, 20) is not None
    assert draw_split(make_table(), 60, 50, move="time") is None  # nobody said when
    one = make_table()
    assert draw_split(RealTable("one", one.X, pd.Series(["a"] * 300), True), 60, 50) is None
    assert draw_split(RealTable("same", one.X, pd.Series([1.0] * 300), False), 60, 50) is None


def test_categories_become_codes_and_missing_values_nan() -> None:
    X = pd.DataFrame({"a": [1.5, np.nan], "b": pd.Categorical(["v", None])})
    np.testing.assert_array_equal(as_numbers(X), [[1.5, 0], [np.nan, np.nan]])
