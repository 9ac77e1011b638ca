from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neural_complexity.model.architecture import Architecture
from neural_complexity.model.attention import SelfAttention, SetNetwork, attend, soft_k_means
from neural_complexity.seeding import stream


@pytest.mark.parametrize("scale_by_width", [False, True])
def test_it_is_softmax_attention_head_by_head(scale_by_width: bool) -> None:
    Q, K, V = torch.randn(2, 6, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 8)
    mixed = []
    for head in (slice(0, 4), slice(4, 8)):
        scores = Q[..., head] @ K[..., head].mT / (8 if scale_by_width else 4) ** 0.5
        mixed.append(scores.softmax(dim=-1) @ V[..., head])
    expected = torch.cat(mixed, dim=-1)
    torch.testing.assert_close(attend(Q, K, V, heads=2, by_width=scale_by_width), expected)


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
    found = attend(Q, K, V, heads=2, by_width=scale_by_width, metric=True)
    torch.testing.assert_close(found, torch.cat(mixed, dim=-1))


def test_attention_by_distance_depends_on_distances_alone() -> None:
    Q, K, V, shift = torch.randn(2, 6, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 8), torch.ones(8)
    here = attend(Q, K, V, heads=2, metric=True)
    there = attend(Q + shift, K + shift, V, heads=2, metric=True)
    torch.testing.assert_close(here, there)
    # Products do not.
    assert not torch.allclose(attend(Q, K, V, heads=2), attend(Q + shift, K + shift, V, heads=2))


def test_attention_by_distance_has_the_right_gradient() -> None:
    sets = [torch.randn(1, points, 4, requires_grad=True) for points in (2, 3, 3)]
    assert torch.autograd.gradcheck(lambda Q, K, V: attend(Q, K, V, heads=2, metric=True), sets)


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


def make(
    decoder_layers: int, *, outputs: int = 3, query_skip: bool = False, pool_first: bool = False
) -> SetNetwork:
    return build(
        heads=1,
        outputs=outputs,
        decoder_layers=decoder_layers,
        query_skip=query_skip,
        pool_first=pool_first,
        scale_by_width=True,
    )


def build(*, targets: int = 1, outputs: int = 3, **options: Any) -> SetNetwork:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "width": 8,
        "heads": 2,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "query_skip": False,
        "pool_first": False,
        "scale_by_width": False,
    }
    architecture = Architecture(inputs=2, outputs=targets, **{**settings, **options})
    return SetNetwork(2, targets, outputs, architecture)


