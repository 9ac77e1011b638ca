"""Stores of labelled images, of which tasks are made by index, and few-shot tasks of them."""

from dataclasses import KW_ONLY, dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from neural_complexity.points import indexed
from neural_complexity.task import Task
from neural_complexity.tasks.families import check_sizes

__all__ = ["FewShot", "Images", "Part", "SingleDataset", "check_values", "moved"]

CHUNK = 1 << 18  # values, so that they fit a cache even as floats

Part = tuple[Tensor, Tensor]  # pixels, uint8 (P, channels, height, width), and labels, int64 (P,)


def check_values(name: str, images: Tensor) -> None:
    """Refuses images that are neither uint8, nor truth values, nor floats from 0 to 1."""
    if images.dtype not in (torch.uint8, torch.bool) and not images.is_floating_point():
        raise TypeError(f"{name} must be uint8 or floats from 0 to 1, got {images.dtype}")
    if images.is_floating_point() and not ((images >= 0) & (images <= 1)).all():
        low, high = images.aminmax()
        raise ValueError(f"{name} must have values from 0 to 1, got {low:g} to {high:g}")


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """P images of classes 0, 1, ..., each class with at least one image."""

    pixels: Tensor  # (P, channels, height, width), uint8; may be memory-mapped
    labels: Tensor  # (P,), int64

    def __post_init__(self) -> None:
        kinds, shape = (self.pixels.dtype, self.labels.dtype), tuple(self.pixels.shape)
        if kinds != (torch.uint8, torch.int64):
            raise TypeError(f"pixels must be uint8 and labels int64, got {kinds[0]} and {kinds[1]}")
        if len(shape) != 4 or 0 in shape:
            raise ValueError(f"pixels must be (P, channels, height, width), got shape {shape}")
        if (found := tuple(self.labels.shape)) != shape[:1]:
            raise ValueError(f"labels must be one for each of {len(self)} images, got {found}")
        low, high = int(self.labels.min()), int(self.labels.max())
        # The bound comes first: counting up to an absurd label would fill the memory.
        if low < 0 or high >= len(self) or not self.counts.all():
            got = f"{len(self.labels.unique())} different ones from {low} to {high}"
            raise ValueError(f"labels must be 0 ... classes - 1 with an image each, got {got}")

    def __len__(self) -> int:
        return self.pixels.shape[0]

    def __call__(self, indices: Tensor) -> Tensor:
        """Returns images, (...) to (..., channels, height, width), with values from 0 to 1."""
        return self.levels(indices).div_(255)

    def levels(self, indices: Tensor) -> Tensor:
        """Returns images with values from 0 to 255, in the default precision, as a new tensor."""
        # Twice as fast as indexing, and negative numbers are no way to count from the end.
        chosen = self.pixels.index_select(0, indices.flatten().to(self.pixels.device))
        values = chosen.to(indices.device).to(torch.get_default_dtype())
        return values.reshape(*indices.shape, *self.pixels.shape[1:])

    def __repr__(self) -> str:
        size = "x".join(map(str, self.pixels.shape[1:]))
        return f"Images({len(self)} of {self.classes} classes, {size})"

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
        """The indices of all images, (P,), class after class."""
        return self.labels.argsort(stable=True)

    def rotated(self) -> "Images":
        """Makes each class into four: image n, turned k times to the left, becomes `n + k * P`."""
        if len(set(shape := tuple(self.pixels.shape[-2:]))) > 1:
            raise ValueError(f"images must be square to be rotated, got {shape}")
        pixels = torch.cat([torch.rot90(self.pixels, k, dims=(-2, -1)) for k in range(4)])
        return Images(pixels, torch.cat([self.labels + k * self.classes for k in range(4)]))


