import pytest
import torch

from neural_complexity.model.heads import SetNetwork


def make(
    decoder_layers: int, *, outputs: int = 3, query_skip: bool = False, pool_first: bool = False
) -> SetNetwork:
    torch.manual_seed(0)
    return SetNetwork(
        2,
        1,
        outputs,
        width=8,
        heads=1,
        encoder_layers=2,
        decoder_layers=decoder_layers,
        query_skip=query_skip,
        pool_first=pool_first,
        scale_by_width=True,
    )


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