def stir(network: nn.Module) -> None:
    """Moves all weights away from where they start, zeros above all."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))


def by_distance(Q: Tensor, K: Tensor, scale_by_width: bool = False) -> list[Tensor]:
    """How the queries share their attention among keys, (B, N, M) for each of two heads."""
    scale = (8 if scale_by_width else 4) ** -0.5
    cut = ((Q[..., head], K[..., head]) for head in (slice(0, 4), slice(4, 8)))
    squares = ((q.unsqueeze(2) - k.unsqueeze(1)).square().sum(dim=-1) for q, k in cut)
    return [(-0.5 * scale * square).softmax(dim=-1) for square in squares]


@pytest.mark.parametrize("pool_first", [False, True])
@pytest.mark.parametrize("query_skip", [False, True])
@pytest.mark.parametrize(("decoder_layers", "outputs"), [(1, 3), (1, 20), (2, 3), (3, 3)])
def test_the_network_is_encoder_attention_decoder_as_in_the_paper(
    decoder_layers: int, outputs: int, query_skip: bool, pool_first: bool
) -> None:
    """Section 3.3 written out: Q = e_te, K = e_tr, V = [e_tr, y_tr], one head."""
    net = make(decoder_layers, outputs=outputs, query_skip=query_skip, pool_first=pool_first)
    F_tr, Y_tr, F_te = torch.randn(4, 5, 2), torch.randn(4, 5, 1), torch.randn(4, 6, 2)
    e_tr, e_te = net.encoder(F_tr), net.encoder(F_te)
    W_k, W_v = net.on_train.weight.chunk(2)
    W_v = torch.cat([W_v, net.on_targets.weight], dim=1)  # on [e_tr, y_tr]
    W_q, W_own = net.on_test.weight[:8], net.on_test.weight[8:]
    Q, K, V = e_te @ W_q.T, e_tr @ W_k.T, torch.cat([e_tr, Y_tr], dim=-1) @ W_v.T
    e_att = (Q @ K.mT / 8**0.5).softmax(dim=-1) @ V
    first = net.on_attention(e_att) + (e_te @ W_own.T if query_skip else 0)
    if pool_first:
        first = first.mean(dim=1, keepdim=True).expand_as(first).clone()
    torch.testing.assert_close(net(F_tr, Y_tr, F_te), net.decoder(first))


@pytest.mark.parametrize("decoder_layers", [1, 2, 3])
def test_the_decoder_has_as_many_linear_layers_as_asked_for(decoder_layers: int) -> None:
    net = make(decoder_layers)
    later = [layer for layer in net.decoder if isinstance(layer, torch.nn.Linear)]
    assert 1 + len(later) == decoder_layers
    assert [net.on_attention, *later][-1].out_features == 3


def test_the_names_of_the_weights_stay_as_they_are_in_saved_files() -> None:
    first = {"on_train.weight", "on_targets.weight", "on_test.weight"}
    first |= {"on_attention.weight", "on_attention.bias"}
    later = {1: set[str](), 2: {"decoder.1"}, 3: {"decoder.1", "decoder.3"}}
    for decoder_layers, layers in later.items():
        names = {name for name in make(decoder_layers).state_dict() if "encoder" not in name}
        parts = {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
        assert names == first | parts


F_TR, F_TE = (
    torch.randn(2, points, 2, dtype=torch.float64, generator=stream(points, "features"))
    for points in (5, 6)
)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("targets", [1, 3])
def test_each_entry_of_a_target_acts_by_a_matrix_of_its_own(targets: int, bias: bool) -> None:
    """Eq. (9) written out: V = [1, y] W e."""
    net = build(targets=targets, heads=1, bilinear=True, bias=bias)
    T_tr = torch.randn(2, 5, targets)
    e_tr, e_te = net.encoder(F_TR), net.encoder(F_TE)
    W = net.on_targets.weight.view(targets, 8, 8)
    W_k, W_1 = net.on_train.weight[:8], net.on_train.weight[8:]
    assert len(W_1) == (8 if bias else 0)
    V = torch.zeros(2, 5, 8)
    for b in range(2):
        for m in range(5):
            for c in range(targets):
                V[b, m] += T_tr[b, m, c] * (W[c] @ e_tr[b, m])
            if bias:
                V[b, m] += W_1 @ e_tr[b, m]
    shares = (e_te @ net.on_test.weight.T @ (e_tr @ W_k.T).mT / 8**0.5).softmax(dim=-1)
    torch.testing.assert_close(net(F_TR, T_tr, F_TE), net.decoder(net.on_attention(shares @ V)))


@pytest.mark.parametrize("scale_by_width", [False, True])
@pytest.mark.parametrize("rounds", [0, 2])
def test_a_metric_compares_queries_and_keys_in_one_space(rounds: int, scale_by_width: bool) -> None:
    net = build(metric=True, rounds=rounds, scale_by_width=scale_by_width)
    T_tr = torch.randn(2, 5, 1)
    e_tr, e_te = net.encoder(F_TR), net.encoder(F_TE)
    Q, K = e_te @ net.on_test.weight.T, e_tr @ net.on_test.weight.T
    if rounds:
        K = soft_k_means(Q, K, heads=2, rounds=rounds, by_width=scale_by_width)
    V = e_tr @ net.on_train.weight.T + T_tr @ net.on_targets.weight.T
    shares = by_distance(Q, K, scale_by_width)
    mixed = torch.cat([shares[0] @ V[..., :4], shares[1] @ V[..., 4:]], dim=-1)
    torch.testing.assert_close(net(F_TR, T_tr, F_TE), net.decoder(net.on_attention(mixed)))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bilinear": True},
        {"bilinear": True, "bias": False, "query_skip": True},
        {"decoder_layers": 1, "query_skip": True},
        {"pool_first": True, "query_skip": True, "bilinear": True},
        {"self_layers": 2},
        {"metric": True, "rounds": 2, "vote": True, "bilinear": True, "query_skip": True},
    ],
)
def test_groups_of_targets_are_asked_about_one_by_one(options: dict[str, Any]) -> None:
    targets = 1 if options.get("vote") else 2
    net = build(targets=targets, outputs=1, **options)
    stir(net)
    T_tr = torch.randn(2, 5, 4, targets)
    if options.get("vote"):
        T_tr = T_tr.softmax(dim=2)
    found = net(F_TR, T_tr, F_TE)
    for group in range(4):
        alone = net(F_TR, T_tr[:, :, group], F_TE)
        torch.testing.assert_close(found[:, :, group], alone)


def test_self_attention_lets_training_points_see_each_other() -> None:
    net = build(self_layers=1)
    T_tr = torch.zeros(2, 5, 1)
    other = F_TR.clone()
    other[:, 0] += 1
    e, moved = (net.self_attention(net.encoder(F)) for F in (F_TR, other))
    assert (e - moved)[:, 1:].abs().min() > 0
    order = torch.tensor([4, 2, 0, 1, 3])
    torch.testing.assert_close(net(F_TR[:, order], T_tr, F_TE), net(F_TR, T_tr, F_TE))


@pytest.mark.parametrize("option", [{"rounds": 1}, {"vote": True}])
def test_rounds_and_votes_need_a_metric(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="metric must be on for rounds and vote, got it off"):
        build(**option)


def seeing(features: int = 6, **options: Any) -> SetNetwork:
    """Attends to points by their first two features."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {"width": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 2}
    settings |= {"query_skip": True, "pool_first": False, "scale_by_width": False}
    settings |= {"metric": True, "rounds": 2, "bilinear": True}
    own = options.pop("compared", 2)
    architecture = Architecture(inputs=2, outputs=3, **{**settings, **options})
    return SetNetwork(features, 3, 1, architecture, compared=own)


