"""Datasets by name, from small files in the places of the real ones, and whitening."""

import gzip
import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch

from labelled import cifar10_files, cifar10_tar, draw, expected, idx, svhn, write_idx
from neural_complexity.tasks.datasets import VARIABLE, DataFile
from neural_complexity.tasks.image_datasets import DATASETS, load
from neural_complexity.tasks.images import SingleDataset
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
    """Gives a dataset the checksums of files in a folder, and other addresses."""

    def own(file: DataFile) -> DataFile:
        content = (folder / file.name).read_bytes()
        kind = "gzip+sha256" if file.name.endswith("ubyte.gz") else "md5"
        digest = hashlib.md5(content) if kind == "md5" else hashlib.sha256(gzip.decompress(content))
        addresses = tuple(f"{url}/{file.name}" for url in urls) or file.urls
        return replace(file, checksums=(f"{kind}:{digest.hexdigest()}",), urls=addresses)

    source = DATASETS[name]
    monkeypatch.setitem(DATASETS, name, replace(source, files=tuple(map(own, source.files))))


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
    with pytest.raises(ValueError, match="train_32x32.mat must have the md5 checksum e26ded"):
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
