from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neural_complexity.tasks.mechanisms import Draws
from neural_complexity.tasks.synthetic_tables import LEARNABLE, Tables, disguise, explained


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


sizes = st.integers(2, 40)


@settings(max_examples=25)
@given(st.integers(1, 4), sizes, sizes, st.integers(2, 35), st.integers(0, 10), st.integers(0, 99))
def test_tables_are_of_the_sizes_asked_for(
    batch: int, M: int, N: int, D: int, classes: int, seed: int
) -> None:
    classes = 0 if classes == 1 else classes
    family = Tables(
        classes=classes, train_points=(M, M), test_points=N, features=(D, D), unlearnable=1.0
    )
    task = family.sample(batch, generator(seed))
    assert task.X_tr.shape == (batch, M, D)
    assert task.X_te.shape == (batch, N, D)
    assert not task.X_tr.isinf().any()
    assert not task.X_te.isinf().any()
    if classes:
        assert task.Y_tr.shape == (batch, M)
        assert task.Y_te.shape == (batch, N)
        for known, asked in zip(task.Y_tr, task.Y_te, strict=True):
            # Classes are numbered without gaps, and no test row is of another one.
            assert known.unique().tolist() == list(range(int(known.max()) + 1))
            assert set(asked.tolist()) <= set(known.tolist())
            assert known.max() < classes
    else:
        assert task.Y_tr.shape == (batch, M, 1)
        assert task.Y_tr.isfinite().all()


def test_sizes_are_between_their_bounds_and_few_as_likely_as_many() -> None:
    family, numbers = Tables(train_points=(10, 90), features=(2, 8), test_points=5), generator()
    drawn = [family.sample(1, numbers).X_tr.shape for _ in range(300)]
    rows, features = ([shape[axis] for shape in drawn] for axis in (1, 2))
    assert min(rows) == 10
    assert max(rows) == 90
    assert set(features) == set(range(2, 9))
    assert sum(row < 30 for row in rows) / 300 == pytest.approx(0.5, abs=0.08)


def test_a_seed_says_everything() -> None:
    first, again, other = (Tables().sample(3, generator(seed)) for seed in (5, 5, 6))
    assert torch.equal(first.X_tr.nan_to_num(), again.X_tr.nan_to_num())
    assert torch.equal(first.Y_te, again.Y_te)
    assert first.X_tr.shape != other.X_tr.shape or not torch.equal(first.Y_te, other.Y_te)


@pytest.mark.parametrize("classes", [0, 10])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_share_of_the_tables_cannot_be_learned(classes: int, share: float) -> None:
    family = Tables(
        classes=classes,
        train_points=(200, 200),
        test_points=200,
        features=(2, 10),
        moved=0,
        unlearnable=share,
    )
    task = family.sample(60, generator())
    X, Y = (torch.cat(pair, dim=1) for pair in ((task.X_tr, task.X_te), (task.Y_tr, task.Y_te)))
    # Judged by other rows than when the table was chosen.
    found = (explained(X, Y, classes) > LEARNABLE).float().mean().item()
    assert found == pytest.approx(1 - share, abs=0.25)


def test_nothing_is_learned_from_chance() -> None:
    X, Y = torch.randn(100, 400, 5, generator=generator()), torch.arange(40_000).view(100, 400) % 2
    assert (explained(X, Y, 2) > LEARNABLE).float().mean() < 0.05
    assert (explained(X, (X[..., 0] > 0).long(), 2) > LEARNABLE).all()
    assert (explained(X, torch.zeros_like(Y), 2) == 0).all()
    noise = 0.1 * torch.randn(100, 400, 1, generator=generator())
    assert (explained(X, X[..., :1] + noise, 0) > LEARNABLE).all()


def mean_distance(moved: float) -> float:
    """Returns how far test inputs are from training inputs, in standard deviations."""
    family = Tables(train_points=(200, 200), test_points=200, features=(5, 5), moved=moved)
    task = family.sample(40, generator())
    known = task.X_tr.nan_to_num()
    apart = task.X_te.nan_to_num().mean(dim=1) - known.mean(dim=1)
    return (apart / known.std(dim=1).clamp(min=1e-3)).abs().amax(dim=1).median().item()


def test_inputs_move_where_they_should() -> None:
    assert mean_distance(0.0) < 0.25
    assert mean_distance(1.0) > 0.5


def test_features_are_of_many_kinds() -> None:
    X = disguise(Draws(generator()), torch.randn(200, 100, 6, generator=generator()))
    values = torch.tensor([len(column.unique()) for table in X for column in table.T])
    missing = X.isnan().any(dim=1)
    assert (values == 2).float().mean() > 0.02  # yes and no
    assert ((values > 2) & (values <= 12)).float().mean() > 0.05  # categories
    assert (values > 50).float().mean() > 0.4
    assert 0.05 < missing.float().mean() < 0.4
    assert not X.isinf().any()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"classes": 1}, "classes must be 0, or from 2 to 20, got 1"),
        ({"moved": 1.5}, "moved must be from 0 to 1, got 1.5"),
        ({"features": (5, 2)}, "features must be a range from at least 2 to as many or more"),
        ({"train_points": (1, 9)}, "train_points must be a range from at least 2"),
        ({"test_points": 0}, "test_points must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Tables(**fields)
