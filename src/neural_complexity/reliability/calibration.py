"""What is known of learners on held-out tasks: the basis of bounds and of tests for shift."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Calibration", "join"]

Span = tuple[int, int]
TENSORS = ("predicted", "true", "spread", "features")


@dataclass(frozen=True)
class Calibration:
    """What is known of n learners on held-out tasks, one per task, on the CPU in double precision.

    Raises:
        ValueError: If sizes disagree, there are no learners, or something is not a number.
    """

    predicted: Tensor  # (n,), gaps
    true: Tensor  # (n,), gaps; may be infinite
    spread: Tensor  # (n,), NC's own standard deviations
    features: Tensor  # (n, k), what tells learners and tasks apart
    names: tuple[str, ...]  # of the k features
    sizes: tuple[Span, Span]  # fewest and most training and test points of the tasks, M and N
    note: str = ""  # what else there is to say, as a sentence

    def __post_init__(self) -> None:
        n = len(self)
        if n == 0:
            raise ValueError("a calibration must have at least one learner, got none")
        for name, tensor in self.tensors().items():
            shape = (n, len(self.names)) if name == "features" else (n,)
            if (got := tuple(tensor.shape)) != shape:
                wanted = f"shape {shape} in a calibration of {n} learners"
                raise ValueError(f"{name} must have {wanted}, got {got}")
            if not tensor.is_floating_point() or tensor.isnan().any():
                raise ValueError(f"{name} must be real numbers, got {tensor.dtype} or NaN")
            if name != "true" and not tensor.isfinite().all():
                raise ValueError(f"{name} must be finite, got infinity")
            object.__setattr__(self, name, tensor.detach().cpu().double())
        if not (self.spread > 0).all():
            raise ValueError("spread must be positive, got zero or less")

    def __len__(self) -> int:
        return self.predicted.numel()

    def __repr__(self) -> str:
        return f"Calibration({len(self)} learners)"

    @property
    def residuals(self) -> Tensor:
        """How far NC was off, Delta = true - predicted, (n,)."""
        return self.true - self.predicted

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors by name, for a file."""
        return {name: getattr(self, name) for name in TENSORS}

    def text(self) -> str:
        """Returns the rest, for a file."""
        return json.dumps({"names": self.names, "sizes": self.sizes, "note": self.note})

    @classmethod
    def read(cls, tensors: dict[str, Tensor], text: str) -> "Calibration":
        """Returns what `tensors` and `text` describe; raises errors of any kind if damaged."""
        rest = json.loads(text)
        M, N = ((int(low), int(high)) for low, high in rest["sizes"])
        names, note = tuple(map(str, rest["names"])), str(rest["note"])
        predicted, true, spread, features = (tensors[name] for name in TENSORS)
        return cls(predicted, true, spread, features, names, (M, N), note)

    def beyond(self, M: int, N: int) -> str:
        """Returns a sentence if a set is less than half or more than twice as large as those."""
        sets = zip(("training", "test"), (M, N), self.sizes, strict=True)
        said = [
            f"{size} {name} points against {low if low == high else f'{low} to {high}'}"
            for name, size, (low, high) in sets
            if not low / 2 <= size <= 2 * high
        ]
        other = "the sets have other sizes than those that NC was calibrated on"
        return f"{other}: {', '.join(said)}" if said else ""


def join(calibrations: Sequence[Calibration]) -> Calibration:
    """Joins calibrations whose learners have the same features; notes are lost."""
    tensors = (torch.cat([getattr(c, name) for c in calibrations]) for name in TENSORS)
    predicted, true, spread, features = tensors
    spans = zip(*(c.sizes for c in calibrations), strict=True)
    M, N = ((min(low for low, _ in span), max(high for _, high in span)) for span in spans)
    return Calibration(predicted, true, spread, features, calibrations[0].names, (M, N))
