"""Small NCs and models to assess."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from neural_complexity.assessment.assess import assess_predictions
from neural_complexity.assessment.result import Assessment
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.reliability.gap_bounds import Interval
from neural_complexity.snapshot import Snapshot

SMALL: dict[str, Any] = {"width": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
LABELS: dict[str, Any] = {"loss": "cross_entropy", **SMALL}
KINDS = ["real", "real direct", "labels", "labels direct", "images"]
BOUND = Interval(-0.5, 1.5, 0.9, "conformal", "as claimed")
OPEN = Interval(-math.inf, math.inf, 0.9, "dkw", "too few")


@cache
def make(kind: str) -> NeuralComplexity:
    """Returns an untrained NC, or one that ships."""
    made: dict[str, Any] = {
        "real": lambda: NeuralComplexity(2, 1, **SMALL),
        "real direct": lambda: NeuralComplexity(3, 2, head="direct", **SMALL),
        "labels": lambda: NeuralComplexity(2, 3, symmetric=True, vote=True, metric=True, **LABELS),
        "labels direct": lambda: NeuralComplexity(2, 3, head="direct", **LABELS),
        "images": lambda: NeuralComplexity(
            (1, 4, 4), 2, symmetric=True, channels=4, image_layers=1, **LABELS
        ),
    }
    torch.manual_seed(0)
    # What ships is in single precision, whatever the default is.
    nc = made[kind]() if kind in made else NeuralComplexity.pretrained(kind).float()
    return nc.requires_grad_(False)


def shape(nc: NeuralComplexity) -> tuple[int, ...]:
    return nc.shape


def draw(nc: NeuralComplexity, M: int, N: int, C: int, seed: int = 0) -> list[NDArray[Any]]:
    """Draws X_tr, y_tr, H_tr, X_te, H_te."""
    g = np.random.default_rng(seed)
    y = g.integers(C, size=M) if nc.labels else g.normal(size=(M, C))
    sizes = ((M, *shape(nc)), None, (M, C), (N, *shape(nc)), (N, C))
    return [y if size is None else g.normal(size=size) for size in sizes]


def outputs_of(nc: NeuralComplexity) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape(nc)), nc.outputs))


def example(**changes: Any) -> Assessment:
    nc = make("labels")
    return replace(assess_predictions(nc, *draw(nc, 20, 200, 3)), **changes)


def calibrated(learners: int = 60) -> tuple[NeuralComplexity, Callable[[int], Snapshot]]:
    """Returns an NC that knows how far it is off on noisy lines, and learners of such lines."""
    nc = NeuralComplexity(1, 1, **SMALL)

    def lines(seed: int, B: int = 1) -> tuple[Snapshot, torch.Tensor]:
        g = torch.Generator().manual_seed(seed)
        slope = torch.randn(B, 1, 1, generator=g)
        X, Z = (torch.randn(B, n, 1, generator=g) for n in (8, 9))
        Y, T = (slope * x + 0.3 * torch.randn(x.shape, generator=g) for x in (X, Z))
        guess = slope + 0.2 * torch.randn(B, 1, 1, generator=g)
        return Snapshot(X, Y, guess * X, Z, guess * Z), T

    nc.calibrate([lines(0, learners)])
    return nc, lambda seed: lines(seed)[0]
