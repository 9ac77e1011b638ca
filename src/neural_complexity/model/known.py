"""Which points an NC learned from, so that it is not tested on those."""

import base64
import zlib
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neural_complexity.model.complexity import NeuralComplexity

__all__ = ["learned_from", "remember"]

LEARNED = "learned_from"  # where an NC's provenance has it


def remember(nc: NeuralComplexity, parts: Iterable[Tensor]) -> None:
    """Notes in NC's provenance which points it learned from, in four bytes each.

    A checksum tells nothing about a point, but tells one that is at hand from others.

    Args:
        nc: The gap predictor.
        parts: The points, (points, ...) each, as NC sees them.
    """
    sums = np.unique(np.concatenate([_checksums(part) for part in parts]))
    nc.provenance[LEARNED] = base64.b64encode(sums.astype("<u4").tobytes()).decode()


def learned_from(nc: NeuralComplexity, X: Tensor) -> Tensor:
    """Tells of points, (points, ...), whether NC learned from them, (points,), as far as it knows.

    Only an NC that was meta-learned from splits of one dataset does. One point in 2^32 / n is
    mistaken for one of the n that it learned from.
    """
    sums = np.frombuffer(base64.b64decode(nc.provenance.get(LEARNED, "")), dtype="<u4")
    return torch.from_numpy(np.isin(_checksums(X), sums)).to(X.device)


def _checksums(X: Tensor) -> NDArray[np.uint32]:
    rows = X.detach().cpu().float().flatten(1).numpy() + 0.0  # there are two zeros, but one number
    return np.array([zlib.crc32(row) for row in rows], dtype=np.uint32)
