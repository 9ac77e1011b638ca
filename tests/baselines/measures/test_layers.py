from functools import partial

import pytest
import torch
from torch import Tensor, nn

from measured import classes_of_points, classifiers, linear
from neural_complexity.baselines.measures.layers import (
    displacement,
    evaluated,
    inputs_of,
    labels,
    logits,
    matrices,
    safe_log,
    squared_norm,
    weights,
)
from neural_complexity.learners.batched import stack
from neural_complexity.learners.networks import image_cnn, mlp
from neural_complexity.seeding import stream
from neural_complexity.task import Task


class Bare(nn.Module):
    """A weight that no module of its own applies, and one that is not applied at all."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(2))
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


def test_evaluated_learners_have_no_noise_and_no_gradients() -> None:
    h = stack(partial(mlp, 2, (8,), 2, noise=lambda _: nn.Dropout(0.5)), 3, stream(0, "h"))
    X, learner = torch.randn(3, 4, 2), evaluated(h)
    assert torch.equal(learner(X), learner(X))
    assert not torch.equal(h(X), h(X))
    assert not learner(X).requires_grad


def test_matrices_are_those_of_layers_in_order() -> None:
    h = stack(partial(image_cnn, (2, 4, 4), (3,), 5), 2, stream(0, "h"))
    found = matrices(h)
    assert [tuple(W.shape) for W in found.values()] == [(2, 3, 18), (2, 5, 12)]
    assert torch.equal(found["0.weight"][1, 2], h.state()["0.weight"][1, 2].flatten())
    assert list(weights(h)) == ["0.weight", "0.bias", "3.weight", "3.bias"]


def test_networks_without_matrices_are_refused() -> None:
    h = stack(partial(nn.LayerNorm, 2), 2, stream(0, "h"))
    with pytest.raises(ValueError, match="h must have a layer with a matrix of weights, got none"):
        matrices(h)


def test_displacement_is_the_difference_of_like_networks() -> None:
    h, initial = linear(torch.full((1, 2, 2), 3.0)), linear(torch.ones(1, 2, 2))
    assert squared_norm(displacement(h, initial)).tolist() == [16.0]
    with pytest.raises(ValueError, match="initial must have parameters of the shapes of those of"):
        displacement(h, linear(torch.ones(1, 2, 3)))


def test_what_enters_a_layer_is_what_those_before_it_made() -> None:
    h = stack(partial(mlp, 3, (4, 5), 2), 2, stream(0, "h"))
    X, state = torch.randn(2, 6, 3), h.state()
    assert torch.equal(inputs_of(evaluated(h), "0.weight", X), X)
    hidden = (X @ state["0.weight"].mT + state["0.bias"].unsqueeze(1)).relu()
    hidden = (hidden @ state["2.weight"].mT + state["2.bias"].unsqueeze(1)).relu()
    torch.testing.assert_close(inputs_of(evaluated(h), "4.weight", X), hidden)


def test_images_enter_as_vectors() -> None:
    h = stack(partial(image_cnn, (2, 4, 4), (3,), 5), 2, stream(0, "h"))
    assert inputs_of(evaluated(h), "0.weight", torch.randn(2, 6, 2, 4, 4)).shape == (2, 6, 32)


def test_a_layer_that_is_not_called_has_no_inputs() -> None:
    h = stack(Bare, 2, stream(0, "h"))
    with pytest.raises(ValueError, match="layers must be called as modules, got Linear"):
        inputs_of(evaluated(h), "unused.weight", torch.randn(2, 3, 2))


def test_logits_are_of_two_classes_or_more() -> None:
    task = classes_of_points(C=2)
    h, _ = classifiers(task)
    assert logits(evaluated(h), task).shape == (3, 20, 2)
    with pytest.raises(ValueError, match="a logit for each of 2 classes or more, got 1"):
        logits(evaluated(linear(torch.ones(3, 1, 4))), task)


@pytest.mark.parametrize("Y", [torch.tensor([[0, -1]]), torch.tensor([[0.0, 1.0]]).unsqueeze(-1)])
def test_other_targets_are_no_labels(Y: Tensor) -> None:
    X = torch.zeros(1, 2, 1)
    with pytest.raises(ValueError, match="training targets must be labels 0, 1, ... of type"):
        labels(Task(X, Y, X, Y))


def test_logarithms_are_finite() -> None:
    assert safe_log(torch.tensor([0.0, 1.0])).isfinite().all()
