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


def test_it_has_no_belief() -> None:
    head = DirectHead(Architecture(inputs=2, outputs=1, head="direct", width=8, heads=2), 2)
    X_tr, Y_tr, X_te = torch.randn(2, 5, 2), torch.randn(2, 5, 1), torch.randn(2, 6, 2)
    state = head.encode(Sets(X_tr, Y_tr, X_te, Y_tr, torch.zeros(1), torch.ones(1)))
    assert head.belief(state) is None
    assert head.supervise(state, torch.randn(2, 6, 1)) is None
