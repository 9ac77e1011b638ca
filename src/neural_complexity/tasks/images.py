"""A store of labelled images, of which tasks are made by number."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

__all__ = ["Images", "chunks"]

CHUNK = 1 << 18  # values, so that they fit a cache even as floats


def chunks(tensor: Tensor) -> tuple[Tensor, ...]:
    """Cuts a tensor along its first axis into views of about 260,000 values.

    What goes through all images goes through these, so that a mapped store may be larger than the
    memory.
    """
    parts: tuple[Tensor, ...] = tensor.split(max(1, CHUNK // tensor[0].numel()))
    return parts


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """P images of classes 0, 1, ..., each class with at least one image."""

    pixels: Tensor  # (P, channels, height, width), uint8; may be memory-mapped
    labels: Tensor  # (P,), int64

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.labels.dtype != torch.int64:
            got = f"{self.pixels.dtype} and {self.labels.dtype}"
            raise TypeError(f"pixels must be uint8 and labels int64, got {got}")
        if self.pixels.ndim != 4 or self.pixels.numel() == 0:
            shape = tuple(self.pixels.shape)
            raise ValueError(f"pixels must be (P, channels, height, width), got shape {shape}")
        if self.labels.shape != self.pixels.shape[:1]:
            shape = tuple(self.labels.shape)
            raise ValueError(f"labels must be one for each of {len(self)} images, got {shape}")
        low, high = int(self.labels.min()), int(self.labels.max())
        # The bound comes first: counting up to an absurd label would fill the memory.
        if low < 0 or high >= len(self) or not self.counts.all():
            raise ValueError(
                "labels must be 0 ... classes - 1 with an image each, got "
                f"{len(self.labels.unique())} different ones from {low} to {high}"
            )

    def __len__(self) -> int:
        return self.pixels.shape[0]

    def __call__(self, numbers: Tensor) -> Tensor:
        """Gives images by number.

        Args:
            numbers: Which ones, int64 of any shape, (...).

        Returns:
            Values between 0 and 1 in the default precision, (..., channels, height, width), on the
            numbers' device.
        """
        # Twice as fast as indexing, and negative numbers are no way to count from the end.
        chosen = self.pixels.index_select(0, numbers.flatten().to(self.pixels.device))
        values = chosen.to(numbers.device).to(torch.get_default_dtype()).div_(255)
        return values.reshape(*numbers.shape, *self.pixels.shape[1:])

    def __repr__(self) -> str:
        """Names sizes and content, so that equal texts mean equal images."""
        size = "x".join(map(str, self.pixels.shape[1:]))
        digest = hashlib.sha256()
        for tensor in (self.pixels, self.labels):
            for chunk in chunks(tensor):
                digest.update(chunk.cpu().contiguous().numpy().data)
        content = digest.hexdigest()[:12]
        return f"Images({len(self)} of {self.classes} classes, {size}, {content})"

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.counts)

    @cached_property
    def counts(self) -> Tensor:
        """The number of images of each class, (classes,)."""
        return torch.bincount(self.labels)

    @cached_property
    def by_class(self) -> Tensor:
        """The numbers of all images, (P,), class after class."""
        return self.labels.argsort(stable=True)

    def rotated(self) -> "Images":
        """Makes each class into four, turned by 0, 90, 180 and 270 degrees.

        Returns:
            Four times the images: number `n + k * P` is image n turned k times counter-clockwise,
            of class `label + k * classes`.

        Raises:
            ValueError: If the images are not square.
        """
        if self.pixels.shape[-2] != self.pixels.shape[-1]:
            shape = tuple(self.pixels.shape[-2:])
            raise ValueError(f"images must be square to be rotated, got {shape}")
        pixels = torch.cat([torch.rot90(self.pixels, k, dims=(-2, -1)) for k in range(4)])
        labels = torch.cat([self.labels + k * self.classes for k in range(4)])
        return Images(pixels, labels)
