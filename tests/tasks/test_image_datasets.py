"""Datasets by name, from small files in the places of the real ones; files damaged and hostile."""

import gzip
import hashlib
import os
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labelled import cifar10, cifar10_files, cifar10_tar, draw, expected, idx, svhn, write_idx
from neural_complexity.tasks import image_datasets as datasets
from neural_complexity.tasks.image_datasets import (
    DATASETS,
    VARIABLE,
    DataFile,
    cache_folder,
    cached,
    data_folder,
    find_file,
    load,
    read_cifar10,
    read_idx,
    read_svhn,
)
from neural_complexity.tasks.images import Part, SingleDataset
from neural_complexity.workspace import fingerprint

IDX_SETS = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST", "kmnist": "KMNIST"}
SMALL = expected(draw(20, 6, 5, seed=0), draw(10, 6, 5, seed=1))


def holds(dataset: SingleDataset, wanted: tuple[torch.Tensor, torch.Tensor], train: int) -> bool:
    return (
        torch.equal(dataset.images.pixels, wanted[0])
        and torch.equal(dataset.images.labels, wanted[1])
        and dataset.train == train
    )


def write_svhn(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    folder.mkdir(parents=True, exist_ok=True)
    sets = [draw(P, 3, 32, 32, seed=P) for P in (20, 10)]
    for name, content in zip(("train", "test"), sets, strict=True):
        (folder / f"{name}_32x32.mat").write_bytes(svhn(*content))
    return expected(*sets)


def publish(monkeypatch: pytest.MonkeyPatch, name: str, folder: Path, *urls: str) -> None:
    """Returns a dataset the checksums of files in a folder, and other addresses."""

    def own(file: DataFile) -> DataFile:
        content = (folder / file.name).read_bytes()
        kind = "gzip+sha256" if file.name.endswith("ubyte.gz") else "md5"
        digest = hashlib.md5(content) if kind == "md5" else hashlib.sha256(gzip.decompress(content))
        addresses = tuple(f"{url}/{file.name}" for url in urls) or file.urls
        return replace(file, checksums=(f"{kind}:{digest.hexdigest()}",), urls=addresses)

    files, read = DATASETS[name]
    monkeypatch.setitem(DATASETS, name, (list(map(own, files)), read))


def test_what_comes_without_encryption_has_a_strong_checksum() -> None:
    for files, _ in DATASETS.values():
        for file in files:
            if not all(url.startswith("https://") for url in file.urls):
                assert all("sha256:" in checksum for checksum in file.checksums), file.name


# Places


@pytest.mark.parametrize("name", IDX_SETS)
@pytest.mark.parametrize("place", ["raw", "."])
@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_are_found_packed_or_not(
    tmp_path: Path, name: str, place: str, packed: bool
) -> None:
    write_idx(tmp_path / IDX_SETS[name] / place, packed=packed)
    dataset = load(name, tmp_path, download=False)
    assert dataset.name == name
    assert holds(dataset, SMALL, 20)
    assert torch.equal(dataset.train_indices, torch.arange(20))
    assert torch.equal(dataset.test_indices, torch.arange(20, 30))


def test_files_of_another_dataset_are_not_taken(tmp_path: Path) -> None:
    write_idx(tmp_path)
    write_idx(tmp_path / "KMNIST" / "raw")
    with pytest.raises(FileNotFoundError, match=r"must be put into .*/MNIST/raw, from https://"):
        load("mnist", tmp_path, download=False)


def test_kmnist_10k_is_four_fifths_and_one_fifth_of_the_test_images(tmp_path: Path) -> None:
    write_idx(tmp_path / "KMNIST" / "raw", test=50)
    for path in (tmp_path / "KMNIST" / "raw").glob("train-images*"):
        path.unlink()
    dataset = load("kmnist-10k", tmp_path, download=False)
    assert holds(dataset, expected(draw(50, 6, 5, seed=1)), 40)
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte.gz must be put into"):
        load("kmnist", tmp_path, download=False)


@pytest.mark.parametrize("place", ["files", "archive", "own/archive"])
def test_cifar10_is_found_as_files_or_as_their_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    files = cifar10_files()
    if place == "files":
        (tmp_path / "cifar-10-batches-bin").mkdir()
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
    else:
        folder = tmp_path / "cifar-10" if "own" in place else tmp_path
        folder.mkdir(exist_ok=True)
        (folder / "cifar-10-binary.tar.gz").write_bytes(cifar10_tar(files))
        with pytest.raises(ValueError, match="binary.tar.gz must have the md5 checksum c32a1d"):
            load("cifar-10", tmp_path, download=False)
        publish(monkeypatch, "cifar-10", folder)
    wanted = expected(*(draw(10, 3, 32, 32, seed=i) for i in range(6)))
    assert holds(load("cifar-10", tmp_path, download=False), wanted, 50)


@pytest.mark.parametrize("place", ["svhn", "."])
def test_svhn_is_read_where_its_checksums_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    wanted = write_svhn(tmp_path / place)
    with pytest.raises(ValueError, match="train_32x32.mat must have the sha256 checksum 435e94"):
        load("svhn", tmp_path, download=False)
    publish(monkeypatch, "svhn", tmp_path / place)
    assert holds(load("svhn", tmp_path, download=False), wanted, 20)


def test_digits_need_no_file(tmp_path: Path) -> None:
    one, two = load("digits", tmp_path, download=False), load("digits")
    assert fingerprint(one) == fingerprint(two)
    assert repr(one).startswith("SingleDataset(name='digits', images=Images(1797 of 10 classes")
    assert one.images.pixels.shape == (1797, 1, 8, 8)
    assert (one.train, len(one.test_indices)) == (1437, 360)
    assert one.images.pixels.max() == 255
    # The test images are like the training images: the file's order is not.
    rates = [
        one.images.labels[n].bincount() / len(n) for n in (one.train_indices, one.test_indices)
    ]
    assert (rates[0] - rates[1]).abs().max() < 0.05
    assert os.listdir(tmp_path) == []


def test_the_data_folder_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(tmp_path / "MNIST")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert holds(load("mnist"), SMALL, 20)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="dataset must be one of digits, mnist, .*got imagenet"):
        load("imagenet")


