"""Networks that serve as learners and as parts of NC."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

from torch import nn

__all__ = ["image_cnn", "image_mlp", "mlp"]


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


def image_mlp(shape: Sequence[int], hidden: Sequence[int], classes: int) -> nn.Sequential:
    """Builds a multilayer perceptron that sees the pixels of an image as one vector.

    Args:
        shape: Channels, height and width.
        hidden: The width of each hidden layer.
        classes: Classes, C.
    """
    return nn.Sequential(nn.Flatten(), *mlp(prod(shape), hidden, classes))


def image_cnn(shape: Sequence[int], channels: Sequence[int], classes: int) -> nn.Sequential:
    """Builds a convolutional network whose layers halve the image by their stride.

    Args:
        shape: Channels, height and width.
        channels: The filters of each layer.
        classes: Classes, C.
    """
    depth, height, width = shape
    layers: list[nn.Module] = []
    for filters in channels:
        layers += [nn.Conv2d(depth, filters, 3, stride=2, padding=1), nn.ReLU()]
        depth, height, width = filters, (height + 1) // 2, (width + 1) // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(depth * height * width, classes))
