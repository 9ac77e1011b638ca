"""Moving images a little, so that a network sees each of them in many ways."""

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["moved"]


def moved(X: Tensor, generator: torch.Generator, *, pixels: int, flip: bool = False) -> Tensor:
    """Shifts each image, (P, channels, height, width), by up to `pixels` along each axis.

    What comes in at a border is a copy of the pixels there. With `flip`, half of them are mirrored,
    left to right. Draws are made on the CPU.
    """
    P, _, height, width = X.shape

    def places(size: int) -> Tensor:  # (P, size)
        start = torch.randint(2 * pixels + 1, (P, 1), generator=generator)
        return start + torch.arange(size)

    rows, columns = places(height), places(width)
    if flip:
        mirrored = torch.rand(P, 1, generator=generator) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    if pixels:
        X = pad(X, [pixels] * 4, mode="replicate")
    each = torch.arange(P, device=X.device)[:, None, None]
    rows, columns = rows[:, :, None].to(X.device), columns[:, None, :].to(X.device)
    return X[each, :, rows, columns].movedim(-1, 1)  # channels last in memory, as filters like it
