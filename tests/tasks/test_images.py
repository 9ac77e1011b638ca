"""Stores of images, standardized, moved, made of arrays and mapped; few-shot tasks."""

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
from torch.nn.functional import pad
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from glyphs import glyphs
from labelled import draw
from neural_complexity.points import raw
from neural_complexity.seeding import stream
from neural_complexity.tasks.images import (
    FewShot,
    Images,
    SingleDataset,
    _content,
    from_arrays,
    from_datasets,
    moved,
    open_store,
    write_store,
)
from neural_complexity.workspace import fingerprint


def noise(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (1, 1, 4)])
def test_numbers_give_their_images(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.set_default_dtype(dtype)
    images = Images(noise(7, 3, 4, 6), torch.arange(7))
    numbers = torch.randint(0, 7, shape)
    values = images(numbers)
    assert values.dtype == dtype
    assert values.shape == (*shape, 3, 4, 6)
    assert torch.equal((255 * values).round().to(torch.uint8), images.pixels[numbers])
    assert values.min() >= 0
    assert values.max() <= 1


@pytest.mark.parametrize("number", [-1, 7])
def test_numbers_beyond_the_store_are_refused(number: int) -> None:
    with pytest.raises(IndexError):
        Images(noise(7, 1, 2, 2), torch.arange(7))(torch.tensor([number]))


@given(st.permutations(list(range(6))), st.sampled_from([1, 3]), st.integers(1, 5))
def test_rotations_are_rotations(order: list[int], channels: int, side: int) -> None:
    labels = torch.tensor(order) % 3
    images = Images(noise(6, channels, side, side), labels)
    turned = images.rotated()
    assert (len(turned), turned.classes) == (24, 12)
    first = turned.pixels[:6]
    assert torch.equal(first, images.pixels)
    for k in range(4):
        assert torch.equal(turned.labels[6 * k : 6 * k + 6], labels + 3 * k)
        # Counter-clockwise, the last column becomes the first row.
        following = turned.pixels[6 * (k + 1) % 24 :][:6]
        assert torch.equal(following[..., 0, :], turned.pixels[6 * k : 6 * k + 6][..., :, -1])
        assert torch.equal(following, turned.pixels[6 * k : 6 * k + 6].mT.flip(-2))


def test_only_square_images_can_be_rotated() -> None:
    with pytest.raises(ValueError, match=r"images must be square to be rotated, got \(2, 3\)"):
        Images(noise(4, 1, 2, 3), torch.arange(4)).rotated()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_counts_and_order_agree_with_the_labels(drawn: list[int]) -> None:
    labels = torch.tensor(drawn).unique(return_inverse=True)[1]
    images = Images(noise(len(drawn), 1, 2, 2), labels)
    assert images.classes == len(set(drawn))
    assert torch.equal(labels[images.by_class].bincount(), images.counts)
    assert (labels[images.by_class].diff() >= 0).all()
    assert sorted(images.by_class.tolist()) == list(range(len(drawn)))


def test_equal_fingerprints_mean_equal_images() -> None:
    assert fingerprint(glyphs(3, 2)) == fingerprint(glyphs(3, 2))
    assert repr(glyphs(3, 2)) == "Images(6 of 3 classes, 1x28x28)"
    one = glyphs(3, 2)
    pixels = one.pixels.clone()
    pixels[5, 0, 27, 27] += 1
    others = [Images(pixels, one.labels), Images(one.pixels, one.labels.flip(0)), glyphs(3, 2, 1)]
    assert len({fingerprint(images) for images in [one, *others]}) == 4


@pytest.mark.parametrize(
    ("pixels", "labels", "sentence"),
    [
        (torch.zeros(2, 1, 3, 3), torch.arange(2), "pixels must be uint8 and labels int64, got"),
        (noise(2, 1, 3, 3), torch.zeros(2), "labels int64, got torch.uint8 and torch.float"),
        (noise(2, 3, 3), torch.arange(2), r"pixels must be \(P, channels, .*got shape \(2, 3, 3\)"),
        (noise(2, 0, 3, 3), torch.arange(2), r"got shape \(2, 0, 3, 3\)"),
        (noise(2, 1, 3, 3), torch.arange(3), r"one for each of 2 images, got \(3,\)"),
        (noise(2, 1, 3, 3), torch.tensor([0, -1]), "0 ... classes - 1 .* from -1 to 0"),
        (noise(3, 1, 3, 3), torch.tensor([0, 2, 2]), "got 2 different ones from 0 to 2"),
        (noise(2, 1, 3, 3), torch.tensor([0, 2**60]), "from 0 to 1152921504606846976"),
    ],
)
def test_impossible_images_are_refused(
    pixels: torch.Tensor, labels: torch.Tensor, sentence: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        Images(pixels, labels)


# Standardized


def split(P: int, channels: int, height: int, width: int, train: int) -> SingleDataset:
    return SingleDataset(
        "noise", Images(noise(P, channels, height, width), torch.arange(P) % 2), train
    )


@given(
    st.integers(2, 20), st.integers(1, 4), st.integers(1, 6), st.integers(1, 6), st.integers(1, 9)
)
def test_training_images_are_standardized(
    train: int, channels: int, height: int, width: int, test: int
) -> None:
    one = split(train + test, channels, height, width, train)
    values = one.images(one.train_indices)
    mean = values.mean(dim=(0, 2, 3))[:, None, None]
    std = values.std(dim=(0, 2, 3), correction=0)[:, None, None]
    every = torch.arange(train + test)
    expected = (one.images(every) - mean) / std.where(std > 0, torch.ones(()))
    torch.testing.assert_close(one(every), expected)


def test_statistics_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = split(50, 3, 4, 5, 30)
    before = whole(torch.arange(50))
    monkeypatch.setattr("neural_complexity.tasks.images.CHUNK", 100)
    again = split(50, 3, 4, 5, 30)
    assert torch.equal(before, again(torch.arange(50)))


def test_test_images_change_no_statistic() -> None:
    one = split(30, 3, 4, 5, 20)
    pixels = one.images.pixels.clone()
    pixels[20:] = 0
    other = SingleDataset("noise", Images(pixels, one.images.labels), 20)
    assert torch.equal(one(one.train_indices), other(one.train_indices))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0, 3)])
