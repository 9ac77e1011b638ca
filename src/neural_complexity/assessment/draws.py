"""Targets drawn from NC's belief about new points: whatever can be computed from them follows."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.losses import Belief, zero_one
from neural_complexity.model.judgement import TEST_PART, choose_parts
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream

__all__ = ["DRAWS", "Drawn", "beliefs", "draw_targets", "how_many"]

DRAWS = 400  # sets of targets
NUMBERS = 2**24  # drawn in all, at most: there are fewer sets if there are very many points
FEWEST = 40  # sets


@dataclass(frozen=True)
class Drawn:
    """Targets, and how likely the model is to be wrong as NC believes without a tilt."""

    targets: Tensor  # (draws, N), labels or numbers
    wrong: Tensor  # (N,), zeros where targets are numbers


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
    size = nc.card.context_size
    for i, rows in enumerate(choose_parts(len(X_tr), size)):
        for start in range(0, len(X_te), TEST_PART):
            some = slice(start, min(start + TEST_PART, len(X_te)))
            known = X_tr[None, rows], Y_tr[None, rows], X_te[None, some]
            yield i, some, nc.belief(*known, classes=classes)


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
    count = len(choose_parts(len(points[0]), nc.card.context_size))
    drawn = torch.empty(S, len(H_te), dtype=torch.int64 if nc.labels else H_te.dtype)
    classes, wrong = H_te.shape[1] if nc.labels else None, torch.zeros(len(H_te)).double()
    for i, some, belief in beliefs(nc, *points, classes=classes):
        own = slice(i * S // count, (i + 1) * S // count)  # each part has its share of the draws
        u = torch.rand(2, own.stop - own.start, some.stop - some.start, generator=generator)
        told = belief.draw(H_te[some], tilts[own].to(H_te.device), u.double().to(H_te.device))
        drawn[own, some] = told.to(drawn)
        if nc.labels:
            wrong[some] += zero_one.expected(H_te[None, some], belief)[0].double().cpu() / count
    return Drawn(drawn, wrong)


def how_many(points: int) -> int:
    """Returns how many sets of targets are drawn of so many points."""
    return max(FEWEST, min(DRAWS, NUMBERS // max(1, points)))
