"""Datasets of arrays, tensors and PyTorch datasets, in memory and in a mapped file."""

import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from labelled import draw
from neural_complexity.tasks.from_arrays import (
    _content,
    from_arrays,
    from_datasets,
    open_store,
    write_store,
)
from neural_complexity.tasks.images import Images, SingleDataset
from neural_complexity.workspace import fingerprint

X, Y = draw(150, 3, 8, 6)
GREY = X[:, 0]
LAYOUTS: dict[str, tuple[np.ndarray, np.ndarray]] = {
    "grey": (GREY, GREY[:, None]),
    "channels first": (X, X),
    "channels last": (X.transpose(0, 2, 3, 1), X),
    "one channel first": (GREY[:, None], GREY[:, None]),
    "one channel last": (GREY[..., None], GREY[:, None]),
}


class Pairs(Dataset[tuple[Any, Any]]):
    """A dataset of whatever a function makes of an image and its label."""

    def __init__(self, start: int, stop: int, make: Callable[[np.ndarray, int], Any]) -> None:
        self.rows, self.make = range(start, stop), make

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        return self.make(X[self.rows[i]], int(Y[self.rows[i]]))


def holds(dataset: SingleDataset, pixels: np.ndarray) -> bool:
    return (
        dataset.train == 100
        and dataset.name == "mine"
        and torch.equal(dataset.images.pixels, torch.from_numpy(pixels.copy()))
        and torch.equal(dataset.images.labels, torch.from_numpy(Y).long())
    )


def arrays(values: Any, labels: Any = Y, **more: Any) -> SingleDataset:
    return from_arrays("mine", values[:100], labels[:100], values[100:], labels[100:], **more)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_arrays_of_every_layout_and_kind_give_the_same(
    tmp_path: Path, layout: str, kind: str, tensors: bool, kept: bool
) -> None:
    values, wanted = LAYOUTS[layout]
    if kind != "uint8":
        values = values.astype(kind) / np.array(255, kind)
    labels = Y.astype("float32" if kind == "float32" else "int64")
    path = tmp_path / "kept" if kept else None
    if tensors:
        dataset = arrays(torch.tensor(values), torch.from_numpy(labels), path=path)
    else:
        dataset = arrays(values, labels, path=path)
    assert holds(dataset, wanted)
    assert dataset.images.pixels.is_contiguous()
    assert [path] * kept == list(tmp_path.iterdir())


def test_mapped_arrays_for_reading_only_do(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    assert holds(arrays(np.load(tmp_path / "x.npy", mmap_mode="r")), X)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_floats_become_the_nearest_level(values: list[float]) -> None:
    images = np.array(values)[None, None].repeat(4, axis=0)
    labels = np.array([0, 1])
    dataset = from_arrays("mine", images[:2], labels, images[2:], labels)
    got = dataset.images(torch.arange(4))[0, 0, 0]
    assert (got - torch.tensor(values)).abs().max() <= 0.5 / 255 + 1e-12


@pytest.mark.parametrize(
    ("make", "pixels"),
    [
        (lambda x, y: (torch.from_numpy(x), y), X),
        (lambda x, y: [torch.from_numpy(x) / 255, torch.tensor(y)], X),
        (lambda x, y: (x.transpose(1, 2, 0), np.int32(y)), X),
        (lambda x, y: (x[0], np.array([y])), GREY[:, None]),
        (lambda x, y: (Image.fromarray(x.transpose(1, 2, 0)), y), X),
        (lambda x, y: (Image.fromarray(x[0]), float(y)), GREY[:, None]),
    ],
)
@pytest.mark.parametrize("kept", [False, True])
def test_datasets_of_every_kind_give_the_same(
    tmp_path: Path, make: Callable[[np.ndarray, int], Any], pixels: np.ndarray, kept: bool
) -> None:
    path = tmp_path / "kept" if kept else None
    dataset = from_datasets("mine", Pairs(0, 100, make), Pairs(100, 150, make), path=path)
    assert holds(dataset, pixels)


def test_a_tensor_dataset_is_one() -> None:
    whole = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    parts = [torch.utils.data.Subset(whole, range(*ends)) for ends in ((0, 100), (100, 150))]
    assert holds(from_datasets("mine", *parts), X)


def changed(values: np.ndarray, at: int, value: float) -> np.ndarray:
    other = values.copy()
    other[at] = value
    return other


FLOATS = X / 255


@pytest.mark.parametrize(
    ("values", "labels", "error", "sentence"),
    [
        (FLOATS * 2 - 1, Y, ValueError, "X_train must have values from 0 to 1, got -1 to 1"),
        (changed(FLOATS, 120, 1.5), Y, ValueError, "X_test must have .* 0 to 1, got .* to 1.5"),
        (changed(FLOATS, 3, np.nan), Y, ValueError, "from 0 to 1, got nan to nan"),
        (changed(FLOATS, 3, np.inf), Y, ValueError, "from 0 to 1, got .* to inf"),
        (X.astype("int64"), Y, TypeError, "X_train must be uint8 or floats from 0 to 1, got"),
        (X.astype("complex64"), Y, TypeError, "X_train must hold numbers, got complex64"),
        (X.astype("datetime64[s]"), Y, TypeError, "X_train must hold numbers, got datetime"),
        (X.reshape(150, -1), Y, ValueError, r"X_train must be images, .* got shapes \(100, 144\)"),
        (X[:, :, :, :0], Y, ValueError, r"X_train must .* got shapes \(100, 3, 8, 0\)"),
        (X[:100], Y[:100], ValueError, r"X_test must be images, .*got shapes \(0, 3, 8, 6\)"),
        (X.reshape(150, 12, 2, 6), Y, ValueError, r"1 to 4 channels, .*got images of \(12, 2, 6"),
        (X, Y[:140], ValueError, r"y_test one label each, got .* and \(40,\)"),
        (X, Y[:, None], ValueError, r"y_train one label each, got .* and \(100, 1\)"),
        (X, Y + 1, ValueError, "labels must be 0 ... classes - 1 .* from 1 to 10"),
        (X, Y.astype(int) - 1, ValueError, "labels at least 0, got -1 to 8"),
        (X, Y + 0.5, ValueError, "y_train must hold whole numbers as labels, got 0.5"),
        (X, changed(Y + 0.0, 140, np.nan), ValueError, "y_test must hold whole .*, got nan"),
        (X, changed(Y + 0.0, 40, 1e30), ValueError, "y_train must hold whole .*, got 1e"),
        (X, changed(Y + 0.0, 40, np.inf), ValueError, "y_train must hold whole .*, got inf"),
        (X, changed(Y, 140, 10), ValueError, "training images of 11 classes, got 10"),
        (X, changed(Y, 140, 200), ValueError, "got 11 different ones from 0 to 200"),
        (X, Y * 0, ValueError, "mine must have at least two classes, got one"),
        (X, Y.astype(str), TypeError, "y_train must hold numbers, got text"),
    ],
)
@pytest.mark.parametrize("kept", [False, True])
def test_wrong_arrays_are_refused_and_leave_nothing(
    tmp_path: Path,
    values: np.ndarray,
    labels: np.ndarray,
    error: type[Exception],
    sentence: str,
    kept: bool,
) -> None:
    with pytest.raises(error, match=sentence):
        arrays(values, labels, path=tmp_path / "kept" if kept else None)
    assert list(tmp_path.iterdir()) == []


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"size of the first, \(3, 8, 6\), got \(3, 8, 5\)"):
        from_arrays("mine", X[:100], Y[:100], X[100:, ..., :5], Y[100:])


