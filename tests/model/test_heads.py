import torch

from neural_complexity.model.heads import SetNetwork


def test_the_network_is_encoder_attention_decoder_as_in_the_paper() -> None:
    """Section 3.3 written out: Q = e_te, K = e_tr, V = [e_tr, y_tr], one head."""
    torch.manual_seed(0)
    net = SetNetwork(
        2,
        1,
        3,
        width=8,
        heads=1,
        encoder_layers=2,
        decoder_layers=2,
        query_skip=False,
        pool_first=False,
        scale_by_width=True,
    )
    F_tr, Y_tr, F_te = torch.randn(4, 5, 2), torch.randn(4, 5, 1), torch.randn(4, 6, 2)
    e_tr, e_te = net.encoder(F_tr), net.encoder(F_te)
    W_k, W_v = net.on_train.weight.chunk(2)
    W_v = torch.cat([W_v, net.on_targets.weight], dim=1)  # on [e_tr, y_tr]
    Q, K, V = net.on_test(e_te), e_tr @ W_k.T, torch.cat([e_tr, Y_tr], dim=-1) @ W_v.T
    e_att = (Q @ K.mT / 8**0.5).softmax(dim=-1) @ V
    out = net.decoder(net.on_attention(e_att))
    torch.testing.assert_close(net(F_tr, Y_tr, F_te), out)
