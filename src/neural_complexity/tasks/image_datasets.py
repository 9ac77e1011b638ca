"""One labelled dataset with a training and a test part of its own, whitened as it is read."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from neural_complexity.seeding import stream
from neural_complexity.tasks.datasets import data_folder, find_file
from neural_complexity.tasks.formats import (
    CIFAR10_TEST,
    CIFAR10_TRAIN,
    read_cifar10,
    read_cifar10_archive,
    read_idx,
    read_svhn,
)
from neural_complexity.tasks.images import Images, chunks

__all__ = ["DATASETS", "SingleDataset", "load"]

IDX_FILES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
# Of the content where that is published, since mirrors pack it anew, and else of the .gz.
IDX_CHECKSUMS = {
    "MNIST": (
        "gzip+sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "gzip+sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "gzip+sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "gzip+sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    "FashionMNIST": (
        "gzip+sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "gzip+sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "gzip+sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "gzip+sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    "KMNIST": (
        "md5:bdb82020997e1d708af4cf47b453dcf7",
        "md5:e144d726b3acfaa3e44228e80efcd344",
        "md5:5c965bf0a639b31b8f53240b1b52f4d7",
        "md5:7320c461ea6c1c855c0b718fb2a4b134",
    ),
}
IDX_ADDRESSES = {
    "MNIST": (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    ),
    "FashionMNIST": (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    ),
    "KMNIST": ("http://codh.rois.ac.jp/kmnist/dataset/kmnist",),
}
CIFAR10_FOLDER = "cifar-10-batches-bin"
CIFAR10_ARCHIVE = "cifar-10-binary.tar.gz"
CIFAR10_ADDRESS = "https://www.cs.toronto.edu/~kriz"
CIFAR10_CHECKSUM = "md5:c32a1d4ab5d03f1284b67883e8d87530"
SVHN_ADDRESS = "http://ufldl.stanford.edu/housenumbers"
SVHN_CHECKSUMS = {
    "train_32x32.mat": "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "md5:eb5a983be6a315427106f1b164d9cef3",
}
DIGITS_TRAIN = 1437  # of 1,797
TRAIN, TEST = slice(0, 2), slice(2, 4)  # of IDX_FILES


@dataclass(frozen=True, eq=False)
class SingleDataset:
    """A store of images, of which the first `train` are for training and the others for testing.

    Args:
        name: What results call it.
        images: Training images, then test images, of two classes or more. Every class has a
            training image.
        train: How many are for training.
    """

    name: str
    images: Images
    train: int

    def __post_init__(self) -> None:
        if not 1 <= self.train < len(self.images):
            raise ValueError(
                f"train must leave images for training and for testing of {len(self.images)}, "
                f"got {self.train}"
            )
        if self.images.classes < 2:
            raise ValueError(f"{self.name} must have at least two classes, got one")
        trained = self.images.labels[: self.train].unique()
        if len(trained) < self.images.classes:
            raise ValueError(
                f"{self.name} must have training images of each of its {self.images.classes} "
                f"classes, got some of {len(trained)}"
            )

    @property
    def train_numbers(self) -> Tensor:
        """The numbers of the training images, (train,)."""
        return torch.arange(self.train)

    @property
    def test_numbers(self) -> Tensor:
        """The numbers of the test images, (P - train,)."""
        return torch.arange(self.train, len(self.images))

    @property
    def labels(self) -> Tensor:
        """The labels of all images, (P,)."""
        return self.images.labels

    @property
    def mean(self) -> Tensor:
        """The training images' mean of each channel, between 0 and 1, (channels,)."""
        return self._moments[0].flatten() / 255

    @property
    def std(self) -> Tensor:
        """Their standard deviation, (channels,), and 1 for a channel that never changes."""
        return 1 / self._moments[1].flatten() / 255

    def look_up(self, numbers: Tensor) -> Tensor:
        """Gives images by number, less the training images' mean, over their standard deviation.

        Args:
            numbers: Which ones, int64 of any shape, (...).

        Returns:
            Values of mean 0 and variance 1 over the training images, in each channel, in the
            default precision, (..., channels, height, width), on the numbers' device. A channel
            that never changes is 0.
        """
        pixels = self.images.pixels
        chosen = pixels.flatten(2).index_select(0, numbers.flatten().to(pixels.device))
        values = chosen.to(numbers.device).to(torch.get_default_dtype())  # (n, channels, pixels)
        mean, scale = self._moments  # (channels, 1)
        values.sub_(mean.to(values)).mul_(scale.to(values))
        return values.reshape(*numbers.shape, *pixels.shape[1:])

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and inverse standard deviation of the training pixels, 0 to 255, (channels, 1)."""
        pixels = self.images.pixels[: self.train].flatten(2)  # (train, channels, pixels)
        total = square = torch.zeros(pixels.shape[1], dtype=torch.float64)
        for chunk in chunks(pixels):
            values = chunk.cpu().double()  # whole numbers, so the sums are exact
            total = total + values.sum(dim=(0, 2))
            square = square + values.square().sum(dim=(0, 2))
        mean = total / (len(pixels) * pixels.shape[2])
        variance = square / (len(pixels) * pixels.shape[2]) - mean.square()
        std = variance.clamp(min=0).sqrt()
        return mean[:, None], torch.where(std > 0, std, 255).reciprocal()[:, None]


def load(name: str, data: str | Path | None = None, download: bool = True) -> SingleDataset:
    """Loads a dataset by name, from files or, `digits`, from scikit-learn.

    Args:
        name: One of `DATASETS`.
        data: The data folder, see `data_folder`, laid out as usual: `MNIST/raw/*-ubyte.gz`, also
            unpacked and without `raw`, `FashionMNIST` and `KMNIST` alike;
            `cifar-10-batches-bin/*.bin` or `cifar-10-binary.tar.gz`; `svhn/*_32x32.mat`.
        download: Whether to download files that are not there.

    Raises:
        FileNotFoundError: If a file is neither there nor to be had.
        ValueError: If there is no such dataset, or a file is damaged or of another kind.
    """
    if name not in DATASETS:
        raise ValueError(f"dataset must be one of {', '.join(DATASETS)}, got {name}")
    pixels, labels, train = DATASETS[name](data_folder(data), download)
    return SingleDataset(name, Images(pixels, labels), train)


Loaded = tuple[Tensor, Tensor, int]  # pixels, labels, and how many are for training


def _join(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> Loaded:
    """Puts the test images behind the training images."""
    sizes = [tuple(pixels.shape[1:]) for pixels, _ in (train, test)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"test images must have the training images' size, got {sizes}")
    pixels, labels = (torch.cat(both) for both in zip(train, test, strict=True))
    return pixels, labels, len(train[0])


def _digits(_folder: Path, _download: bool) -> Loaded:
    """Takes scikit-learn's digits, in an order that is always the same."""
    # Worker processes import this module too, and half of their start would go into this.
    from sklearn.datasets import load_digits

    values, labels = load_digits(return_X_y=True)  # 0 to 16
    order = torch.randperm(len(labels), generator=stream(0, "digits"))
    pixels = (torch.from_numpy(values) * 255 / 16).round().to(torch.uint8)
    return pixels[order].reshape(-1, 1, 8, 8), torch.from_numpy(labels).long()[order], DIGITS_TRAIN


