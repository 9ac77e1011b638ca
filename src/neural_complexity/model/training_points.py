"""Which points an NC learned from, so that it is not tested on those."""

import base64
import zlib
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neural_complexity.model.network import NeuralComplexity

__all__ = ["LEARNED", "learned_from", "remember"]

LEARNED = "learned_from"  # where an NC's provenance has it


def remember(nc: NeuralComplexity, parts: Iterable[Tensor]) -> None:
    """Notes in NC's provenance which points it learned from, in four bytes each.

    These are checksums. They do not tell what a point is, but whether one that is at hand was among
    them; of one or two features, or of few values, all can be tried. Who hands an NC round and does
    not want that takes them out: `nc.provenance.pop("learned_from")`.

    Args:
        nc: The gap predictor.
        parts: The points, (points, ...) each, as NC sees them.
    """
    sums = np.unique(np.concatenate([_checksums(part) for part in parts]))
    nc.provenance[LEARNED] = base64.b64encode(sums.astype("<u4").tobytes()).decode()


def learned_from(nc: NeuralComplexity, X: Tensor) -> Tensor:
    """Tells of points, (points, ...), whether NC learned from them, (points,), as far as it knows.

    Only an NC that was meta-learned from splits of one dataset does. It knows inputs with the same
    numbers in single precision, whether or not they are the same points; of others, one in 2^32 / n
    is mistaken for one of the n that it learned from. Inputs that were scaled in another way are
    not recognised.
    """
    if LEARNED not in nc.provenance:
        return torch.zeros(len(X), dtype=torch.bool, device=X.device)
    sums = np.frombuffer(base64.b64decode(nc.provenance[LEARNED]), dtype="<u4")
    return torch.from_numpy(np.isin(_checksums(X), sums)).to(X.device)


def _checksums(X: Tensor) -> NDArray[np.uint32]:
    rows = np.ascontiguousarray(X.detach().cpu().float().flatten(1).numpy())
    rows = rows + 0.0  # there are two zeros, but one number
    return np.array([zlib.crc32(row) for row in rows], dtype=np.uint32)