def test_indices_give_images_in_their_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.set_default_dtype(dtype)
    one = split(30, 3, 4, 5, 20)
    before = one.images.pixels.clone()
    values = one(torch.randint(0, 30, shape))
    assert values.shape == (*shape, 3, 4, 5)
    assert values.dtype == dtype
    assert torch.equal(one.images.pixels, before)


def test_a_channel_that_never_changes_is_zero() -> None:
    pixels = torch.full((4, 2, 3, 3), 7, dtype=torch.uint8)
    pixels[:, 1] = noise(4, 3, 3)
    one = SingleDataset("flat", Images(pixels, torch.arange(4) % 2), 3)
    assert (one(torch.arange(4))[:, 0] == 0).all()
    assert one(torch.arange(4)).isfinite().all()


@pytest.mark.parametrize("number", [-1, 30])
def test_indices_beyond_the_dataset_are_refused(number: int) -> None:
    with pytest.raises(IndexError):
        split(30, 1, 4, 5, 20)(torch.tensor([number]))


@pytest.mark.parametrize(
    ("labels", "train", "sentence"),
    [
        ([0, 1, 0, 1], 0, "train must be at least 1, got 0"),
        ([0, 1, 0, 1], 4, "train must be at most 3, got 4"),
        ([0, 0, 0, 0], 2, "x must have at least two classes, got one"),
        ([0, 1, 2, 0], 2, "training images of 3 classes, got 2"),
    ],
)
def test_impossible_datasets_are_refused(labels: list[int], train: int, sentence: str) -> None:
    pixels = noise(4, 1, 2, 2)
    with pytest.raises(ValueError, match=sentence):
        SingleDataset("x", Images(pixels, torch.tensor(labels)), train)


