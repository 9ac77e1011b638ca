import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neural_complexity.tasks.mechanisms import MECHANISMS, Draws, standardized

every = pytest.mark.parametrize("name", MECHANISMS)


def draws(seed: int = 0) -> Draws:
    return Draws(torch.Generator().manual_seed(seed))


@every
@settings(max_examples=10)
@given(st.integers(1, 3), st.integers(4, 40), st.integers(1, 70), st.integers(1, 10))
def test_tables_are_of_the_size_asked_for_and_finite(
    name: str, B: int, P: int, D: int, S: int
) -> None:
    X, scores = MECHANISMS[name](draws(), B, P, D, S)
    assert X.shape == (B, P, D)
    assert scores.shape == (B, P, S)
    assert X.isfinite().all()
    assert scores.isfinite().all()


@every
def test_scores_are_standardized_and_differ(name: str) -> None:
    _, scores = MECHANISMS[name](draws(), 20, 200, 5, 3)
    assert scores.mean(dim=1).abs().max() < 1e-4
    spread = scores.square().mean(dim=1)
    assert ((spread - 1).abs() < 1e-3).float().mean() > 0.9  # others are constant
    assert not torch.allclose(scores[..., 0], scores[..., 1])


@every
def test_a_seed_says_everything(name: str) -> None:
    first, again, other = (MECHANISMS[name](draws(seed), 2, 30, 4, 2) for seed in (3, 3, 4))
    for a, b, c in zip(first, again, other, strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


@every
def test_scores_depend_on_features(name: str) -> None:
    """Near rows have scores that are nearer than those of any two rows."""
    X, scores = MECHANISMS[name](draws(), 40, 300, 4, 1)
    apart = torch.cdist(X, X).diagonal_scatter(torch.full((40, 300), torch.inf), dim1=1, dim2=2)
    nearest = apart.argmin(dim=2)
    near = (scores.squeeze(-1) - scores.squeeze(-1).gather(1, nearest)).square().mean(dim=1)
    # Of rows without relation it is 2, give or take a tenth.
    assert (near < 1.7).float().mean() > 0.5
    assert near.min() < 0.5


def test_a_constant_column_is_zero() -> None:
    X = torch.stack([torch.ones(5), torch.arange(5.0)], dim=-1)[None]
    Z = standardized(X)
    assert Z[..., 0].eq(0).all()
    assert Z[..., 1].square().mean().item() == pytest.approx(1)


def test_draws_are_what_they_say() -> None:
    d = draws()
    uniform = d.uniform(10_000, low=-1, high=3)
    assert -1 <= uniform.min() < -0.99
    assert 2.99 < uniform.max() <= 3
    spread = d.spread(0.1, 10, 10_000)
    assert spread.log().mean().abs() < 0.05
    assert d.index(5, 1000).unique().tolist() == [0, 1, 2, 3, 4]
    assert d.happens(0.2, 10_000).float().mean().item() == pytest.approx(0.2, abs=0.02)
    weights = torch.tensor([0.7, 0.2, 0.1])
    chosen = (weights.log() + d.gumbel(20_000, 3)).argmax(dim=-1).bincount() / 20_000
    torch.testing.assert_close(chosen, weights, atol=0.02, rtol=0)
    assert d.order(7, 5).sort(dim=-1).values.eq(torch.arange(5)).all()
