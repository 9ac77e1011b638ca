import pytest
import torch
from torch import Tensor, nn

from neural_complexity.beliefs import Categorical, Gaussian
from neural_complexity.model.architecture import Architecture
from neural_complexity.model.attention import soft_k_means
from neural_complexity.model.heads import Sets
from neural_complexity.model.heads.posterior import PosteriorHead


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


@pytest.mark.parametrize("query_skip", [False, True])
@pytest.mark.parametrize("decoder_layers", [1, 2])
@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("scale_by_width", [False, True])
def test_at_first_a_belief_is_the_attention_on_each_class_multiplied_over_heads(
    query_skip: bool, decoder_layers: int, rounds: int, symmetric: bool, scale_by_width: bool
) -> None:
    C = 3
    F_tr, F_te = torch.randn(2, 5, 2), torch.randn(2, 6, 2)
    torch.manual_seed(0)
    architecture = Architecture(
        inputs=2,
        outputs=C,
        loss="cross_entropy",
        symmetric=symmetric,
        width=8,
        heads=2,
        encoder_layers=2,
        metric=True,
        vote=True,
        rounds=rounds,
        query_skip=query_skip,
        decoder_layers=decoder_layers,
        scale_by_width=scale_by_width,
    )
    head = PosteriorHead(architecture, 2)
    net = head.network
    Y_tr = torch.tensor([[0, 1, 2, 0, 1], [2, 2, 1, 0, 0]])
    T_tr = torch.nn.functional.one_hot(Y_tr).double()
    sets = Sets(F_tr, T_tr, F_te, Y_tr, torch.zeros(C), torch.ones(C))
    W = net.on_test.weight[:8]
    Q, K = net.encoder(F_te) @ W.T, net.encoder(F_tr) @ W.T
    K = soft_k_means(Q, K, heads=2, rounds=rounds, by_width=scale_by_width)
    first, second = by_distance(Q, K, scale_by_width)
    votes = (first @ T_tr) * (second @ T_tr)
    belief = head.encode(sets)
    assert isinstance(belief, Categorical)
    torch.testing.assert_close(belief.probabilities, votes / votes.sum(dim=-1, keepdim=True))
    # Later the decoder corrects them.
    stir(net)
    later = head.encode(sets)
    assert isinstance(later, Categorical)
    assert not torch.allclose(later.probabilities, belief.probabilities)


def test_a_belief_is_in_the_units_of_the_targets() -> None:
    head = PosteriorHead(Architecture(inputs=2, outputs=1, width=8, heads=2), 2)
    X_tr, Y_tr, X_te = torch.randn(2, 5, 2), torch.randn(2, 5, 1), torch.randn(2, 6, 2)
    plain, moved = (
        head.encode(Sets(X_tr, Y_tr, X_te, Y_tr, torch.tensor([mean]), torch.tensor([scale])))
        for mean, scale in ((0.0, 1.0), (3.0, 2.0))
    )
    assert isinstance(plain, Gaussian)
    assert isinstance(moved, Gaussian)
    torch.testing.assert_close(moved.mean, 2 * plain.mean + 3)
    torch.testing.assert_close(moved.variance, 4 * plain.variance)
    assert head.belief(plain) is plain
    parts = [plain.map(lambda t: t[:, :2]), plain.map(lambda t: t[:, 2:])]
    whole = parts[0].join(parts, dim=1)
    assert isinstance(whole, Gaussian)
    assert torch.equal(whole.mean, plain.mean)
