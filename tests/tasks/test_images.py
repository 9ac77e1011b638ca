import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glyphs import glyphs
from neural_complexity.tasks.images import Images


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


def test_equal_texts_mean_equal_images() -> None:
    assert repr(glyphs(3, 2)) == repr(glyphs(3, 2))
    assert repr(glyphs(3, 2)).startswith("Images(6 of 3 classes, 1x28x28, ")
    one = glyphs(3, 2)
    pixels = one.pixels.clone()
    pixels[5, 0, 27, 27] += 1
    others = [Images(pixels, one.labels), Images(one.pixels, one.labels.flip(0)), glyphs(3, 2, 1)]
    assert len({repr(images) for images in [one, *others]}) == 4


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
