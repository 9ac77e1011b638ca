"""Public datasets of labelled images, by name: their files, which are downloaded, and readers.

Simple formats are read from any file, and whatever is wrong becomes one ValueError. Archives and
MATLAB files are left to libraries, which hostile files can crash: their checksum must be known.
"""

import gzip
import hashlib
import math
import os
import struct
import tarfile
import textwrap
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pooch
import torch
from numpy.typing import NDArray
from scipy.io import loadmat
from sklearn.datasets import load_digits
from torch import Tensor

from neural_complexity.files import replacing
from neural_complexity.seeding import stream
from neural_complexity.tasks.images import Images, Part, SingleDataset
from neural_complexity.workspace import Workspace

__all__ = ["CIFAR10_TEST", "CIFAR10_TRAIN", "DATASETS", "VARIABLE", "DataFile", "cache_folder"]
__all__ += ["cached", "data_folder", "find_file", "load", "read_cifar10", "read_idx", "read_svhn"]

VARIABLE = "NEURAL_COMPLEXITY_DATA"
TIMEOUT = (5, 10)  # seconds to reach a server, and to wait for the next bytes of its answer
CLASSES = 10  # of every dataset that comes in these formats
CIFAR10_RECORD = 1 + 3 * 32 * 32
CIFAR10_TRAIN = [f"data_batch_{i}.bin" for i in range(1, 6)]
CIFAR10_TEST = "test_batch.bin"
IDX = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
HOUSES = "http://ufldl.stanford.edu/housenumbers"
MAX_RATIO = 1032  # no gzip file packs more tightly

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class DataFile:
    """A published file of a dataset."""

    folder: str  # where it belongs within the data folder
    name: str
    checksums: Sequence[str]  # one must fit: algorithm:digits; gzip+ for the unpacked content
    urls: Sequence[str]  # best first
    unpacked: Sequence[str] = ()  # what it may have been unpacked to, in the same places
    verify: bool = False  # a file that is there, too: needed by readers that trust the content


def cache_folder() -> Path:
    """Returns the user's cache folder; it need not exist."""
    return Path(pooch.os_cache("neural-complexity"))


def data_folder(given: str | Path | None = None) -> Path:
    """Returns the given folder, else that of NEURAL_COMPLEXITY_DATA, else the cache folder."""
    chosen = given or os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else cache_folder()


def find_file(file: DataFile, data: Path, download: bool = True) -> Path:
    """Finds a file, or what it was unpacked to, there or one above, or downloads it there."""
    own = data / file.folder / file.name
    places = [own.parent, own.parent.parent]
    for path in [place / name for name in (*file.unpacked, file.name) for place in places]:
        if path.is_file():
            if file.verify and path.name == own.name:
                _check(path, file, str(path))
            return path
    reason = "and downloads are off"
    for url in file.urls if download else ():
        try:
            own.parent.mkdir(parents=True, exist_ok=True)
            with replacing(own) as part:  # when it is whole and its checksum is right
                pooch.HTTPDownloader(timeout=TIMEOUT)(url, part, None)
                _check(Path(part.name), file, url)
            return own
        except OSError as error:  # no network, no such page, a full disk
            said = textwrap.shorten(str(error), 100, placeholder=" ...")
            reason = f"and downloading it failed ({type(error).__name__}: {said})"
    wanted = f"{own.name} must be put into {own.parent}, from {file.urls[0]}"
    raise FileNotFoundError(f"{wanted}: there is no such file yet, {reason}")


def cached(name: str, fingerprint: str, folder: Path, read: Callable[[], Tensors]) -> Tensors:
    """Returns what `read` returns, once: it is kept in the folder or else in the user's cache."""
    places = [Workspace(place, fingerprint) for place in (folder, cache_folder())]
    for place in places:
        with suppress(OSError, ValueError):  # damaged, or of another file of this name
            if (kept := place.read(name)) is not None:
                return kept[0]
    tensors = read()
    for place in places:
        with suppress(OSError):  # a read-only folder, a full disk: no reason to fail
            place.write(name, tensors)
            break
    return tensors


