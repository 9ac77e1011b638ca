"""Networks that serve as learners and as parts of NC."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

__all__ = ["Affine", "image_cnn", "image_mlp", "mlp", "pooled", "resnet"]

Sizes = Sequence[int]
Make = Callable[[], nn.Module]
Noise = Callable[[int], nn.Module] | None  # makes a layer from its width


def mlp(
    inputs: int, hidden: Sizes, outputs: int, *, activation: Make = nn.ReLU, noise: Noise = None
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


class Affine(nn.Module):
    """Multiplies features by a scale, (D,), and adds a shift, (D,), that are not learned."""

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.scale, self.shift = nn.Buffer(scale.clone()), nn.Buffer(shift.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Returns features in other units, (..., D)."""
        return x * self.scale + self.shift


def image_mlp(shape: Sizes, hidden: Sizes, classes: int, *, noise: Noise = None) -> nn.Sequential:
    """Builds an `mlp` that sees an image of channels, height and width as one vector."""
    return nn.Sequential(nn.Flatten(), *mlp(prod(shape), hidden, classes, noise=noise))


def image_cnn(shape: Sizes, channels: Sizes, classes: int) -> nn.Sequential:
    """Builds a convolutional network whose layers, of so many filters, halve the image."""
    depth, height, width = shape
    layers: list[nn.Module] = []
    for filters in channels:
        layers += [nn.Conv2d(depth, filters, 3, stride=2, padding=1), nn.ReLU()]
        depth, height, width = filters, (height + 1) // 2, (width + 1) // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(depth * height * width, classes))


def _normed(depth: int, filters: int, size: int, stride: int) -> list[nn.Module]:
    """Returns a convolution followed by batch normalization, which has the bias."""
    convolution = nn.Conv2d(depth, filters, size, stride=stride, padding=size // 2, bias=False)
    return [convolution, nn.BatchNorm2d(filters)]


class _Residual(nn.Module):
    """The basic block of He et al. (2016): two convolutions, and a way around them."""

    def __init__(self, depth: int, filters: int, stride: int, dropout: float) -> None:
        super().__init__()
        drop = [nn.Dropout(dropout)] if dropout else []
        first, second = _normed(depth, filters, 3, stride), _normed(filters, filters, 3, 1)
        self.through = nn.Sequential(*first, nn.ReLU(), *drop, *second)
        same = depth == filters and stride == 1
        self.around = nn.Sequential(*([] if same else _normed(depth, filters, 1, stride)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.through(x) + self.around(x))


def resnet(
    shape: Sizes, classes: int, *, width: int = 64, blocks: Sizes = (2, 2, 2, 2), dropout: float = 0
) -> nn.Sequential:
    """Builds a residual network for small images (He et al., 2016)."""
    # No stride or pooling at first: that stage has `width` filters; each later one twice as many,
    # and half the size. `blocks` are basic blocks in each stage; the default is ResNet-18.
    # `dropout` is between the convolutions of a block, as in wide residual networks.
    if width < 1:
        raise ValueError(f"width must be at least 1, got {width}")
    if not blocks or min(blocks) < 1:
        raise ValueError(f"blocks must have at least 1 block in each stage, got {tuple(blocks)}")
    depth, layers = width, [*_normed(shape[0], width, 3, 1), nn.ReLU()]
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride, filters = 2 if stage and not block else 1, width * 2**stage
            layers.append(_Residual(depth, filters, stride, dropout))
            depth = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(depth, classes))


class _Pooled(nn.ModuleList):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([network(x) for network in self]).mean(dim=0)


def pooled(make: Make, copies: int) -> nn.Module:
    """Builds copies, trained as one network, whose predictions are averaged (capacity table)."""
    if copies < 1:
        raise ValueError(f"copies must be at least 1, got {copies}")
    return _Pooled([make() for _ in range(copies)])