class Endless(IterableDataset[tuple[Any, Any]]):
    """A dataset without a length."""

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return iter([])


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda x, y: x + y, TypeError, r"train must give \(image, label\), got images alone"),
        (lambda x, y: (x, y, 0), TypeError, r"train must give \(x, y\) or x, got tuple of 3"),
        (lambda x, y: (x.astype(str), y), TypeError, "train must hold numbers, got text"),
        (lambda x, y: (x[..., : 5 + y % 2], y), ValueError, "train must have points of one size"),
        (lambda x, y: (x[0, 0], y), ValueError, "channels, first or last, got images of"),
        (lambda x, y: (x[None], y), ValueError, "got images of|channels"),
        (lambda x, y: (x, [y, y]), ValueError, r"must be \(points,\), one label each"),
        (lambda x, y: (x / 100, y), ValueError, "train must have values from 0 to 1, got 0 to"),
        (lambda x, y: (x, y / 3), ValueError, "train must hold whole numbers as labels"),
    ],
)
def test_wrong_datasets_are_refused(
    make: Callable[[np.ndarray, int], Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        from_datasets("mine", Pairs(0, 100, make), Pairs(100, 150, make))


def test_datasets_without_length_or_content_are_refused() -> None:
    one = Pairs(0, 100, lambda x, y: (x, y))
    with pytest.raises(TypeError, match="test must have a length, got Endless"):
        from_datasets("mine", one, Endless())
    with pytest.raises(ValueError, match="test must not be empty"):
        from_datasets("mine", one, Pairs(0, 0, one.make))


def dataset(P: int, *shape: int, train: int) -> SingleDataset:
    pixels, labels = draw(P, *shape, seed=P)
    images = Images(torch.from_numpy(pixels), torch.from_numpy(labels).long() % 2)
    return SingleDataset(f"noise {P}", images, train)


def store(one: SingleDataset, path: Path) -> SingleDataset:
    pixels = one.images.pixels
    parts = zip(pixels.split(7), one.labels.split(7), strict=True)
    return write_store(path, one.name, pixels.shape, one.train, parts)


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


def test_parts_are_written_one_by_one_and_read_from_the_file(tmp_path: Path) -> None:
    total, size = 20, 64
    alive: list[weakref.ref[torch.Tensor]] = []

    def parts() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(total):
            gc.collect()
            # The one just written may still be held, and none before it.
            assert sum(ref() is not None for ref in alive) <= 1
            pixels = torch.randint(0, 256, (size, 3, 8, 8), dtype=torch.uint8)
            alive.append(weakref.ref(pixels))
            yield pixels, torch.arange(size) % 10
            del pixels

    place = tmp_path / "large"
    dataset = write_store(place, "large", (total * size, 3, 8, 8), 1000, parts())
    assert len(alive) == total
    if sys.platform == "linux":  # mapped, not read
        assert str(place) in Path("/proc/self/maps").read_text()
    before = dataset.images.pixels[-1].clone()
    assert dataset(torch.arange(8)).shape == (8, 3, 8, 8)
    with place.open("r+b") as file:  # a page that nobody changed follows the file
        content = file.read()
        end = content.rindex(before.numpy().tobytes())
        file.seek(end)
        file.write((255 - before).numpy().tobytes())
    assert torch.equal(dataset.images.pixels[-1], 255 - before)


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