def _idx_part(dataset: str, part: slice, folder: Path, download: bool) -> tuple[Tensor, Tensor]:
    """Reads images and labels of one part of a dataset in IDX files."""
    paths = []
    for stem, checksum in zip(IDX_FILES[part], IDX_CHECKSUMS[dataset][part], strict=True):
        name = f"{stem}-ubyte"
        plain = [folder / dataset / place / name for place in (".", "raw")]
        found = next((path for path in plain if path.is_file()), None)
        paths.append(
            found
            or find_file(
                folder / dataset,  # the datasets' files have the same names
                f"{name}.gz",
                dataset="raw",
                checksum=checksum,
                urls=[f"{address}/{name}.gz" for address in IDX_ADDRESSES[dataset]],
                download=download,
            )
        )
    return read_idx(*paths)


def _idx(dataset: str, folder: Path, download: bool) -> Loaded:
    """Reads a dataset in four IDX files."""
    train, test = (_idx_part(dataset, part, folder, download) for part in (TRAIN, TEST))
    return _join(train, test)


def _kmnist_10k(folder: Path, download: bool) -> Loaded:
    """Reads KMNIST's test images only: four fifths to train on, and the last fifth to test."""
    pixels, labels = _idx_part("KMNIST", TEST, folder, download)
    return pixels, labels, len(pixels) * 4 // 5


def _cifar10(folder: Path, download: bool) -> Loaded:
    """Reads CIFAR-10's binary version, from its six files or the archive of them."""
    names = [*CIFAR10_TRAIN, CIFAR10_TEST]
    for place in (folder, folder / CIFAR10_FOLDER):
        if all((place / name).is_file() for name in names):
            parts = [read_cifar10(place / name) for name in names]
            pixels, labels = (torch.cat(part) for part in zip(*parts, strict=True))
            return pixels, labels, len(pixels) - len(parts[-1][0])
    archive = find_file(
        folder,
        CIFAR10_ARCHIVE,
        dataset="cifar-10",
        checksum=CIFAR10_CHECKSUM,
        urls=[f"{CIFAR10_ADDRESS}/{CIFAR10_ARCHIVE}"],
        download=download,
    )
    return _join(*read_cifar10_archive(archive))


def _svhn(folder: Path, download: bool) -> Loaded:
    """Reads SVHN's cropped digits, without the extra ones."""
    train, test = (
        read_svhn(
            find_file(
                folder,
                name,
                dataset="svhn",
                checksum=checksum,
                urls=[f"{SVHN_ADDRESS}/{name}"],
                download=download,
            )
        )
        for name, checksum in SVHN_CHECKSUMS.items()
    )
    return _join(train, test)


DATASETS: dict[str, Callable[[Path, bool], Loaded]] = {
    "digits": _digits,
    "mnist": partial(_idx, "MNIST"),
    "fashion-mnist": partial(_idx, "FashionMNIST"),
    "kmnist": partial(_idx, "KMNIST"),
    "kmnist-10k": _kmnist_10k,
    "cifar-10": _cifar10,
    "svhn": _svhn,
}
