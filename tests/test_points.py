import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from neural_complexity.points import (
    Embeddings,
    Points,
    find,
    indexed,
    join,
    map_inputs,
    raw,
    restore,
    values,
)

TABLE = torch.arange(40, dtype=torch.float64).view(20, 2)


def store(indices: Tensor) -> Tensor:
    return TABLE[indices]


def points(B: int, n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return indexed(torch.randint(20, (B, n), generator=generator), store)


@given(B=st.integers(1, 4), n=st.integers(1, 6), seed=st.integers(0, 99), part=st.integers(1, 30))
def test_mapping_points_is_mapping_their_values(B: int, n: int, seed: int, part: int) -> None:
    X, Z = points(B, n, seed), points(B, n + 1, seed + 1)
    seen: list[int] = []

    def embed(X: Tensor) -> Tensor:
        seen.append(len(X))
        return X.square().sum(dim=-1, keepdim=True)

    for size in (part, None):
        seen.clear()
        E, F = map_inputs(embed, X, Z, part=size)
        torch.testing.assert_close(E, embed(values(X)))
        torch.testing.assert_close(F, embed(values(Z)))
        distinct = torch.cat([raw(X), raw(Z)], dim=1).unique()
        assert sum(seen[:-2]) == len(distinct)  # each input once


def test_points_are_cut_and_joined_as_their_values_are() -> None:
    X = points(3, 5)
    for key in (slice(0, 2), torch.tensor([2, 0]), (slice(None), slice(1, 3))):
        assert torch.equal(values(X[key]), values(X)[key])
    both = join([X, points(3, 2, seed=1)], dim=1)
    assert torch.equal(values(both)[:, :5], values(X))
    assert torch.equal(values(restore(raw(X), X)), values(X))
    plain = torch.zeros(2, 3, 1)
    assert values(plain) is raw(plain) is restore(plain, plain)
    assert isinstance(X, Points)
    assert (X.shape, len(X), X.to("cpu").device.type) == ((3, 5), 3, "cpu")


def test_embeddings_are_found_by_index_and_missing_ones_are_told() -> None:
    table = Embeddings(torch.tensor([2, 5, 9]), torch.tensor([[1.0], [2.0], [3.0]]))
    assert table(torch.tensor([[9, 2], [5, 9]]))[..., 0].tolist() == [[3, 1], [2, 3]]
    rows = torch.tensor([[1, 4], [2, 3]])
    assert find(rows, torch.tensor([[4], [2]])).tolist() == [[1], [0]]
    for missing in (0, 4, 10):
        with pytest.raises(ValueError, match=f"among the 3 that are known, got others: .{missing}"):
            table(torch.tensor([5, missing]))
