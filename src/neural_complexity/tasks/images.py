"""Datasets of labelled images, in memory or mapped from one file, and few-shot tasks of them."""

import json
import math
import mmap
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset, Subset

from neural_complexity.convert.arrays_in import numbers, pair, targets
from neural_complexity.files import write_bytes
from neural_complexity.points import indexed
from neural_complexity.task import Task
from neural_complexity.tasks.families import check_sizes, choose

__all__ = ["FewShot", "Images", "Part", "SingleDataset", "check_values", "from_arrays"]
__all__ += ["from_datasets", "moved", "open_store", "write_store"]

CHUNK = 1 << 18  # values, so that they fit a cache even as floats
AT_ONCE = 64  # images
MAX_CHANNELS = 4
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # mmap has the name from Python 3.13 on

Part = tuple[Tensor, Tensor]  # pixels, uint8 (P, channels, height, width), and labels, int64 (P,)
Array = NDArray[Any] | Tensor
Pieces = Iterable[tuple[str, str, Any, Any]]  # what X and y are called, X and y
Place = str | Path | None  # of a file; none for in memory


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
            wanted = f"{self.name} must have training images of {classes} classes"
            raise ValueError(f"{wanted}, got {trained}")

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
    """Shifts each image, (P, channels, height, width), by up to `pixels` along each axis."""
    # Borders are copied outwards. With `flip`, half are mirrored, left to right. Draws on the CPU.
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
        fewest = int(self.images.counts.min())
        check_sizes(fewest, **{"shots + queries": self.shots + self.queries})

    def sample(self, batch: int, generator: torch.Generator) -> Task:
        """Draws `batch` tasks of `Points`, (B, M) and (B, N), with labels 0 ... ways - 1."""
        check_sizes(batch=batch)
        device = generator.device
        counts = self.images.counts.to(device)
        every = torch.full((batch,), len(counts), device=device)
        classes = choose(every, self.ways, generator)  # (B, ways)
        first = (counts.cumsum(dim=0) - counts)[classes][..., None]
        picked = choose(counts[classes], self.shots + self.queries, generator)
        place = first + picked  # (B, ways, shots + queries)
        indices = self.images.by_class.to(device)[place].mT.flatten(1)  # (B, M + N)
        labels = torch.arange(self.ways, device=device).repeat(batch, self.shots + self.queries)
        X, M = indexed(indices, self.images), self.ways * self.shots
        return Task(X[:, :M], labels[:, :M], X[:, M:], labels[:, M:])


def from_arrays(
    name: str, X_train: Array, y_train: Array, X_test: Array, y_test: Array, *, path: Place = None
) -> SingleDataset:
    """Makes a dataset of arrays or tensors; they may be memory-mapped.

    Images are uint8 or floats from 0 to 1, rounded to 256 levels: (P, height, width), or with one
    to four channels, first or, where it cannot be, last. Labels, (P,), are 0 ... classes - 1. The
    dataset, not the user, standardizes values. It is kept in memory, or in the file `path`.

    Example:
        >>> X, y = torch.rand(6, 28, 28), torch.tensor([0, 1, 0, 1, 1, 0])
        >>> from_arrays("mine", X[:4], y[:4], X[4:], y[4:]).train
        4
    """
    sets = (("train", X_train, y_train), ("test", X_test, y_test))
    for part, X, y in sets:
        if len(X.shape) not in (3, 4) or 0 in X.shape or tuple(y.shape) != (len(X),):
            wanted = f"images, (P, height, width) or with channels, and y_{part} one label each"
            got = f"shapes {tuple(X.shape)} and {tuple(y.shape)}"
            raise ValueError(f"X_{part} must be {wanted}, got {got}")
    pieces = (
        (f"X_{part}", f"y_{part}", X[i : i + AT_ONCE], y[i : i + AT_ONCE])
        for part, X, y in sets
        for i in range(0, len(X), AT_ONCE)
    )
    return _build(name, len(X_train), len(X_test), pieces, path)


def from_datasets(
    name: str, train: Dataset[Any], test: Dataset[Any], *, path: Place = None
) -> SingleDataset:
    """Makes a dataset of two PyTorch datasets with a length, each of which is gone through once.

    An image is a tensor, an array or a PIL image; all else is as for `from_arrays`.
    """
    sets: dict[str, Any] = {"train": train, "test": test}
    for part, dataset in sets.items():
        if not isinstance(dataset, Sized):
            raise TypeError(f"{part} must have a length, got {type(dataset).__name__}")
        if len(dataset) == 0:
            raise ValueError(f"{part} must not be empty, got a dataset of length 0")
    pieces = (
        (part, f"labels of {part}", *pair(part, Subset(dataset, rows.tolist())))
        for part, dataset in sets.items()
        for rows in torch.arange(len(dataset)).split(AT_ONCE)
    )
    return _build(name, len(sets["train"]), len(sets["test"]), pieces, path)


