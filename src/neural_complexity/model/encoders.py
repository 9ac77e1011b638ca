"""Image encoders: an embedding of each image that depends neither on h nor on other images.

Normalisation is frozen, as in the paper: `calibrate` takes statistics of sample images once.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d, relu
from torch.optim.swa_utils import update_bn

from neural_complexity.learners.networks import resnet
from neural_complexity.model.architecture import Architecture

__all__ = ["ImageEncoder", "ResidualEncoder", "make_image_encoder"]

PART = 512  # images at a time: bounds memory, and keeps what a layer leaves close at hand


class _Encoder(nn.Module):
    """Embeds images (..., channels, height, width) as (..., features) by its only child."""

    features: int

    def forward(self, X: Tensor) -> Tensor:
        (embed,), batch = self.children(), _as_batch(X)
        # A graph has as many parts as it was made with, so there it is one.
        parts = [batch] if torch.compiler.is_compiling() else batch.split(PART)
        return torch.cat([embed(part).flatten(1) for part in parts]).view(*X.shape[:-3], -1)


class ImageEncoder(_Encoder):
    """The network of prototypical networks: 3x3 filters, normalisation, pooling and ReLU."""

    def __init__(self, shape: tuple[int, ...], *, channels: int, layers: int) -> None:
        super().__init__()
        depth, height, width = shape
        self.blocks = nn.Sequential()
        for _ in range(layers):
            pool = min(height, width) >= 2  # as long as there is something to halve
            self.blocks.append(_Block(depth, channels, pool=pool))
            depth = channels
            if pool:
                height, width = height // 2, width // 2
        self.features = depth * height * width

    @torch.no_grad()
    def calibrate(self, X: Tensor) -> None:
        """Takes the statistics of every normalisation from images."""
        e = _as_batch(X)
        for block in self.blocks:
            assert isinstance(block, _Block)
            filtered = conv2d(e, block.filters, padding=1)
            block.mean.copy_(filtered.mean(dim=(0, 2, 3)))
            block.variance.copy_(filtered.var(dim=(0, 2, 3), correction=0))
            e = block(e)


class ResidualEncoder(_Encoder):
    """A residual network of stages of two blocks, without its last layer; four are ResNet-18."""

    def __init__(self, shape: tuple[int, ...], *, channels: int, layers: int) -> None:
        super().__init__()
        self.body = resnet(shape, 1, width=channels, blocks=(2,) * layers)[:-1].eval()
        self.features = channels * 2 ** (layers - 1)

    def train(self, mode: bool = True) -> "ResidualEncoder":
        """Changes nothing: an image's embedding depends on no other image."""
        self.training = mode
        return self

    def calibrate(self, X: Tensor) -> None:
        """Takes the statistics of every normalisation from images: plain means over all parts."""
        update_bn(_as_batch(X).split(PART), self.body)


def make_image_encoder(a: Architecture) -> ImageEncoder | ResidualEncoder:
    """Builds the network that embeds images."""
    kinds: dict[str, type[ImageEncoder | ResidualEncoder]]
    kinds = {"conv": ImageEncoder, "resnet": ResidualEncoder}
    if a.image_encoder not in kinds:
        raise ValueError(f"image_encoder must be {' or '.join(kinds)}, got {a.image_encoder}")
    return kinds[a.image_encoder](a.shape, channels=a.channels, layers=a.image_layers)


def _as_batch(X: Tensor) -> Tensor:
    # Channels last: filters are then applied in half the time.
    return X.reshape(-1, *X.shape[-3:]).contiguous(memory_format=torch.channels_last)


class _Block(nn.Module):
    """One layer. Frozen normalisation is a linear map, so it is folded into the filters."""

    mean: Tensor  # (channels,)
    variance: Tensor  # (channels,)

    def __init__(self, inputs: int, channels: int, *, pool: bool) -> None:
        super().__init__()
        self.pool = pool
        self.filters = nn.Parameter(torch.empty(channels, inputs, 3, 3))
        nn.init.kaiming_normal_(self.filters, nonlinearity="relu")
        self.scale = nn.Parameter(torch.ones(channels))
        self.shift = nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))

    def forward(self, e: Tensor) -> Tensor:
        scale = self.scale * (self.variance + 1e-5).rsqrt()
        # One channel looks the same in either layout: the filters say which one is meant.
        filters = (self.filters * scale[:, None, None, None]).to(memory_format=torch.channels_last)
        e = conv2d(e, filters, self.shift - self.mean * scale, padding=1)
        # The largest of four, then ReLU, is ReLU, then the largest: with a quarter of the work.
        return relu(max_pool2d(e, 2) if self.pool else e)