def watch_attention(net: SetNetwork, *sets: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Returns what a network answers, and the queries and keys that it attends with."""
    seen = []
    attend = net._attend

    def see(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        seen.append((Q, K))
        return attend(Q, K, V)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(net, "_attend", see)
        return net(*sets), seen


def with_h(F: Tensor, H: Tensor) -> Tensor:
    return torch.cat([F, H], dim=-1)


@pytest.mark.parametrize("rounds", [0, 2])
def test_with_features_of_its_own_attention_does_not_see_the_others(rounds: int) -> None:
    net = seeing(rounds=rounds)
    T_tr = torch.randn(2, 5, 3)
    H_tr, H_te = torch.randn(2, 2, 5, 4), torch.randn(2, 2, 6, 4)  # what two h say
    found = []
    for h in (0, 1):
        F_tr, F_te = with_h(F_TR, H_tr[h]), with_h(F_TE, H_te[h])
        found.append(watch_attention(net, F_tr, T_tr, F_te))
        assert torch.equal(net.place(F_te), net.place(with_h(F_TE, H_te[0])))
    (answers, [(Q, K)]), (others, [(same_Q, same_K)]) = found
    assert torch.equal(Q, same_Q)
    assert torch.equal(K, same_K)
    assert not torch.allclose(answers, others)  # h changes the values and the decoder's view
    # Made from all features, it does.
    whole = seeing(rounds=rounds, compared=0)
    (_, [(Q, K)]), (_, [(other_Q, other_K)]) = (
        watch_attention(whole, with_h(F_TR, H_tr[h]), T_tr, with_h(F_TE, H_te[h])) for h in (0, 1)
    )
    assert not torch.allclose(Q, other_Q)
    assert not torch.allclose(K, other_K)


@pytest.mark.parametrize("compared", [0, 2])
@pytest.mark.parametrize("query_skip", [False, True])
def test_a_points_place_is_its_query_and_before_any_round_its_key(
    compared: int, query_skip: bool
) -> None:
    F_tr, F_te = torch.randn(2, 5, 6), torch.randn(2, 7, 6)
    for rounds in (0, 2):
        net = seeing(compared=compared, query_skip=query_skip, rounds=rounds)
        _, [(Q, K)] = watch_attention(net, F_tr, torch.randn(2, 5, 3), F_te)
        torch.testing.assert_close(net.place(F_te), Q)
        start = net.place(F_tr)
        torch.testing.assert_close(soft_k_means(Q, start, heads=2, rounds=rounds), K)
        assert torch.allclose(start, K) == (rounds == 0)


def test_without_attention_by_distance_there_are_no_layers_for_it() -> None:
    assert not seeing(metric=False, rounds=0).metric_layers
    assert not seeing(compared=0).metric_layers
    with pytest.raises(AssertionError, match="only attention by distance has such a space"):
        seeing(metric=False, rounds=0).place(torch.randn(2, 6))