@dataclass(frozen=True, eq=False)
class SingleDataset:
    """A store of images, of which the first `train` are for training and the others for testing."""

    name: str  # what results call it
    images: Images  # of two classes or more, each with a training image
    train: int

    def __post_init__(self) -> None:
        check_sizes(len(self.images) - 1, train=self.train)  # the others are for testing
        classes, trained = self.images.classes, len(self.labels[: self.train].unique())
        if classes < 2:
            raise ValueError(f"{self.name} must have at least two classes, got one")
        if trained < classes:
            wanted = f"training images of {classes} classes"
            raise ValueError(f"{self.name} must have {wanted}, got {trained}")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def train_indices(self) -> Tensor:
        """The indices of the training images, (train,)."""
        return torch.arange(self.train)

    @property
    def test_indices(self) -> Tensor:
        """The indices of the test images, (P - train,)."""
        return torch.arange(self.train, len(self.images))

    @property
    def labels(self) -> Tensor:
        """The labels of all images, (P,)."""
        return self.images.labels

    def __call__(self, indices: Tensor) -> Tensor:
        """Returns standardized images, (...) to (..., channels, height, width); see `_moments`."""
        values = self.images.levels(indices)
        mean, scale = (moment.to(values) for moment in self._moments)
        return values.sub_(mean).mul_(scale)

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and inverse standard deviation of training pixels, 0 to 255, (channels, 1, 1)."""
        pixels = self.images.pixels[: self.train].flatten(2)  # (train, channels, pixels)
        parts = pixels.split(max(1, CHUNK // pixels[0].numel()))  # a mapped one may be very large
        values = (part.cpu().double() for part in parts)  # whole numbers: exact sums
        sums = [torch.stack([x, x.square()]).sum(dim=(1, 3)) for x in values]
        mean, square = (torch.stack(sums).sum(dim=0) / pixels[:, 0].numel())[..., None, None]
        std = (square - mean.square()).clamp(min=0).sqrt()
        return mean, torch.where(std > 0, std, 255).reciprocal()


def moved(X: Tensor, generator: torch.Generator, *, pixels: int, flip: bool = False) -> Tensor:
    """Shifts each image, (P, channels, height, width), by up to `pixels` along each axis.

    Borders are copied outwards. With `flip`, half are mirrored, left to right. Draws on the CPU.
    """
    P, _, *sizes = X.shape
    starts = [torch.randint(2 * pixels + 1, (P, 1), generator=generator) for _ in sizes]
    rows, columns = (a + torch.arange(n) for a, n in zip(starts, sizes, strict=True))  # (P, size)
    if flip:
        mirrored = torch.rand(P, 1, generator=generator) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    if pixels:
        X = pad(X, [pixels] * 4, mode="replicate")
    each = torch.arange(P, device=X.device)[:, None, None]
    rows, columns = rows[:, :, None].to(X.device), columns[:, None, :].to(X.device)
    return X[each, :, rows, columns].movedim(-1, 1)  # channels last in memory, as filters like it


def choose(sizes: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Chooses `count` different indices below each of many sizes, (...), as (..., count)."""
    # Floyd's algorithm: time and memory grow with the indices chosen, not with the sizes.
    size = (2, *sizes.shape, count)
    draws, order = torch.rand(size, generator=generator, dtype=torch.float64, device=sizes.device)
    chosen = sizes.new_empty(*sizes.shape, count)
    for i in range(count):
        last = sizes - count + i
        index = (draws[..., i] * (last + 1)).long()
        taken = (chosen[..., :i] == index[..., None]).any(dim=-1)
        chosen[..., i] = torch.where(taken, last, index)
    return chosen.gather(-1, order.argsort(dim=-1))


@dataclass(frozen=True, eq=False)
class FewShot:
    """Tasks that tell `ways` random classes, in random order, apart by `shots` images of each."""

    images: Images  # each class has at least shots + queries
    _: KW_ONLY
    ways: int = 10  # classes of a task, C
    shots: int = 1  # training images of each class: M = ways * shots
    queries: int = 5  # test images of each class: N = ways * queries

    def __post_init__(self) -> None:
        check_sizes(self.images.classes, ways=self.ways)
        check_sizes(shots=self.shots, queries=self.queries)
        together = {"shots + queries": self.shots + self.queries}
        check_sizes(int(self.images.counts.min()), **together)

    def sample(self, batch: int, generator: torch.Generator) -> Task:
        """Draws `batch` tasks of `Points`, (B, M) and (B, N), with labels 0 ... ways - 1."""
        check_sizes(batch=batch)
        device = generator.device
        counts = self.images.counts.to(device)
        every = torch.full((batch,), len(counts), device=device)
        classes = choose(every, self.ways, generator)  # (B, ways)
        picked = choose(counts[classes], self.shots + self.queries, generator)
        first = counts.cumsum(dim=0) - counts
        place = first[classes][..., None] + picked  # (B, ways, shots + queries)
        indices = self.images.by_class.to(device)[place].mT.flatten(1)  # (B, M + N)
        labels = torch.arange(self.ways, device=device).repeat(batch, self.shots + self.queries)
        X, M = indexed(indices, self.images), self.ways * self.shots
        return Task(X[:, :M], labels[:, :M], X[:, M:], labels[:, M:])
