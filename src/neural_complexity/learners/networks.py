"""Networks that serve as learners and as parts of NC."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn

__all__ = ["mlp"]


def mlp(
    inputs: int,
    hidden: Sequence[int],
    outputs: int,
    *,
    activation: Callable[[], nn.Module] = nn.ReLU,
    noise: Callable[[int], nn.Module] | None = None,
) -> nn.Sequential:
    """Builds a multilayer perceptron; `mlp(1, (40, 40), 1)` is the paper's sinusoid learner.

    Args:
        inputs: Input features, D.
        hidden: The width of each hidden layer; may be empty.
        outputs: Outputs, C.
        activation: Makes the nonlinearity behind each hidden layer.
        noise: Makes a layer behind each nonlinearity, from its width; none if `None`.
    """
    sizes = [inputs, *hidden]
    layers: list[nn.Module] = []
    for size_in, size_out in pairwise(sizes):
        layers += [nn.Linear(size_in, size_out), activation()]
        if noise is not None:
            layers.append(noise(size_out))
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))