def _check(path: Path, file: DataFile, source: str) -> None:
    for kind, expected in (checksum.split(":") for checksum in file.checksums):
        algorithm = kind.removeprefix("gzip+")
        try:
            with open(path, "rb") if kind == algorithm else gzip.open(path) as content:
                got = hashlib.file_digest(content, algorithm).hexdigest()
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            got = f"a damaged gzip file ({error})"
        if got == expected:
            return
    raise ValueError(f"{source} must have the {kind} checksum {expected}, got {got}")


def load(name: str, data: str | Path | None = None, download: bool = True) -> SingleDataset:
    """Loads one of `DATASETS`, from files, downloaded if need be, or, `digits`, from scikit-learn.

    The data folder, see `data_folder`, is laid out as usual: `MNIST/raw/*-ubyte.gz`, also unpacked
    and without `raw`, `FashionMNIST` and `KMNIST` alike; `cifar-10-batches-bin/*.bin` or
    `cifar-10-binary.tar.gz`; `svhn/*_32x32.mat`.
    """
    if name not in DATASETS:
        raise ValueError(f"dataset must be one of {', '.join(DATASETS)}, got {name}")
    files, read = DATASETS[name]
    parts = read([find_file(file, data_folder(data), download) for file in files])
    sizes = [tuple(pixels.shape[1:]) for pixels, _ in parts]
    if len(set(sizes)) > 1:
        raise ValueError(f"test images must have the training images' size, got {sizes}")
    try:
        images = Images(*(torch.cat(both) for both in zip(*parts, strict=True)))
    except ValueError as error:
        raise ValueError(f"{name} must be whole, got damage ({error})") from None
    train = sum(len(labels) for _, labels in parts[:-1]) or len(images) * 4 // 5  # of one set
    return SingleDataset(name, images, train)


def read_idx(paths: Sequence[Path]) -> list[Part]:
    """Reads IDX files of images, each followed by one of labels, packed by gzip or not."""
    parts = []
    for images, labels in zip(paths[::2], paths[1::2], strict=True):
        pixels, numbers = _idx_values(images, 3), _idx_values(labels, 1)
        if (P := len(pixels)) != (got := len(numbers)):
            raise ValueError(f"{labels} must hold a label for each of the {P} images, got {got}")
        parts.append((torch.from_numpy(pixels[:, None]), _labels(labels, numbers)))
    return parts


def read_cifar10(path: Path) -> list[Part]:
    """Reads CIFAR-10, file by file, from its trusted archive or from `test_batch.bin` etc."""
    names = [*CIFAR10_TRAIN, CIFAR10_TEST]
    if path.name == CIFAR10_TEST:
        found = {name: path.with_name(name).read_bytes() for name in names}
    else:
        with tarfile.open(path, "r|gz") as archive:  # nothing is extracted to the disk
            files = ((Path(entry.name).name, archive.extractfile(entry)) for entry in archive)
            found = {name: file.read() for name, file in files if file and name in names}
    parts = []
    for place, content in ((path.with_name(name), found[name]) for name in names):
        if not (size := len(content)) or size % CIFAR10_RECORD:
            raise ValueError(f"{place} must be records of {CIFAR10_RECORD} bytes, got {size} bytes")
        records = np.frombuffer(bytearray(content), np.uint8).reshape(-1, CIFAR10_RECORD)
        pixels = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32))
        parts.append((pixels, _labels(place, records[:, 0])))
    return parts


def read_svhn(path: Path) -> Part:
    """Reads SVHN's cropped digits from a MATLAB file that must be trusted."""
    with path.open("rb") as file:
        content = loadmat(file, variable_names=["X", "y"])
    pixels = np.ascontiguousarray(content["X"].transpose(3, 2, 0, 1))
    labels = content["y"].reshape(-1) % CLASSES  # there 10 is the digit 0
    return torch.from_numpy(pixels), _labels(path, labels)


