import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import pad

from glyphs import glyphs
from neural_complexity.seeding import stream
from neural_complexity.tasks.images import Images, SingleDataset, moved
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
