import torch
from torch import nn

from neural_complexity.learners.networks import mlp


def test_the_papers_learner_has_two_hidden_layers_of_forty() -> None:
    shapes = [tuple(p.shape) for p in mlp(1, (40, 40), 1).parameters()]
    assert shapes == [(40, 1), (40,), (40, 40), (40,), (1, 40), (1,)]


def test_without_hidden_layers_it_is_linear() -> None:
    net = mlp(3, (), 2, activation=nn.Tanh)
    a, b = torch.randn(1, 3), torch.randn(1, 3)
    zero = net(torch.zeros(1, 3))
    torch.testing.assert_close(net(a + b) - zero, net(a) + net(b) - 2 * zero)
