import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import pad

from neural_complexity.seeding import stream
from neural_complexity.tasks.augment import moved

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
