import pytest
import torch

from neural_complexity.model.attention import SelfAttention, attend, soft_k_means


@pytest.mark.parametrize("scale_by_width", [False, True])
def test_it_is_softmax_attention_head_by_head(scale_by_width: bool) -> None:
    Q, K, V = torch.randn(2, 6, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 8)
    mixed = []
    for head in (slice(0, 4), slice(4, 8)):
        scores = Q[..., head] @ K[..., head].mT / (8 if scale_by_width else 4) ** 0.5
        mixed.append(scores.softmax(dim=-1) @ V[..., head])
    expected = torch.cat(mixed, dim=-1)
    torch.testing.assert_close(attend(Q, K, V, heads=2, scale_by_width=scale_by_width), expected)


@pytest.mark.parametrize("scale_by_width", [False, True])
@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_by_distance_near_keys_count_most(scale_by_width: bool, spread: float) -> None:
    Q, K, V = torch.randn(2, 6, 8), spread * torch.randn(2, 7, 8), torch.randn(2, 7, 4)
    mixed = []
    for head in range(2):
        q, k = Q[..., 4 * head : 4 * head + 4], K[..., 4 * head : 4 * head + 4]
        square = (q.unsqueeze(2) - k.unsqueeze(1)).square().sum(dim=-1)  # (2, 6, 7)
        shares = (-0.5 * square / (8 if scale_by_width else 4) ** 0.5).softmax(dim=-1)
        mixed.append(shares @ V[..., 2 * head : 2 * head + 2])
    found = attend(Q, K, V, heads=2, scale_by_width=scale_by_width, by_distance=True)
    torch.testing.assert_close(found, torch.cat(mixed, dim=-1))


def test_attention_by_distance_depends_on_distances_alone() -> None:
    Q, K, V, shift = torch.randn(2, 6, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 8), torch.ones(8)
    here = attend(Q, K, V, heads=2, by_distance=True)
    there = attend(Q + shift, K + shift, V, heads=2, by_distance=True)
    torch.testing.assert_close(here, there)
    # Products do not.
    assert not torch.allclose(attend(Q, K, V, heads=2), attend(Q + shift, K + shift, V, heads=2))


def test_attention_by_distance_has_the_right_gradient() -> None:
    sets = [torch.randn(1, points, 4, requires_grad=True) for points in (2, 3, 3)]
    assert torch.autograd.gradcheck(
        lambda Q, K, V: attend(Q, K, V, heads=2, by_distance=True), sets
    )


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_soft_k_meansing_is_soft_k_means(rounds: int) -> None:
    Q, K = torch.randn(2, 6, 8), torch.randn(2, 3, 8)
    found = soft_k_means(Q, K, heads=2, rounds=rounds)
    for b in range(2):
        keys = K[b].clone()
        for _ in range(rounds):
            # The product over heads of exp(-|q - k|^2 / 2 / root of the width of a head).
            likely = torch.stack([(-0.5 * (q - keys).square().sum(dim=1) / 2).exp() for q in Q[b]])
            share = likely / likely.sum(dim=1, keepdim=True)  # (6, 3)
            for m in range(3):
                moved = K[b, m] + sum(share[n, m] * Q[b, n] for n in range(6))
                keys[m] = moved / (1 + share[:, m].sum())
        torch.testing.assert_close(found[b], keys)


def test_soft_k_meansing_moves_keys_into_their_own_clusters() -> None:
    centres = torch.tensor([[10.0, 0.0], [-10.0, 0.0], [0.0, 10.0]])
    Q = centres.repeat(200, 1)[None] + 0.3 * torch.randn(1, 600, 2)
    K = centres[None] + 2 * torch.randn(1, 3, 2)
    before, after = (
        (keys - centres).norm(dim=-1) for keys in (K, soft_k_means(Q, K, heads=1, rounds=3))
    )
    assert (after < 0.1).all()
    assert (before > after).all()


def test_self_attention_adds_what_each_point_sees_whatever_the_order() -> None:
    layer, e = SelfAttention(8, 2), torch.randn(2, 5, 8)
    W_q, W_k, W_v = layer.inwards.weight.chunk(3)
    seen = layer.norm(e)
    expected = e + layer.outwards(attend(seen @ W_q.T, seen @ W_k.T, seen @ W_v.T, heads=2))
    torch.testing.assert_close(layer(e), expected)
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(layer(e[:, order]), layer(e)[:, order])
    assert not torch.allclose(layer(e[:, :4]), layer(e)[:, :4])
