"""Closed forms, and the values of public code.

The reference values were computed by the code of Dziugaite et al. (2020, Apache 2.0, github.com/
nitarshan/robust-generalization-measures) for the networks and points of `waves`.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from measured import classes_of_points, linear
from neural_complexity.baselines.measures import norms
from neural_complexity.baselines.measures.catalogue import MEASURES
from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.learners.networks import mlp
from neural_complexity.task import Task

REFERENCE = {
    "inverse margin": 39948.9621526863,
    "spectral product": 3.5182257550,
    "spectral product over margin": 14.1135837272,
    "frobenius over spectral": 2.4809971806,
    "frobenius product": 3.9436755012,
    "frobenius product over margin": 14.5390334734,
    "frobenius distance": 34.3148612618,
    "spectral distance": 21.2078928576,
    "frobenius distance over spectral": 5.4223106727,
    "frobenius sum": 16.3983253682,
    "path norm": math.sqrt(21.6997477816),  # theirs is the square
    "path norm over margin": math.log(866882.4028507017),  # ours the logarithm
}


def wave(*shape: int, frequency: float) -> Tensor:
    return torch.sin(frequency * torch.arange(1.0, 1 + math.prod(shape))).view(shape)


def waves() -> tuple[BatchedLearner, BatchedLearner, Task]:
    """Returns one convolutional network, another in the place of its start, and points."""

    def network(frequency: float) -> BatchedLearner:
        net = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Conv2d(3, 3, 1), nn.Flatten())
        named = enumerate(net.named_parameters())
        state = {n: wave(*p.shape, frequency=frequency + i).unsqueeze(0) for i, (n, p) in named}
        return BatchedLearner(net, state)

    h, X = network(0.7), 2 * wave(1, 20, 2, 2, 2, frequency=1.3)
    Y = h(X).argmax(dim=-1)
    Y[0, 0] = (Y[0, 0] + 1) % 3
    return h, network(0.3), Task(X, Y, X, Y)


@pytest.mark.parametrize("name", REFERENCE)
def test_values_are_those_of_public_code(name: str) -> None:
    assert MEASURES[name](*waves()).item() == pytest.approx(REFERENCE[name])


# Singular values 3 and 4 of the first network, 1 and 5 of the second; they began as zero.
W = torch.tensor([[[0.0, 3.0], [-4.0, 0.0]], [[1.0, 0.0], [0.0, 5.0]]])
CLOSED: list[tuple[Callable[..., Tensor], list[float]]] = [
    (norms.parameters, [6, 6]),
    (norms.vc_dimension, [6 * math.log2(6)] * 2),
    (norms.parameter_norm, [25, 26]),
    (norms.distance_from_initialization, [5, math.sqrt(26)]),
    (norms.frobenius_sum, [25, 26]),
    (norms.frobenius_product, [math.log(25), math.log(26)]),
    (norms.frobenius_distance, [25, 26]),
    (norms.spectral_sum, [16, 25]),
    (norms.spectral_product, [math.log(16), math.log(25)]),
    (norms.spectral_distance, [16, 25]),
    (norms.frobenius_distance_over_spectral, [25 / 16, 26 / 25]),
    (norms.group_norm, [math.log(4), math.log(5)]),
    (norms.orthogonality, [8 + 15, 24]),
    (norms.path_norm, [5, math.sqrt(26)]),
]


@pytest.mark.parametrize(("measure", "expected"), CLOSED)
def test_norms_of_one_layer(measure: Callable[..., Tensor], expected: list[float]) -> None:
    task = classes_of_points(B=2, D=2, C=2)
    value = measure(linear(W.double()), linear(torch.zeros(2, 2, 2)), task)
    assert value.tolist() == pytest.approx(expected)


def test_a_product_over_layers_multiplies_and_a_sum_adds() -> None:
    state = {"0.weight": W.double(), "2.weight": 2 * W.double()}
    state |= {"0.bias": torch.zeros(2, 2), "2.bias": torch.zeros(2, 2)}
    h, task = BatchedLearner(mlp(2, (2,), 2), state), classes_of_points(B=2, D=2)
    product = norms.spectral_product(h, h, task).exp()
    assert product.tolist() == pytest.approx([16 * 64, 25 * 100])
    assert norms.spectral_sum(h, h, task).tolist() == pytest.approx([80, 125])
    assert norms.frobenius_distance(h, h, task).tolist() == [0, 0]


def test_the_path_norm_sums_over_paths() -> None:
    h, _, task = waves()
    first, inner, last, outer = (p[0].detach() for p in h.state().values())
    paths = [
        (last[c, u, 0, 0] * first[u, d, i, j]) ** 2
        for c in range(3)
        for u in range(3)
        for d in range(2)
        for i in range(2)
        for j in range(2)
    ]
    paths += [(last[c, u, 0, 0] * inner[u]) ** 2 for c in range(3) for u in range(3)]
    paths += [outer[c] ** 2 for c in range(3)]
    expected = math.sqrt(float(torch.stack(paths).sum()))
    assert norms.path_norm(h, h, task).item() == pytest.approx(expected)