def _idx_values(path: Path, axes: int) -> NDArray[np.uint8]:
    """Reads an IDX file of bytes with so many axes."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    most = path.stat().st_size * (MAX_RATIO if packed else 1)
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            header, magic = file.read(4 + 4 * axes), bytes([0, 0, 8, axes])
            if len(header) < 4 + 4 * axes or header[:4] != magic:
                wanted = f"an IDX file of bytes with {axes} axes, which starts with {magic.hex()}"
                got = header[:4].hex() or "an empty file"
                raise ValueError(f"{path} must be {wanted}, got {got}")
            shape = struct.unpack(f">{axes}I", header[4:])
            size = math.prod(shape)
            # Reading takes memory for all that is asked for, whether it is there or not.
            content = bytearray(file.read(size + 1) if 0 < size <= most else b"")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} must be a whole gzip file, got a damaged one ({error})") from None
    if size == 0 or len(content) != size:
        wanted = f"{' x '.join(map(str, shape))} values as its header says"
        got = "more" if len(content) > size else "fewer"
        raise ValueError(f"{path} must hold {wanted}, got {got}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _labels(path: Path, labels: NDArray[np.uint8]) -> Tensor:
    if labels.max() >= CLASSES:
        raise ValueError(f"{path} must have labels 0 to {CLASSES - 1}, got {labels.max()}")
    return torch.from_numpy(labels.astype(np.int64))


def _read_digits(_paths: Sequence[Path]) -> list[Part]:
    """Returns scikit-learn's digits, in an order that is always the same."""
    values, numbers = load_digits(return_X_y=True)  # 0 to 16
    pixels = (torch.from_numpy(values) * 255 / 16).round().to(torch.uint8).reshape(-1, 1, 8, 8)
    order = torch.randperm(len(numbers), generator=stream(0, "digits"))
    return [(pixels[some], torch.from_numpy(numbers).long()[some]) for some in order.split(1437)]


def _idx(folder: str, *published: str) -> list[DataFile]:
    """Returns the four files of a dataset, of the folders' addresses and four checksums."""
    files = []
    for name, checksum in zip((f"{kind}-ubyte" for kind in IDX), published[-4:], strict=True):
        urls = [f"{url}/{name}.gz" for url in published[:-4]]
        files.append(DataFile(f"{folder}/raw", f"{name}.gz", (checksum,), urls, (name,)))
    return files


# Checksums are of the content where that is published, since mirrors pack it anew.
_MNIST = _idx(
    "MNIST",
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
    "gzip+sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "gzip+sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "gzip+sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "gzip+sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
_FASHION = _idx(
    "FashionMNIST",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    "gzip+sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "gzip+sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "gzip+sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "gzip+sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)
_KMNIST = _idx(
    "KMNIST",
    "https://codh.rois.ac.jp/kmnist/dataset/kmnist",
    "sha256:51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
    "sha256:e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
    "sha256:edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
    "sha256:20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
)
_CIFAR10 = DataFile(
    "cifar-10",
    "cifar-10-binary.tar.gz",
    ("md5:c32a1d4ab5d03f1284b67883e8d87530",),
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    unpacked=(CIFAR10_TEST, f"cifar-10-batches-bin/{CIFAR10_TEST}"),
    verify=True,
)
# As published, or the first 12,000 and 4,000 digits, which the committed results are of.
_SVHN = [
    DataFile("svhn", f"{part}_32x32.mat", sums, (f"{HOUSES}/{part}_32x32.mat",), verify=True)
    for part, *sums in (
        (
            "train",
            "sha256:6aa53b9380fc699979a7f3afd1b5342c6f2c9305ebab7c7b6caf186bf851e4cd",
            "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        ),
        (
            "test",
            "sha256:f61b16c27490f7b56e22b8e081eff03f83804997f35918eeea24c39d05636961",
            "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        ),
    )
]

# Files, and what reads training images and, in the last part, test images, or one set, from them.
DATASETS: dict[str, tuple[list[DataFile], Callable[[Sequence[Path]], list[Part]]]] = {
    "digits": ([], _read_digits),
    "mnist": (_MNIST, read_idx),
    "fashion-mnist": (_FASHION, read_idx),
    "kmnist": (_KMNIST, read_idx),
    "kmnist-10k": (_KMNIST[2:], read_idx),  # only its test images
    "cifar-10": ([_CIFAR10], lambda paths: read_cifar10(paths[0])),
    "svhn": (_SVHN, lambda paths: [read_svhn(path) for path in paths]),
}
