"""Stores of images, standardized and moved; few-shot tasks on classes of unequal size."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import pad

from glyphs import glyphs
from neural_complexity.points import raw
from neural_complexity.seeding import stream
from neural_complexity.tasks.images import FewShot, Images, SingleDataset, choose, moved
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


@given(st.lists(st.integers(3, 2000), min_size=1, max_size=20), st.integers(0, 3))
def test_indices_are_chosen_below_the_sizes_and_once(sizes: list[int], count: int) -> None:
    chosen = choose(torch.tensor(sizes), count, stream(0, "x"))
    assert chosen.shape == (len(sizes), count)
    for size, indices in zip(sizes, chosen.tolist(), strict=True):
        assert len(set(indices)) == count
        assert all(0 <= index < size for index in indices)


@pytest.mark.parametrize(("size", "count"), [(4, 4), (5, 3), (5, 1)])
def test_every_ordered_choice_is_as_likely_as_every_other(size: int, count: int) -> None:
    draws = 60_000
    chosen = choose(torch.full((draws,), size), count, stream(0, "x"))
    codes = (chosen * size ** torch.arange(count)).sum(dim=1)
    frequency = codes.unique(return_counts=True)[1].double()
    choices = torch.arange(size, size - count, -1).prod().item()
    assert len(frequency) == choices
    expected = draws / choices
    chi_squared = ((frequency - expected).square() / expected).sum()
    freedom = choices - 1
    assert chi_squared < freedom + 4 * (2 * freedom) ** 0.5