sizes = st.integers(1, 5)


def images(P: int, channels: int, height: int, width: int) -> torch.Tensor:
    return torch.randn(P, channels, height, width, generator=stream(0, "images"))


@given(sizes, sizes, sizes, sizes, st.integers(0, 99))
def test_without_shift_and_flip_nothing_moves(P: int, C: int, H: int, W: int, seed: int) -> None:
    X = images(P, C, H, W)
    assert torch.equal(moved(X, stream(seed, "move"), pixels=0), X)


@given(sizes, sizes, sizes, sizes, st.integers(0, 3), st.booleans(), st.integers(0, 99))
def test_every_image_is_a_window_of_itself_with_its_border_copied(
    P: int, C: int, H: int, W: int, pixels: int, flip: bool, seed: int
) -> None:
    X = images(P, C, H, W)
    wide = pad(X, [pixels] * 4, mode="replicate") if pixels else X
    Y = moved(X, stream(seed, "move"), pixels=pixels, flip=flip)
    assert Y.shape == X.shape
    places = range(2 * pixels + 1)
    for big, own in zip(wide, Y, strict=True):
        windows = [big[:, i : i + H, j : j + W] for i in places for j in places]
        if flip:
            windows += [window.flip(-1) for window in windows]
        assert any(torch.equal(own, window) for window in windows)


def test_images_move_independently_and_reproducibly_in_all_directions() -> None:
    X = torch.zeros(2000, 1, 5, 5)
    X[:, :, 2, 2] = 1
    Y, again = (moved(X, stream(0, "move"), pixels=1) for _ in range(2))
    assert torch.equal(Y, again)
    share = Y.mean(dim=0)[0]
    assert torch.allclose(share[1:4, 1:4], torch.full((3, 3), 1 / 9), atol=0.03)
    assert share.sum() == 1


def test_half_of_the_images_are_turned_around() -> None:
    X = torch.tensor([[0.0, 1.0, 2.0]]).expand(2000, 1, 1, 3)
    turned = (moved(X, stream(0, "move"), pixels=0, flip=True)[:, 0, 0, 0] == 2).double().mean()
    assert abs(turned - 0.5) < 0.05


