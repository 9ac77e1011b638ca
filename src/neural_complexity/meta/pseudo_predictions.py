"""Pseudo-predictions: logits drawn around the labels, whose losses are known exactly."""

import torch
from torch import Tensor

from neural_complexity.snapshot import Snapshot

__all__ = ["mix_pseudo_predictions", "pseudo_predictions"]

SHARPNESS = (0.3, 12.0)  # the logit of the named class


def pseudo_predictions(snapshot: Snapshot, Y_te: Tensor, generator: torch.Generator) -> Snapshot:
    """Replaces learners by logits that mix right and wrong labels, with any certainty.

    Learners of few images are mostly unsure or mostly wrong, and NC learns little from either. Here
    each row names the right class for its own share of the points, and any class for the others,
    more or less sharply and with some noise. Most rows are right on their training points, as
    learners are.

    Args:
        snapshot: B learners on tasks with labels; only their shapes and tasks count.
        Y_te: Test labels, (B, N).
        generator: The source of randomness, on the CPU.

    Returns:
        The same tasks with other logits.
    """
    (B, _, C), device, dtype = snapshot.H_tr.shape, Y_te.device, snapshot.H_te.dtype

    def draw(*size: int) -> Tensor:
        return torch.rand(*size, generator=generator, dtype=dtype).to(device)

    low, high = SHARPNESS
    sharpness = low * (high / low) ** draw(B, 1, 1)
    noise = draw(B, 1, 1)

    def logits(Y: Tensor, right: Tensor) -> Tensor:
        other = (draw(*Y.shape) * C).long()
        named = torch.where(draw(*Y.shape) < right, Y, other)  # (B, points)
        spread = torch.randn(*Y.shape, C, generator=generator, dtype=dtype).to(device)
        return sharpness * torch.nn.functional.one_hot(named, C) + noise * spread

    H_te = logits(Y_te, draw(B, 1))
    H_tr = logits(snapshot.Y_tr, (2 * draw(B, 1) + 0.5).clamp(max=1))
    return Snapshot(snapshot.X_tr, snapshot.Y_tr, H_tr, snapshot.X_te, H_te)


def mix_pseudo_predictions(
    snapshot: Snapshot, Y_te: Tensor, share: float, generator: torch.Generator
) -> Snapshot:
    """Replaces the learners of a share of the rows, chosen at random, by pseudo-predictions."""
    made = pseudo_predictions(snapshot, Y_te, generator)
    replaced = (torch.rand(len(snapshot), generator=generator) < share)[:, None, None]
    H_tr = torch.where(replaced, made.H_tr, snapshot.H_tr)
    H_te = torch.where(replaced, made.H_te, snapshot.H_te)
    return Snapshot(snapshot.X_tr, snapshot.Y_tr, H_tr, snapshot.X_te, H_te)