def test_missing_files_are_named_with_place_and_address(tmp_path: Path) -> None:
    for name in set(DATASETS) - {"digits"}:
        with pytest.raises(FileNotFoundError, match=rf"must be put into {tmp_path}.* from http"):
            load(name, tmp_path, download=False)
    assert os.listdir(tmp_path) == []


def test_parts_of_different_sizes_are_refused(tmp_path: Path) -> None:
    write_idx(tmp_path / "MNIST")
    (tmp_path / "MNIST" / "t10k-images-idx3-ubyte.gz").write_bytes(idx(draw(10, 6, 6)[0]))
    with pytest.raises(ValueError, match=r"must have the training images' size, got .*1, 6, 6"):
        load("mnist", tmp_path, download=False)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    write_idx(tmp_path / "MNIST")
    path = tmp_path / "MNIST" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=f"^{path} must be a whole gzip file"):
        load("mnist", tmp_path, download=False)


# Downloads


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    folder = tmp_path / "server"
    folder.mkdir()
    handler = partial(Silent, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()
        thread.join()


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("level", [1, 9])
def test_idx_downloads_are_checked_by_their_content(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    address, folder = server
    write_idx(folder)
    publish(monkeypatch, "mnist", folder, f"{address}/nowhere", address)
    for path in folder.iterdir():  # packed anew
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), level, mtime=level))
    for download in (True, False):
        assert holds(load("mnist", tmp_path / "data", download=download), SMALL, 20)
    assert left(tmp_path / "data" / "MNIST" / "raw") == left(folder)
    assert len(left(tmp_path / "data")) == 4


