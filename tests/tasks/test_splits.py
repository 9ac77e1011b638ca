"""Splits of one dataset, and of arrays, frames and loaders that users have."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from neural_complexity.points import join, raw, values
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.splits import (
    ArrayStore,
    Minibatches,
    Splits,
    Tables,
    _load,
    split_tasks,
)
from neural_complexity.workspace import fingerprint


def own_indices(labels: Tensor) -> ArrayStore:
    """Returns inputs that are their own indices."""
    return ArrayStore(torch.arange(len(labels))[:, None].to(torch.get_default_dtype()), labels)


def store(P: int = 60) -> ArrayStore:
    return own_indices(torch.arange(P) * 7 % 3)


def splits(**sizes: int) -> Splits:
    own = {"train": 20, "test": 10, "M": 4, "N": 3} | sizes
    return Splits(store(), torch.arange(5, 50), **own)


@st.composite
def made(draw: st.DrawFn) -> tuple[Splits, int, int]:
    P = draw(st.integers(4, 40))
    pool = torch.randperm(60, generator=stream(draw(st.integers(0, 9)), "pool"))[:P]
    train = draw(st.integers(1, P - 1))
    test = draw(st.integers(1, P - train))
    M, N = draw(st.integers(1, train)), draw(st.integers(1, test))
    numbers = own_indices(torch.arange(60) % 2)
    if numbers.labels[pool].unique().numel() < 2:
        pool = torch.arange(P)
    return Splits(numbers, pool, train=train, test=test, M=M, N=N), draw(st.integers(1, 4)), train


@given(made(), st.integers(0, 99))
def test_splits_are_disjoint_and_of_the_pool_with_its_labels(
    case: tuple[Splits, int, int], seed: int
) -> None:
    family, batch, train = case
    whole = family.split(batch, stream(seed, "split"))
    part = family.sample(batch, stream(seed, "draw"))
    fewer = family.split(batch, stream(seed, "split"), train=(train + 1) // 2)
    sizes = [(train, family.test), (family.M, family.N), ((train + 1) // 2, family.test)]
    for task, (m, n) in zip((whole, part, fewer), sizes, strict=True):
        assert task.X_tr.shape == task.Y_tr.shape == (batch, m)
        assert task.X_te.shape == task.Y_te.shape == (batch, n)
        for row in torch.cat([raw(task.X_tr), raw(task.X_te)], dim=1):
            assert len(row.unique()) == m + n
            assert torch.isin(row, family.pool).all()
        assert torch.equal(task.Y_tr, family.store.labels[raw(task.X_tr)])
        assert torch.equal(task.Y_te, family.store.labels[raw(task.X_te)])


def test_the_same_generator_draws_the_same_splits_and_another_one_others() -> None:
    one, same, other = (splits().split(3, stream(seed, "split")) for seed in (0, 0, 1))
    assert torch.equal(raw(one.X_tr), raw(same.X_tr))
    assert torch.equal(raw(one.X_te), raw(same.X_te))
    assert not torch.equal(raw(one.X_tr), raw(other.X_tr))
    assert not torch.equal(raw(one.X_tr)[0], raw(one.X_tr)[1])


def test_every_input_is_as_likely_as_any_other() -> None:
    task = splits().split(4000, stream(0, "split"))
    for numbers, share in ((raw(task.X_tr), 20 / 45), (raw(task.X_te), 10 / 45)):
        counts = numbers.flatten().bincount(minlength=60)[5:50]
        assert (counts / 4000 - share).abs().max() < 0.04  # five standard deviations


def test_loaded_samples_are_the_inputs_of_their_indices() -> None:
    family = splits()
    task = family.sample(2, stream(0, "x"))
    assert torch.equal(task.loaded().X_tr, family.store(raw(task.X_tr)))
    same = family.task(raw(task.X_tr), raw(task.X_te))
    assert torch.equal(same.Y_te, task.Y_te)


def test_equal_fingerprints_mean_equal_tasks() -> None:
    assert fingerprint(splits()) == fingerprint(splits())
    others = [splits(train=21), splits(test=9), splits(M=5), splits(N=2)]
    others.append(Splits(store(), torch.arange(5, 50).flip(0), train=20, test=10, M=4, N=3))
    assert fingerprint(splits()) not in {fingerprint(other) for other in others}


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"train": 36}, r"train \+ test must be at most 45, got 46"),
        ({"train": 0}, "train must be at least 1, got 0"),
        ({"M": 21}, "M must be at most 20, got 21"),
        ({"N": 11}, "N must be at most 10, got 11"),
    ],
)
def test_impossible_sizes_are_refused(sizes: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        splits(**sizes)


def test_impossible_draws_and_a_single_class_are_refused() -> None:
    with pytest.raises(ValueError, match="train must be at most 20, got 21"):
        splits().split(1, stream(0, "x"), train=21)
    with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
        splits().sample(0, stream(0, "x"))
    with pytest.raises(ValueError, match="targets must be of two classes at least, got 1 alone"):
        Splits(own_indices(torch.ones(9).long()), torch.arange(9), train=4, test=4, M=1, N=1)


def numbered(B: int, m: int, n: int) -> Task:
    """Tasks whose inputs and labels tell task, set and place."""
    X_tr, X_te = torch.arange(B * m).view(B, m), 1000 + torch.arange(B * n).view(B, n)
    return Task(X_tr, 2 * X_tr, X_te, 2 * X_te)


@given(
    st.integers(1, 3),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1, 14),
    st.integers(1, 14),
    st.integers(0, 9),
)
def test_each_round_meets_each_point_once(
    B: int, m: int, n: int, M: int, N: int, seed: int
) -> None:
    task = numbered(B, m, n)
    batches = Minibatches(task, M=M, N=N, seed=seed)
    for name, size, points in (("tr", min(M, m), m), ("te", min(N, n), n)):
        steps = points // size
        for start in (0, 2 * steps):  # the first and the third round
            met = [getattr(batches(start + i), f"X_{name}") for i in range(steps)]
            row = torch.cat(met, dim=1)
            assert row.shape == (B, steps * size)  # what fills no step is left out
            assert all(len(r.unique()) == steps * size for r in row)
            if points % size == 0:
                assert torch.equal(row.sort(dim=1).values, getattr(task, f"X_{name}"))
    step = batches(5)
    assert torch.equal(step.Y_tr, 2 * step.X_tr)
    assert torch.equal(step.Y_te, 2 * step.X_te)


def test_minibatches_are_a_pure_function_of_seed_and_step() -> None:
    task = numbered(2, 30, 30)
    forth, back, other = (Minibatches(task, M=4, N=7, seed=seed) for seed in (0, 0, 1))
    expected = [forth(step) for step in range(20)]
    for step in reversed(range(20)):
        again = back(step)
        assert torch.equal(again.X_tr, expected[step].X_tr)
        assert torch.equal(again.X_te, expected[step].X_te)
    assert not torch.equal(other(0).X_tr, expected[0].X_tr)
    with pytest.raises(ValueError, match="M must be at least 1, got 0"):
        Minibatches(task, M=0, N=1, seed=0)


def array_store(splits: Splits) -> ArrayStore:
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
        assert not array_store(splits).classes
        assert torch.equal(Y[..., 0], torch.as_tensor(y).to(Y.dtype)[indices])
    else:
        named = np.array(array_store(splits).classes)[Y.numpy()]
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
        assert not array_store(split_tasks(X, way)).classes
    with pytest.raises(ValueError, match="y must have no missing values as labels"):
        split_tasks(X, [0.0, np.nan] * 20, kind="classification")
    with pytest.raises(ValueError, match="kind must be classification, regression or None, got c"):
        split_tasks(X, y, kind="classify")  # type: ignore[arg-type]


def test_amounts_in_whole_numbers_can_be_meant() -> None:
    X, y = np.zeros((200, 2)), np.arange(200)
    assert array_store(split_tasks(X, y, kind="regression")).labels.shape == (200, 1)
    assert array_store(split_tasks(X, y, kind="classification")).outputs == 200


def test_the_halves_of_the_tables_share_no_row() -> None:
    whole, rows, _ = _load()
    for part, first in (("first", True), ("second", False)):
        task = Tables(part=part, features=1).sample(400, stream(0, "x"))  # type: ignore[arg-type]
        points = (
            torch.cat([task.X_tr, task.X_te], dim=1)[..., 0],
            torch.cat([task.Y_tr, task.Y_te], dim=1)[..., 0],
        )
        for b in range(20):  # every point of a task is a row of the right half of one table
            pair = torch.stack([p[b] for p in points])  # (2, M + N)
            assert any(
                _holds(table[: n // 2] if first else table[n // 2 : n], pair)
                for table, n in zip(whole, rows.tolist(), strict=True)
            )


def _holds(table: torch.Tensor, pair: torch.Tensor) -> bool:
    """Tells whether some two columns of a table have all pairs of values in one row each."""
    columns = [
        torch.nonzero((table[:, :, None] == v).any(dim=0).all(dim=1)).flatten() for v in pair
    ]
    for x in columns[0].tolist():
        for y in columns[1].tolist():
            both = (table[:, x, None] == pair[0]) & (table[:, y, None] == pair[1])
            if x != y and both.any(dim=0).all():
                return True
    return False


def test_columns_of_the_tables_are_standardized() -> None:
    whole, rows, columns = _load()
    for table, n, c in zip(whole, rows.tolist(), columns.tolist(), strict=True):
        assert table[:n, :c].mean(dim=0).abs().max() < 1e-9
        torch.testing.assert_close(table[:n, :c].std(dim=0, correction=0), torch.ones(c))
        assert table[n:].abs().sum() == 0
