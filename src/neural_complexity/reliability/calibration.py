"""What is known of learners on held-out tasks: the basis of bounds and of tests for shift."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Calibration", "join"]

Span = tuple[int, int]


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
        n = self.predicted.numel()
        shapes = {"predicted": (n,), "true": (n,), "spread": (n,), "features": (n, len(self.names))}
        if n == 0:
            raise ValueError("a calibration must have at least one learner, got none")
        for name, shape in shapes.items():
            tensor = getattr(self, name)
            if tuple(tensor.shape) != shape:
                raise ValueError(
                    f"{name} must have shape {shape} in a calibration of {n} learners, got "
                    f"{tuple(tensor.shape)}"
                )
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
        names = ("predicted", "true", "spread", "features")
        return {name: getattr(self, name) for name in names}

    def text(self) -> str:
        """Returns the rest, for a file."""
        return json.dumps({"names": self.names, "sizes": self.sizes, "note": self.note})

    @classmethod
    def read(cls, tensors: dict[str, Tensor], text: str) -> "Calibration":
        """Returns the calibration that `tensors` and `text` describe.

        Raises:
            KeyError: If something is missing.
            TypeError: If something is of another kind.
            ValueError: If it is damaged.
        """
        rest = json.loads(text)
        (M_low, M_high), (N_low, N_high) = rest["sizes"]
        return cls(
            tensors["predicted"],
            tensors["true"],
            tensors["spread"],
            tensors["features"],
            names=tuple(map(str, rest["names"])),
            sizes=((int(M_low), int(M_high)), (int(N_low), int(N_high))),
            note=str(rest["note"]),
        )

    def beyond(self, M: int, N: int) -> str:
        """Returns a sentence if M training or N test points are far from those calibrated on.

        That is if a set is less than half or more than twice as large.
        """
        said = [
            f"{size} {name} points against {low if low == high else f'{low} to {high}'}"
            for name, size, (low, high) in zip(
                ("training", "test"), (M, N), self.sizes, strict=True
            )
            if not low / 2 <= size <= 2 * high
        ]
        if not said:
            return ""
        return f"the sets have other sizes than those that NC was calibrated on: {', '.join(said)}"


def join(calibrations: Sequence[Calibration]) -> Calibration:
    """Joins calibrations whose learners have the same features; notes are lost."""
    first = calibrations[0]
    M, N = zip(*(c.sizes for c in calibrations), strict=True)
    spans = tuple((min(low for low, _ in span), max(high for _, high in span)) for span in (M, N))
    return Calibration(
        **{name: torch.cat([c.tensors()[name] for c in calibrations]) for name in first.tensors()},
        names=first.names,
        sizes=(spans[0], spans[1]),
        note="",
    )