@pytest.mark.parametrize("damage", ["another content", "cut", "no gzip"])
def test_downloads_of_another_content_are_refused_and_leave_nothing(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    address, folder = server
    write_idx(folder)
    publish(monkeypatch, "mnist", folder, address)
    path = folder / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    contents = {
        "another content": gzip.compress(idx(draw(20, 6, 5, seed=9)[0])),
        "cut": whole[:-5],
        "no gzip": gzip.decompress(whole),
    }
    path.write_bytes(contents[damage])
    with pytest.raises(ValueError, match=rf"{address}/train-images.* must have the gzip\+sha256"):
        load("mnist", tmp_path / "data")
    assert left(tmp_path / "data") == []


def test_archives_and_mat_files_are_downloaded_with_checksums(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = server
    wanted = write_svhn(folder)
    (folder / "cifar-10-binary.tar.gz").write_bytes(cifar10_tar(cifar10_files()))
    for name in ("svhn", "cifar-10"):
        with monkeypatch.context() as other:
            publish(other, name, folder, address)
            for path in folder.iterdir():
                path.write_bytes(path.read_bytes() + b"more")
            with pytest.raises(ValueError, match=f"^{address}/.* must have the md5 checksum"):
                load(name, tmp_path / "data")
            for path in folder.iterdir():
                path.write_bytes(path.read_bytes()[:-4])
    assert left(tmp_path / "data") == []
    for name in ("svhn", "cifar-10"):
        publish(monkeypatch, name, folder, address)
    assert holds(load("svhn", tmp_path / "data"), wanted, 20)
    assert load("cifar-10", tmp_path / "data").train == 50
    assert left(tmp_path / "data") == left(folder)


Read = Callable[[Path], Part]
IMAGES, LABELS = draw(12, 7, 5)
COLOURS, TEN = draw(12, 3, 32, 32)


def images_of(path: Path) -> Part:
    labels = path.with_name("labels")
    labels.write_bytes(idx(LABELS))
    return read_idx([path, labels])[0]


def labels_of(path: Path) -> Part:
    images = path.with_name("images")
    images.write_bytes(idx(IMAGES))
    return read_idx([images, path])[0]


def records_of(path: Path) -> Part:
    for name, content in cifar10_files(2).items():
        path.with_name(Path(name).name).write_bytes(content)
    return read_cifar10(path.replace(path.with_name("test_batch.bin")))[-1]


# The formats that are read from any file; the others are read if their checksum is known.
READERS: dict[str, tuple[Read, bytes]] = {
    "IDX images": (images_of, idx(IMAGES)),
    "IDX images, packed": (images_of, gzip.compress(idx(IMAGES))),
    "IDX labels": (labels_of, idx(LABELS)),
    "IDX labels, packed": (labels_of, gzip.compress(idx(LABELS))),
    "CIFAR-10": (records_of, cifar10(COLOURS, TEN)),
}


def same(found: Part, wanted: Part) -> bool:
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, wanted, strict=True))


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that tests write again and again."""
    return tmp_path_factory.mktemp("formats") / "file"


def refused(read: Read, path: Path, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path.parent}/")
    assert " must " in str(caught.value)
    assert "\n" not in str(caught.value)


# Round trips


@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 9), st.booleans(), st.booleans())
def test_idx_files_are_read_as_written(
    place: Path, P: int, height: int, width: int, packed: bool, both: bool
) -> None:
    images, labels = draw(P, height, width, seed=P)
    other = place.with_name("other")
    place.write_bytes(gzip.compress(idx(images)) if packed else idx(images))
    other.write_bytes(gzip.compress(idx(labels)) if both else idx(labels))
    (found,) = read_idx([place, other])
    assert same(found, expected((images, labels)))


@pytest.mark.parametrize("packed", [False, True])
def test_cifar10_is_read_from_its_files_and_from_their_archive(
    tmp_path: Path, packed: bool
) -> None:
    files = cifar10_files(3)
    path = tmp_path / ("cifar-10-binary.tar.gz" if packed else "test_batch.bin")
    if packed:
        more = {"cifar-10-batches-bin/readme.html": b"hello" * 300}
        path.write_bytes(cifar10_tar({**more, **dict(reversed(files.items()))}))
    else:
        for name, content in files.items():
            (tmp_path / Path(name).name).write_bytes(content)
    before = sorted(tmp_path.iterdir())
    sets = [expected(draw(3, 3, 32, 32, seed=i)) for i in range(6)]
    assert all(same(*both) for both in zip(read_cifar10(path), sets, strict=True))
    assert sorted(tmp_path.iterdir()) == before


@given(st.integers(1, 30), st.booleans())
def test_svhn_is_read_as_written(place: Path, P: int, compressed: bool) -> None:
    written = draw(P, 3, 32, 32, seed=P)
    place.write_bytes(svhn(*written, compressed))
    found = read_svhn(place)
    assert same(found, expected(written))
    assert found[0].is_contiguous()


def test_pixels_can_be_written_to(place: Path) -> None:
    # PyTorch warns of tensors over memory for reading only.
    svhn_file: tuple[Read, bytes] = (read_svhn, svhn(COLOURS, TEN))
    for read, content in (*READERS.values(), svhn_file):
        place.write_bytes(content)
        pixels, labels = read(place)
        pixels.zero_()
        labels.zero_()


# Damage of all kinds


def valid(found: Part) -> bool:
    pixels, labels = found
    return (
        pixels.dtype == torch.uint8
        and labels.dtype == torch.int64
        and pixels.ndim == 4
        and pixels.numel() > 0
        and labels.shape == pixels.shape[:1]
        and int(labels.min()) >= 0
        and int(labels.max()) < 10
    )


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Cuts, changes, inserts and appends; the first bytes, where headers are, more often."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        most = draw(st.sampled_from([16, 200, len(content)]))
        at = draw(st.integers(0, max(0, min(most, len(content)) - 1)))
        match draw(st.sampled_from(["cut", "bytes", "bit", "insert", "append", "drop"])):
            case "cut":
                del content[at:]
            case "bytes":
                other = draw(st.binary(min_size=1, max_size=8))
                content[at : at + len(other)] = other
            case "bit" if content:
                content[at] ^= 1 << draw(st.integers(0, 7))
            case "insert":
                content[at:at] = draw(st.binary(min_size=1, max_size=40))
            case "append":
                content += draw(st.binary(min_size=1, max_size=600))
            case "drop":
                del content[at : at + draw(st.integers(1, 600))]
    return bytes(content)


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_refused_or_valid(place: Path, name: str) -> None:
    read, whole = READERS[name]
    refusals = []

    @settings(max_examples=100)
    @given(damaged(whole))
    @example(b"")
    @example(whole[:-1])
    @example(whole + b"\1")
    @example(b"\1" + whole)
    def check(content: bytes) -> None:
        place.write_bytes(content)
        try:
            assert valid(read(place))
        except ValueError as error:
            refusals.append(str(error))
            assert " must " in str(error)  # noqa: PT017
            assert str(place.parent) in str(error)  # noqa: PT017

    check()
    assert len(refusals) > 20


@pytest.mark.parametrize("name", READERS)
def test_random_bytes_are_refused(place: Path, name: str) -> None:
    read = READERS[name][0]

    @given(st.binary(max_size=2000))
    def check(content: bytes) -> None:
        place.write_bytes(content)
        with pytest.raises(ValueError, match=r"^/.* must "):
            read(place)

    check()


# Damage of known kinds


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "IDX file of bytes with 3 axes, which starts with 00000803, got an empty file"),
        (idx(LABELS), "starts with 00000803, got 00000801"),
        (idx(IMAGES)[:10], "which starts with 00000803"),
        (idx(IMAGES)[:-1], "must hold 12 x 7 x 5 values as its header says, got fewer"),
        (idx(IMAGES) + b"\0", "must hold 12 x 7 x 5 values as its header says, got more"),
        (idx(IMAGES[:0]), "must hold 0 x 7 x 5 values"),
        (gzip.compress(idx(IMAGES)[:-1]), "values as its header says, got fewer"),
        (gzip.compress(idx(IMAGES) + b"\0"), "values as its header says, got more"),
        (gzip.compress(idx(IMAGES))[:-3], "must be a whole gzip file, got a damaged one"),
        (gzip.compress(idx(IMAGES)) + b"more", "must be a whole gzip file, got a damaged one"),
    ],
)
def test_wrong_images_get_one_sentence(place: Path, content: bytes, sentence: str) -> None:
    place.write_bytes(content)
    refused(images_of, place, sentence)


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (LABELS[:-1], "must hold a label for each of the 12 images, got 11"),
        (LABELS + 1, "must have labels 0 to 9, got 10"),
    ],
)
def test_wrong_labels_get_one_sentence(place: Path, labels: np.ndarray, sentence: str) -> None:
    place.write_bytes(idx(labels))
    refused(labels_of, place, sentence)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "must be records of 3073 bytes, got 0 bytes"),
        (cifar10(COLOURS, TEN)[:-1], "must be records of 3073 bytes, got 36875 bytes"),
        (cifar10(COLOURS, TEN + 7), "must have labels 0 to 9, got 16"),
    ],
)
def test_wrong_records_get_one_sentence(place: Path, content: bytes, sentence: str) -> None:
    place.write_bytes(content)
    refused(records_of, place, sentence)


def test_a_missing_file_is_no_damage(tmp_path: Path) -> None:
    for read in (read_cifar10, read_svhn):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        read_idx([tmp_path / "none"] * 2)


# Memory


HUGE = struct.pack(">HBB3I", 0, 8, 3, 1 << 31, 28, 28) + bytes(99)


@pytest.mark.parametrize(
    "content",
    [HUGE, gzip.compress(HUGE), gzip.compress(idx(IMAGES) + bytes(60_000_000), 9)],
    ids=["header", "packed header", "more than the header says"],
)
def test_bombs_do_not_go_off(place: Path, content: bytes) -> None:
    place.write_bytes(content)
    tracemalloc.start()
    try:
        refused(images_of, place, "values as its header says, got")
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("packed", [False, True])
def test_reading_takes_twice_the_content_at_most(place: Path, packed: bool) -> None:
    images, labels = draw(20_000, 28, 28)
    place.write_bytes(gzip.compress(idx(images), 1) if packed else idx(images))
    place.with_name("y").write_bytes(idx(labels))
    tracemalloc.start()
    try:
        read_idx([place, place.with_name("y")])
        assert tracemalloc.get_traced_memory()[1] < 2.2 * images.nbytes + 2_000_000
    finally:
        tracemalloc.stop()


# The downloader, against a server of our own

CONTENT = b"a dataset" * 10_000
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()

Find = Callable[..., Path]


class Handler(BaseHTTPRequestHandler):
    """Serves one file, a part of it, or nothing at all."""

    asked: list[str] = []  # noqa: RUF012 (shared by all requests, on purpose)
    over = Event()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/silent":
            self.over.wait(30)
            return None
        if self.path not in ("/file", "/cut"):
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT if self.path == "/file" else CONTENT[:1000])

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    Handler.asked.clear()
    Handler.over.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        Handler.over.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def find(tmp_path: Path) -> Find:
    def look(urls: list[str], download: bool = True, **more: Any) -> Path:
        settings: dict[str, Any] = {"checksums": (MD5,), **more}
        file = DataFile("letters", "data.zip", urls=tuple(urls), **settings)
        return find_file(file, tmp_path, download)

    return look


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("checksum", [MD5, SHA256])
def test_a_missing_file_is_downloaded_once(
    find: Find, address: str, tmp_path: Path, checksum: str
) -> None:
    for _ in range(2):
        path = find(checksums=(checksum,), urls=[f"{address}/file"])
        assert path == tmp_path / "letters" / "data.zip"
        assert path.read_bytes() == CONTENT
    assert Handler.asked == ["/file"]
    assert files_in(tmp_path) == [path]


@pytest.mark.parametrize("place", ["data.zip", "letters/data.zip"])
def test_a_file_that_is_there_is_taken_as_it_is(find: Find, tmp_path: Path, place: str) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / place).write_bytes(b"packed anew")
    assert find(urls=["http://127.0.0.1:1/file"]) == tmp_path / place


def test_a_file_that_is_there_must_have_a_checksum_if_its_reader_trusts_it(
    find: Find, tmp_path: Path
) -> None:
    path = tmp_path / "data.zip"
    path.write_bytes(CONTENT)
    for checksums in ((MD5,), (SHA256,), ("md5:0123", SHA256), (MD5, "md5:0123")):
        assert find([], checksums=checksums, verify=True) == path
    path.write_bytes(b"packed anew")
    with pytest.raises(ValueError, match=rf"^{path} must have the md5 checksum {MD5[4:]}, got"):
        find([], verify=True)
    (tmp_path / "data.bin").touch()  # its own reader decides
    assert find([], verify=True, unpacked=("data.bin",)) == tmp_path / "data.bin"


def test_another_checksum_is_refused_and_nothing_is_left(
    find: Find, address: str, tmp_path: Path
) -> None:
    sentence = rf"{address}/file must have the md5 checksum 0123, got {MD5[4:]}"
    with pytest.raises(ValueError, match=sentence):
        find(checksums=("md5:0123",), urls=[f"{address}/file"])
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(("page", "reason"), [("gone", "HTTPError: 404"), ("cut", "ncomplete")])
def test_a_failed_download_names_file_folder_and_address(
    find: Find, address: str, tmp_path: Path, page: str, reason: str
) -> None:
    url = f"{address}/{page}"
    with pytest.raises(FileNotFoundError) as caught:
        find(urls=[url])
    sentence = str(caught.value)
    expected = f"data.zip must be put into {tmp_path / 'letters'}, from {url}: "
    assert sentence.startswith(expected)
    assert reason in sentence
    assert len(sentence.removeprefix(expected)) < 250
    assert files_in(tmp_path) == []


def test_the_next_address_is_tried(find: Find, address: str) -> None:
    urls = ["http://127.0.0.1:1/file", f"{address}/gone", f"{address}/file"]
    assert find(urls=urls).read_bytes() == CONTENT


def test_without_a_server_it_fails_at_once(find: Find) -> None:
    before = time.monotonic()
    with pytest.raises(FileNotFoundError, match="ConnectionError"):
        find(urls=["http://127.0.0.1:1/file"])
    assert time.monotonic() - before < 5


def test_a_silent_server_is_given_up(
    find: Find, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert max(datasets.TIMEOUT) <= 10
    monkeypatch.setattr(datasets, "TIMEOUT", (0.2, 0.2))
    with pytest.raises(FileNotFoundError, match="ReadTimeout"):
        find(urls=[f"{address}/silent"])
    assert files_in(tmp_path) == []


def test_downloads_can_be_off(find: Find, address: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"data.zip must be put into .*downloads are off"):
        find(urls=[f"{address}/file"], download=False)
    assert Handler.asked == []


def test_a_folder_that_cannot_be_made_is_said(address: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileNotFoundError, match="downloading it failed"):
        find_file(DataFile("x", "data.zip", (MD5,), (f"{address}/file",)), tmp_path / "file")


def test_the_folder_is_the_argument_else_the_variable_else_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURAL_COMPLEXITY_DATA", str(tmp_path))
    assert data_folder("here") == data_folder(Path("here")) == Path("here")
    assert data_folder() == tmp_path
    assert data_folder("~/data") == Path.home() / "data"
    monkeypatch.setenv("NEURAL_COMPLEXITY_DATA", "")
    assert data_folder() == cache_folder()
    monkeypatch.delenv("NEURAL_COMPLEXITY_DATA")
    assert data_folder() == cache_folder()
    assert cache_folder().name == "neural-complexity"


# What is kept of files


@pytest.fixture
def users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def test_what_was_read_is_not_read_again(tmp_path: Path, users_cache: Path) -> None:
    readings = []

    def read() -> dict[str, torch.Tensor]:
        readings.append(1)
        return {"a": torch.arange(3)}

    for folder, key, times in (("x", "1", 1), ("x", "1", 1), ("x", "2", 2), ("y", "2", 3)):
        kept = cached("name", key, tmp_path / folder, read)
        assert torch.equal(kept["a"], torch.arange(3))
        assert len(readings) == times
    assert not users_cache.exists()
    (file,) = (tmp_path / "y").iterdir()
    for content in (b"", b"hello", file.read_bytes()[:-3]):  # made again
        file.write_bytes(content)
        assert torch.equal(cached("name", "2", tmp_path / "y", read)["a"], torch.arange(3))
        times += 1
        assert len(readings) == times


def test_a_folder_that_cannot_be_written_to_leaves_the_users_cache(
    tmp_path: Path, users_cache: Path
) -> None:
    (tmp_path / "file").touch()  # no folder at all
    for _ in range(2):
        assert cached("name", "1", tmp_path / "file" / "x", lambda: {"a": torch.ones(1)})
    assert len(list(users_cache.iterdir())) == 1
    users_cache.rename(tmp_path / "other")
    users_cache.touch()
    assert cached("name", "1", tmp_path / "file" / "x", lambda: {"a": torch.ones(1)})
