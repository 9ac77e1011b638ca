import torch

from neural_complexity.losses import cross_entropy
from neural_complexity.model.architecture import Architecture
from neural_complexity.model.heads import Sets
from neural_complexity.model.heads.direct import DirectHead


def test_the_symmetric_direct_head_adds_up_what_it_answers_for_each_class() -> None:
    architecture = Architecture(
        inputs=2, outputs=3, head="direct", loss="cross_entropy", symmetric=True, width=8, heads=2
    )
    head = DirectHead(architecture, 2)
    X_tr, X_te = torch.randn(2, 5, 2), torch.randn(2, 6, 2)
    Y_tr, H_tr, H_te = torch.randint(3, (2, 5)), torch.randn(2, 5, 3), torch.randn(2, 6, 3)
    T_tr = torch.nn.functional.one_hot(Y_tr, 3).double()
    found = head.losses(Sets(X_tr, T_tr, X_te, Y_tr, torch.zeros(3), torch.ones(3)), H_tr, H_te)
    total = torch.zeros(2, 6)
    S_tr, S_te = cross_entropy.features(H_tr), cross_entropy.features(H_te)
    for c in range(3):
        F_tr = torch.cat([X_tr, S_tr[:, :, c]], dim=-1)
        F_te = torch.cat([X_te, S_te[:, :, c]], dim=-1)
        total += head.network(F_tr, T_tr[:, :, c, None], F_te).squeeze(-1)
    torch.testing.assert_close(found, cross_entropy.positive(total))


def test_votes_stand_beside_what_h_says_of_each_class() -> None:
    architecture = Architecture(
        inputs=2, outputs=3, head="direct", loss="cross_entropy", metric=True, vote=True, width=8
    )
    head = DirectHead(architecture, 2)
    X_tr, X_te = torch.randn(2, 5, 2), torch.randn(2, 6, 2)
    Y_tr, H_tr, H_te = torch.randint(3, (2, 5)), torch.randn(2, 5, 3), torch.randn(2, 6, 3)
    T_tr = torch.nn.functional.one_hot(Y_tr, 3).double()
    found = head.losses(Sets(X_tr, T_tr, X_te, Y_tr, torch.zeros(3), torch.ones(3)), H_tr, H_te)
    p_te = head.network.votes(X_tr, T_tr, X_te).softmax(dim=-1)
    F = []
    for X, H, p in ((X_tr, H_tr, T_tr), (X_te, H_te, p_te)):
        cost = -p * H.log_softmax(dim=-1)
        own = torch.cat([cross_entropy.features(H), cost.unsqueeze(-1)], dim=-1)
        F.append(torch.cat([X, own.flatten(2)], dim=-1))
    answer = head.network(F[0], T_tr, F[1]).squeeze(-1)
    torch.testing.assert_close(found, cross_entropy.positive(answer))


def test_votes_go_to_the_labels_of_what_is_alike_and_teach_the_distance() -> None:
    architecture = Architecture(
        inputs=2, outputs=3, head="direct", loss="cross_entropy", metric=True, vote=True
    )
    head = DirectHead(architecture, 2)
    X_tr, T_tr = torch.randn(2, 3, 2), torch.eye(3).expand(2, 3, 3)
    p = head.network.votes(X_tr, T_tr, X_tr).softmax(dim=-1)
    assert torch.equal(p.argmax(dim=-1), torch.arange(3).expand(2, 3))
    assert p.diagonal(dim1=1, dim2=2).mean() > 0.37  # neither the same for all at first ...
    Y_tr, H = torch.arange(3).expand(2, 3), torch.randn(2, 3, 3)
    sets = Sets(X_tr, T_tr, X_tr + 0.3 * torch.randn(2, 3, 2), Y_tr, torch.zeros(3), torch.ones(3))
    parameters = list(head.network.metric_layers.parameters())
    gradients = torch.autograd.grad(head.losses(sets, H, H).sum(), parameters)
    # ... nor all on one of them, which would have no gradient.
    assert max(gradient.abs().max() for gradient in gradients) > 1e-4


def test_it_has_no_belief() -> None:
    head = DirectHead(Architecture(inputs=2, outputs=1, head="direct", width=8, heads=2), 2)
    X_tr, Y_tr, X_te = torch.randn(2, 5, 2), torch.randn(2, 5, 1), torch.randn(2, 6, 2)
    state = head.encode(Sets(X_tr, Y_tr, X_te, Y_tr, torch.zeros(1), torch.ones(1)))
    assert head.belief(state) is None
    assert head.supervise(state, torch.randn(2, 6, 1)) is None
