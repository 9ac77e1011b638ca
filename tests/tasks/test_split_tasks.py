from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from neural_complexity.points import join, raw, values
from neural_complexity.seeding import stream
from neural_complexity.tasks.split_tasks import ArrayStore, split_tasks
from neural_complexity.tasks.splits import Splits
from neural_complexity.workspace import fingerprint


def store(splits: Splits) -> ArrayStore:
    assert isinstance(splits.store, ArrayStore)
    return splits.store


def test_splits_are_told_in_one_line() -> None:
    text = repr(split_tasks(np.eye(40), ["yes", "no"] * 20))
    sizes = "train=30, test=10, M=30, N=10"
    assert text == f"Splits(store=ArrayStore(40 points of 40, outputs=2), {sizes})"


@settings(max_examples=40, deadline=None)
@given(
    st.integers(20, 60),
    st.integers(1, 4),
    st.sampled_from(["int64", "bool", "text", "float64", "float32"]),
    st.integers(0, 100),
)
def test_a_split_shows_each_point_with_its_own_target_once(
    P: int, D: int, kind: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    X = np.arange(P)[:, None] + np.linspace(0, 0.5, D)
    y: Any = random.permutation(np.arange(P) % 2)
    y = np.array(["no", "yes"])[y] if kind == "text" else y.astype(kind)
    splits = split_tasks(X, y)
    task = splits.split(2, stream(seed, "split"))
    points = join([task.X_tr, task.X_te], dim=1)
    indices = raw(points)
    assert torch.equal(indices.sort(dim=1).values, torch.arange(P).expand(2, -1))
    assert torch.equal(values(points)[..., 0], indices.to(torch.get_default_dtype()))
    Y = torch.cat([task.Y_tr, task.Y_te], dim=1)
    if kind in ("float64", "float32"):
        assert not store(splits).classes
        assert torch.equal(Y[..., 0], torch.as_tensor(y).to(Y.dtype)[indices])
    else:
        named = np.array(store(splits).classes)[Y.numpy()]
        assert (named == y[indices.numpy()]).all()


def test_all_ways_to_hand_over_the_same_points_give_the_same_tasks() -> None:
    import pandas

    X, y = torch.randn(30, 3), torch.arange(30) % 3
    pairs = TensorDataset(X, y)
    ways: list[tuple[Any, Any]] = [
        (X.numpy(), y.numpy()),
        (X.tolist(), y.tolist()),
        (pandas.DataFrame(X.numpy()), pandas.Series(y.numpy())),
        (pairs, None),
        (DataLoader(pairs, batch_size=7), None),
    ]
    expected = fingerprint(split_tasks(X, y))
    assert [fingerprint(split_tasks(*way)) for way in ways] == [expected] * len(ways)
    assert fingerprint(split_tasks(X + 1, y)) != expected


def test_sizes_are_three_quarters_unless_they_are_given() -> None:
    X, y = np.random.default_rng(0).normal(size=(100, 2)), np.arange(100.0)
    assert (split_tasks(X, y).train, split_tasks(X, y).test) == (75, 25)
    assert (split_tasks(X, y, train=60).train, split_tasks(X, y, train=60).test) == (60, 40)
    assert (split_tasks(X, y, test=10).train, split_tasks(X, y, test=10).test) == (90, 10)
    with pytest.raises(ValueError, match="train . test must be at most 100, got 110"):
        split_tasks(X, y, train=90, test=20)


@pytest.mark.parametrize(
    ("X", "y", "error", "sentence"),
    [
        (np.zeros((10, 2)), np.arange(10), ValueError, "X must have at least 20 points to be spl"),
        (np.zeros((30, 2)), None, TypeError, "y must be given"),
        (np.zeros((30, 2)), np.zeros(30, int), ValueError, "targets must be of two classes at lea"),
        (np.zeros((30, 2)), np.zeros(30), ValueError, "targets must be two different ones at leas"),
        (np.zeros((30, 2)), np.arange(29), ValueError, "y must be one for each of the 30 points"),
        (np.full((30, 2), np.nan), np.arange(30.0), ValueError, "X must"),
        (np.array([["a", "b"]] * 30), np.arange(30), TypeError, "X must"),
        (np.zeros((200, 2)), np.arange(200), ValueError, "kind must be given where y has more th"),
        (np.zeros((30, 2)), np.full(30, np.inf), ValueError, "y must"),
        (np.zeros((30, 2, 2)), np.arange(30.0), ValueError, "X must be"),
        (np.zeros((30, 2)), [b"a", b"b"] * 15, TypeError, "y must hold names, .* got bytes"),
        (np.zeros((30, 2)), ["a", None] * 15, ValueError, "y must have no missing values"),
        (
            np.zeros((30, 2)),
            np.array(["a", np.nan] * 15, dtype=object),
            ValueError,
            "y must have no missing values as labels, got some",
        ),
        (
            np.zeros((30, 2)),
            np.array(["a", 1] * 15, dtype=object),
            TypeError,
            "y must hold names, or numbers, or truth values as labels, got mixed",
        ),
        (
            np.zeros((30, 2)),
            np.array(["2020-01-01", "2020-01-02"] * 15, dtype="datetime64[D]"),
            TypeError,
            "y must hold names, or numbers, or truth values as labels, got date",
        ),
        (
            np.zeros((200, 2)),
            np.arange(200).astype(object),
            ValueError,
            "kind must be given where y has more th",
        ),
    ],
)
def test_what_cannot_be_split_is_refused(
    X: Any, y: Any, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        split_tasks(X, y)


def test_numbers_are_real_targets_whatever_holds_them() -> None:
    X, y = np.zeros((40, 2)), np.linspace(0, 1, 40)
    for way in (y.astype(object), torch.from_numpy(y).bfloat16(), y.tolist()):
        assert not store(split_tasks(X, way)).classes
    with pytest.raises(ValueError, match="y must have no missing values as labels"):
        split_tasks(X, [0.0, np.nan] * 20, kind="classification")
    with pytest.raises(ValueError, match="kind must be classification, regression or None, got c"):
        split_tasks(X, y, kind="classify")  # type: ignore[arg-type]


def test_amounts_in_whole_numbers_can_be_meant() -> None:
    X, y = np.zeros((200, 2)), np.arange(200)
    assert store(split_tasks(X, y, kind="regression")).labels.shape == (200, 1)
    assert store(split_tasks(X, y, kind="classification")).outputs == 200
