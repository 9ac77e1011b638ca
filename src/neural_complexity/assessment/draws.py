"""Targets drawn from NC's belief about new points: whatever can be computed from them follows."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.beliefs import Belief
from neural_complexity.losses import zero_one
from neural_complexity.model.judgement import PARTS, TEST_PART, choose_parts
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream

__all__ = ["DRAWS", "Drawn", "beliefs", "draw_targets", "how_many", "parts_of"]

DRAWS = 400  # sets of targets
NUMBERS = 2**24  # drawn in all, at most: there are fewer sets if there are very many points
FEWEST = 40  # sets
ANSWERS = 2**16  # parts of the training points times test points, at most


@dataclass(frozen=True)
class Drawn:
    """Targets drawn with tilts, and what NC believes without any."""

    targets: Tensor  # (draws, N), labels or numbers
    common: Tensor  # likewise, without tilts: the same for all models of the same points
    losses: Tensor  # (N,), expected
    wrong: Tensor  # (N,), how likely the model is to be; zeros where targets are numbers
    variance: float  # of the mean loss, as if points were independent


@torch.no_grad()
def beliefs(
    nc: NeuralComplexity, X_tr: Tensor, Y_tr: Tensor, X_te: Tensor, *, classes: int | None = None
) -> Iterator[tuple[int, slice, Belief]]:
    """Yields NC's beliefs: the number of a part of the training points, the test points, and these.

    Args:
        nc: One that has beliefs.
        X_tr: Training inputs, (M, D).
        Y_tr: Their targets, (M,) or (M, 1).
        X_te: Test inputs, (N, D).
        classes: Of labels.
    """
    for i, rows in enumerate(parts_of(nc, len(X_tr), len(X_te))):
        for start in range(0, len(X_te), TEST_PART):
            some = slice(start, min(start + TEST_PART, len(X_te)))
            known = X_tr[None, rows], Y_tr[None, rows], X_te[None, some]
            yield i, some, nc.belief(*known, classes=classes)


def parts_of(nc: NeuralComplexity, M: int, N: int) -> list[Tensor]:
    """Returns the parts of M training points that NC sees, fewer if there are very many others."""
    return choose_parts(M, nc.card.context_size, most=max(1, min(PARTS, ANSWERS // max(1, N))))


@torch.no_grad()
def draw_targets(
    nc: NeuralComplexity,
    points: tuple[Tensor, Tensor, Tensor],
    H_te: Tensor,
    tilts: Tensor,
    *,
    seed: int = 0,
) -> "Drawn":
    """Draws labels, or numbers, of test points from beliefs, with a tilt for each draw.

    Args:
        nc: One that has beliefs.
        points: X_tr, (M, D), Y_tr, (M,) or (M, 1), and X_te, (N, D).
        H_te: The model's predictions, (N, C): logits, or (N, 1).
        tilts: Of the draws, (draws,).
        seed: Of the draws.
    """
    generator, S = stream(seed, "targets"), len(tilts)
    count = len(parts_of(nc, len(points[0]), len(H_te)))
    drawn = torch.empty(S, len(H_te), dtype=torch.int64 if nc.labels else H_te.dtype)
    classes, common = H_te.shape[1] if nc.labels else None, torch.empty_like(drawn)
    losses, variance, wrong = torch.zeros(3, len(H_te), dtype=torch.float64)
    of_parts = torch.zeros(count, dtype=torch.float64)
    for i, some, belief in beliefs(nc, *points, classes=classes):
        own = slice(i * S // count, (i + 1) * S // count)  # each part has its share of the draws
        u = torch.rand(2, own.stop - own.start, some.stop - some.start, generator=generator)
        told = belief.draw(H_te[some], tilts[own].to(H_te.device), u.double().to(H_te.device))
        drawn[own, some] = told.to(drawn)
        common[own, some] = belief.sample(u.double().to(H_te.device)).to(drawn)
        h = H_te[None, some]
        expected = nc.loss.expected(h, belief)[0].double().cpu()
        losses[some] += expected / count
        of_parts[i] += expected.sum() / len(H_te)
        variance[some] += nc.loss.variance(h, belief)[0].double().cpu() / count
        if nc.labels:
            wrong[some] += zero_one.expected(h, belief)[0].double().cpu() / count
    between = of_parts.var(correction=0)
    return Drawn(drawn, common, losses, wrong, float(variance.sum() / len(H_te) ** 2 + between))


def how_many(points: int) -> int:
    """Returns how many sets of targets are drawn of so many points."""
    return max(FEWEST, min(DRAWS, NUMBERS // max(1, points)))