def open_store(path: str | Path) -> SingleDataset:
    """Opens a dataset kept in a file: images are read from the disk as they are looked up."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} must be a stored dataset, got no such file")
    try:
        with safe_open(path, framework="np") as file:  # checks the file, and reads no pixel
            header = file.metadata() or {}
            kind, shape = file.get_slice("pixels").get_dtype(), file.get_slice("pixels").get_shape()
            labels = torch.from_numpy(file.get_tensor("labels"))
        if kind != "U8":
            raise ValueError(f"pixels of {kind}")
        with open(path, "rb") as raw:
            (size,) = struct.unpack("<Q", raw.read(8))
            start, _ = json.loads(raw.read(size))["pixels"]["data_offsets"]
            # A change would change a copy, never the file; and none is reserved in memory, without
            # which Linux would not map more than it has.
            flags = mmap.MAP_PRIVATE | NO_RESERVE
            pages = mmap.mmap(raw.fileno(), 0, flags, mmap.PROT_READ | mmap.PROT_WRITE)
        where = {"count": math.prod(shape), "offset": 8 + size + start}
        images = Images(torch.frombuffer(pages, dtype=torch.uint8, **where).reshape(shape), labels)
        return SingleDataset(header["name"], images, int(header["train"]))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        wanted = "must hold pixels, labels, name and train of a dataset"
        raise ValueError(f"{path} {wanted}, got another or a damaged file ({error})") from None


def write_store(
    path: str | Path, name: str, shape: Sequence[int], train: int, parts: Iterable[Part]
) -> SingleDataset:
    """Writes a dataset of `shape` pixels in parts, of which one need be in memory, and opens it."""
    write_bytes(Path(path), _content(name, shape, train, parts))
    return open_store(path)


def _build(name: str, train: int, test: int, pieces: Pieces, path: Place) -> SingleDataset:
    """Puts pieces together, in memory or in a file."""
    parts = _parts(pieces)
    if path is not None:
        first = next(parts)
        shape = (train + test, *first[0].shape[1:])
        return write_store(path, name, shape, train, chain([first], parts))
    return SingleDataset(name, Images(*map(torch.cat, zip(*parts, strict=True))), train)


def _parts(pieces: Pieces) -> Iterator[Part]:
    """Yields images as uint8 with channels first, all of one size, and labels."""
    size = None
    for X_name, y_name, X, y in pieces:
        if y is None:
            raise TypeError(f"{X_name} must give (image, label), got images alone")
        images = numbers(X_name, X).cpu()
        if images.dtype != torch.uint8:
            check_values(X_name, images)
            images = (255 * images.double()).round().to(torch.uint8)
        images = images.unsqueeze(1) if images.ndim == 3 else images
        axes = [axis for axis in (1, 3) if images.ndim == 4 and images.shape[axis] <= MAX_CHANNELS]
        if not axes:
            wanted, got = f"1 to {MAX_CHANNELS} channels, first or last", tuple(images.shape[1:])
            raise ValueError(f"{X_name} must have {wanted}, got images of {got}")
        pixels = images.movedim(axes[0], 1).contiguous()
        labels = targets(y_name, y, labels=True, points=len(pixels)).cpu()
        size = size or tuple(pixels.shape[1:])
        if (got := tuple(pixels.shape[1:])) != size:
            raise ValueError(f"images must all have the size of the first, {size}, got {got}")
        yield pixels, labels


def _content(name: str, shape: Sequence[int], train: int, parts: Iterable[Part]) -> Iterator[Any]:
    """Yields the bytes of a store: header, pixels and, when they are all known, labels."""
    pixels = math.prod(shape)
    ends = [0, pixels, pixels + 8 * shape[0]]
    header = {
        "__metadata__": {"name": name, "train": str(train)},
        "pixels": {"dtype": "U8", "shape": list(shape), "data_offsets": ends[:2]},
        "labels": {"dtype": "I64", "shape": [shape[0]], "data_offsets": ends[1:]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + pixels) % 8)  # labels can be mapped at multiples of 8 only
    yield struct.pack("<Q", len(text)) + text
    labels = []
    for values, own in parts:
        yield values.cpu().contiguous().numpy().data
        labels.append(own.cpu())
    every = torch.cat(labels)
    # The same checks as on opening, on pixels that take no memory.
    SingleDataset(name, Images(torch.zeros(1, dtype=torch.uint8).expand(shape), every), train)
    yield every.numpy().data