def store(counts: list[int]) -> Images:
    """Makes images that all differ, two channels of 2 x 3, in random order."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=stream(0, "order"))]
    numbers = torch.arange(len(labels))
    pixels = torch.zeros(len(labels), 2, 2, 3, dtype=torch.uint8)
    pixels[:, 0, 0, 0] = (numbers % 256).to(torch.uint8)
    pixels[:, 1, 1, 2] = (numbers // 256).to(torch.uint8)
    return Images(pixels, labels)


@given(
    counts=st.lists(st.integers(4, 40), min_size=2, max_size=12),
    ways=st.integers(1, 12),
    shots=st.integers(1, 2),
    queries=st.integers(1, 2),
    batch=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
def test_laws_of_a_task(
    counts: list[int], ways: int, shots: int, queries: int, batch: int, seed: int
) -> None:
    ways = min(ways, len(counts))
    images = store(counts)
    family = FewShot(images, ways=ways, shots=shots, queries=queries)
    task = family.sample(batch, stream(seed, "x"))
    assert task.X_tr.shape == task.Y_tr.shape == (batch, ways * shots)
    assert task.X_te.shape == task.Y_te.shape == (batch, ways * queries)
    indices = torch.cat([raw(task.X_tr), raw(task.X_te)], dim=1)
    labels = torch.cat([task.Y_tr, task.Y_te], dim=1)
    assert (indices.sort(dim=1).values.diff(dim=1) > 0).all()  # no image twice
    for Y, each in ((task.Y_tr, shots), (task.Y_te, queries)):
        assert (torch.nn.functional.one_hot(Y, ways).sum(dim=1) == each).all()
    # A label is one class, and two labels are two.
    classes = images.labels[indices]
    same_label = labels[:, :, None] == labels[:, None, :]
    assert torch.equal(same_label, classes[:, :, None] == classes[:, None, :])
    # The seed decides alone.
    torch.rand(3)
    again = family.sample(batch, stream(seed, "x"))
    assert torch.equal(again.Y_tr, task.Y_tr)
    assert torch.equal(again.Y_te, task.Y_te)
    assert torch.equal(raw(again.X_tr), raw(task.X_tr))
    assert torch.equal(raw(again.X_te), raw(task.X_te))
    assert torch.equal(again.loaded().X_te, images.pixels[raw(task.X_te)] / 255)


def test_every_class_and_every_image_get_every_role() -> None:
    images = store([6, 9, 12, 7])
    task = FewShot(images, ways=3, shots=1, queries=2).sample(20_000, stream(0, "x"))
    first = images.labels[raw(task.X_tr)[:, 0]].bincount() / 20_000  # which class has label 0
    torch.testing.assert_close(first, torch.full((4,), 0.25), atol=0.015, rtol=0.0)
    for X, share in ((task.X_tr, 3 / 4), (task.X_te, 6 / 4)):
        expected = 20_000 * share / images.counts[images.labels]  # times an image is drawn
        assert ((raw(X).flatten().bincount() / expected - 1).abs() < 0.1).all()


def test_labels_do_not_tell_the_class() -> None:
    images = store([8] * 5)
    task = FewShot(images, ways=5, queries=1).sample(20_000, stream(0, "x"))
    pairs = torch.zeros(5, 5).index_put_(
        (task.Y_tr.flatten(), images.labels[raw(task.X_tr).flatten()]),
        torch.ones(()),
        accumulate=True,
    )
    torch.testing.assert_close(pairs / 20_000, torch.full((5, 5), 0.2), atol=0.015, rtol=0.0)


def test_the_precision_changes_no_task() -> None:
    drawn = []
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        family = FewShot(glyphs(5, 4), ways=5, queries=3)
        drawn.append(family.sample(8, stream(0, "x")))
        assert drawn[-1].loaded().X_tr.dtype == dtype
    assert torch.equal(raw(drawn[0].X_te), raw(drawn[1].X_te))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"ways": 0}, "ways must be at least 1, got 0"),
        ({"ways": 6}, "ways must be at most 5, got 6"),
        ({"ways": 5, "shots": 0}, "shots must be at least 1, got 0"),
        ({"ways": 5, "queries": 0}, "queries must be at least 1, got 0"),
        ({"ways": 5, "shots": 2, "queries": 3}, r"shots \+ queries must be at most 4, got 5"),
    ],
)
def test_impossible_families_are_refused(arguments: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        FewShot(store([9, 4, 7, 8, 9]), **arguments)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
        FewShot(glyphs(10, 6)).sample(0, stream(0, "x"))


# Arrays, tensors and PyTorch datasets of users

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


def stored(one: SingleDataset, path: Path) -> SingleDataset:
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
    for other in (stored(one, place), open_store(str(place))):
        assert fingerprint(other) == fingerprint(one)
        assert torch.equal(other.images.pixels, one.images.pixels)
        assert torch.equal(other.images.labels, one.images.labels)
        assert torch.equal(other(torch.arange(P)), one(torch.arange(P)))
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_a_store_can_be_stored_over_itself(tmp_path: Path) -> None:
    one = stored(dataset(20, 1, 3, 3, train=10), tmp_path / "a")
    before = fingerprint(one)
    assert fingerprint(stored(one, tmp_path / "a")) == before == fingerprint(one)


def test_writing_to_mapped_pixels_leaves_the_file(tmp_path: Path) -> None:
    one = stored(dataset(20, 1, 3, 3, train=10), tmp_path / "a")
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
    stored(dataset(20, 1, 3, 3, train=10), place)
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
