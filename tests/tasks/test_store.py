"""Datasets in a file, mapped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from labelled import draw
from neural_complexity.tasks.images import Images, SingleDataset
from neural_complexity.tasks.store import _content, open_store, store, write_store
from neural_complexity.workspace import fingerprint


def dataset(P: int, *shape: int, train: int) -> SingleDataset:
    pixels, labels = draw(P, *shape, seed=P)
    images = Images(torch.from_numpy(pixels), torch.from_numpy(labels).long() % 2)
    return SingleDataset(f"noise {P}", images, train)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "data.safetensors"


@given(st.integers(3, 40), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5))
def test_what_is_stored_is_opened(
    place: Path, P: int, channels: int, height: int, width: int
) -> None:
    one = dataset(P, channels, height, width, train=P - 1)
    for other in (store(one, place), open_store(str(place))):
        assert fingerprint(other) == fingerprint(one)
        assert torch.equal(other.images.pixels, one.images.pixels)
        assert torch.equal(other.images.labels, one.images.labels)
        assert torch.equal(other(torch.arange(P)), one(torch.arange(P)))
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_a_store_can_be_stored_over_itself(tmp_path: Path) -> None:
    one = store(dataset(20, 1, 3, 3, train=10), tmp_path / "a")
    before = fingerprint(one)
    assert fingerprint(store(one, tmp_path / "a")) == before == fingerprint(one)


def test_writing_to_mapped_pixels_leaves_the_file(tmp_path: Path) -> None:
    one = store(dataset(20, 1, 3, 3, train=10), tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    one.images.pixels.zero_()
    del one
    assert (tmp_path / "a").read_bytes() == before


@pytest.mark.skipif(sys.platform != "linux", reason="needs files with holes")
def test_a_store_may_be_larger_than_the_memory(tmp_path: Path) -> None:
    # Only the first image and the labels take room on the disk.
    P = 2 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    first = torch.from_numpy(draw(1, 1, 1024, 1024)[0])
    header, _, labels = _content(
        "large", (P, 1, 1024, 1024), P // 2, [(first, torch.arange(P) % 7)]
    )
    with (tmp_path / "large").open("wb") as file:
        file.write(header)
        file.write(first.numpy().data)
        file.seek(len(header) + (P << 20))
        file.write(labels)
    dataset = open_store(tmp_path / "large")
    assert len(dataset.images) == P
    numbers = torch.tensor([[P - 1, 0, P // 2]])
    values = dataset.images(numbers)
    assert torch.equal((255 * values[0, 1]).round().to(torch.uint8), first[0])
    assert values[0, ::2].max() == 0


CODE = """
import sys
import torch
from neural_complexity.tasks.store import _content, open_store, write_store
from neural_complexity.workspace import fingerprint

def own():  # memory of the process itself, without pages of files that can be dropped at will
    return 1024 * int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0])

total, piece = 40_960, 256
pixels, labels = torch.randint(0, 256, (piece, 3, 32, 32), dtype=torch.uint8), torch.arange(piece)
part = (pixels, labels % 10)
small = write_store(sys.argv[1] + "-small", "small", (piece, 3, 32, 32), 200, [part])
small(torch.arange(8))  # what takes memory once has it now
before = own()
dataset = write_store(sys.argv[1], "large", (total, 3, 32, 32), 40_000, [part] * (total // piece))
assert dataset.images.pixels.nbytes > 120_000_000
fingerprint(dataset)
for _ in range(10):
    values = dataset(torch.randint(0, total, (4, 64)))
assert own() - before < 30_000_000, own() - before
print(dataset)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_writing_and_reading_take_no_memory_for_the_whole(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "large")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "Images(40960 of 10 classes, 3x32x32)" in run.stdout


def test_parts_that_are_no_dataset_write_nothing(tmp_path: Path) -> None:
    pixels = torch.from_numpy(draw(10, 1, 3, 3)[0])
    for labels, sentence in (
        (torch.zeros(10, dtype=torch.int64), "must have at least two classes"),
        (torch.arange(10) + 1, "labels must be 0"),
        (torch.arange(9), "one for each of 10 images"),
    ):
        with pytest.raises(ValueError, match=sentence):
            write_store(tmp_path / "a", "x", pixels.shape, 10 - 1, [(pixels, labels)])
    assert list(tmp_path.iterdir()) == []


def test_damaged_stores_are_refused_or_whole(place: Path) -> None:
    store(dataset(20, 1, 3, 3, train=10), place)
    whole = place.read_bytes()
    path = place.with_name("damaged")

    @given(st.integers(0, len(whole) - 1), st.integers(1, 255), st.booleans())
    def check(at: int, change: int, cut: bool) -> None:
        content = bytearray(whole[:at] if cut else whole)
        if not cut:
            content[at] ^= change
        path.write_bytes(content)
        try:
            assert len(open_store(path).images) == 20
        except ValueError as error:
            assert str(error).startswith(f"{path} must")  # noqa: PT017

    check()
    path.unlink()


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(FileNotFoundError):
        open_store(path)
    save_file({"pixels": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="must hold pixels, labels, name and train of a dataset"):
        open_store(path)
    whole = {"pixels": torch.zeros(3, 1, 2, 2, dtype=torch.uint8), "labels": torch.arange(3) % 2}
    right = {"name": "x", "train": "2"}
    save_file(whole, path, right)
    assert len(open_store(path).images) == 3
    for tensors, header in (
        ({**whole, "pixels": torch.zeros(3, 1, 2, 2)}, right),
        ({**whole, "labels": torch.zeros(3)}, right),
        ({"labels": whole["labels"]}, right),
        (whole, {"name": "x", "train": "many"}),
        (whole, {"name": "x"}),
        (whole, None),
    ):
        save_file(tensors, path, header)
        with pytest.raises(ValueError, match="got another or a damaged file"):
            open_store(path)
