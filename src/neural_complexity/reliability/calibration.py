"""What is known of learners on held-out tasks, and a test for distribution shift away from them."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from neural_complexity.files import check_types

__all__ = ["SPREAD", "Calibration", "Shift", "detect_shift", "features_of", "join"]
__all__ += ["shift_p_values"]

TENSORS = ("predicted", "true", "spread", "features")
STANDS_OUT = 3.0  # standard deviations from the mean that a feature is told by itself
BLOCK = 64  # learners compared at a time: bounds memory
ROUNDING = 1e-9  # of distances that should be equal
SPREAD = "spread of NC's prediction"  # a feature that is odd only where it is large


def features_of(*, labels: bool, sees_predictions: bool) -> tuple[str, ...]:
    """Returns what tells learners and tasks of an NC apart, as a person would call it."""
    # Of a learner itself only how unsure NC is of its loss counts, as NC's belief does not depend
    # on it: the bound then holds for learners of other kinds. A head without one sees more.
    learner = (SPREAD, "training loss") if sees_predictions else (SPREAD,)
    targets = "balance of the classes" if labels else "size of the training targets"
    inputs = ("shift from training to test inputs", "size of the inputs")
    return (*learner, *inputs, targets, "NC's surprise at training targets")


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
    sizes: tuple[tuple[int, int], tuple[int, int]]  # fewest and most M, and N, of the tasks
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
            # What is so large that its square is infinite has no variance.
            if name != "true" and not tensor.double().square().sum().isfinite():
                raise ValueError(f"{name} must be finite, got infinity, or next to it")
            object.__setattr__(self, name, tensor.detach().cpu().double())
        if not (self.spread > 0).all():
            raise ValueError("spread must be positive, got zero or less")
        for name, (low, high) in zip(("training", "test"), self.sizes, strict=True):
            if not 1 <= low <= high:
                raise ValueError(f"sizes of {name} sets must be from 1, got {low} to {high}")

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
        own: dict[str, Any] = {name: tensors[name] for name in TENSORS}
        rest = json.loads(text)
        check_types(cls.__annotations__, rest)
        M, N = ((low, high) for low, high in rest["sizes"])
        return cls(**own, names=tuple(rest["names"]), sizes=(M, N), note=rest["note"])

    def select(self, names: Sequence[str]) -> "Calibration":
        """Returns the same learners by some of their features; files may have had more."""
        if missing := [name for name in names if name not in self.names]:
            raise ValueError(f"a calibration must have {', '.join(names)}, got no {missing[0]}")
        columns = [self.names.index(name) for name in names]
        return replace(self, features=self.features[:, columns], names=tuple(names))

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
    own: Any = {name: torch.cat([getattr(c, name) for c in calibrations]) for name in TENSORS}
    spans = zip(*(c.sizes for c in calibrations), strict=True)
    M, N = ((min(low for low, _ in span), max(high for _, high in span)) for span in spans)
    return Calibration(**own, names=calibrations[0].names, sizes=(M, N))


@dataclass(frozen=True)
class Shift:
    """How far a new learner is from those calibrated on."""

    p_value: float  # the chance that a learner like them looks at least as odd as this one
    feature: str  # in which it differs most
    note: str  # the same as a sentence


def detect_shift(calibration: Calibration, features: Tensor) -> Shift:
    """Tests whether a new learner is exchangeable with the calibration learners.

    Where it is not, the bounds say nothing about it.

    Args:
        calibration: The learners to compare with.
        features: What tells the new one apart, (k,); NaN, of a learner that diverged, is as odd as
            can be.
    """
    p_value = float(shift_p_values(calibration, features.unsqueeze(0)))
    difference = features.detach().cpu().double() - calibration.features.mean(dim=0)  # (k,)
    _, scale, covariance = _standardize(calibration.features, names := calibration.names)
    odd, context = _one_sided(difference / scale.squeeze(0), names), ""
    if not (odd.abs() > STANDS_OUT).any():
        # What is not odd by itself can be so for a learner that is otherwise like this one.
        precision = torch.linalg.inv(covariance)
        odd = (precision @ odd.nan_to_num()) / precision.diagonal().sqrt()
        context = " for a learner that is otherwise like it"
    odd = odd.nan_to_num(nan=math.inf)
    place = int(odd.abs().argmax())
    name, how = calibration.names[place], "large" if odd[place] > 0 else "small"
    note = f"{name} is {how}{context} ({odd[place]:+.1f} standard deviations)"
    if not features.isfinite().all():
        note = "the learner diverged, or its losses are beyond all numbers"
    as_odd = round(p_value * (len(calibration) + 1)) - 1  # itself not counted
    told = f"{as_odd or 'none'} of {'' if as_odd else 'the '}{len(calibration)}"
    look = "look" if as_odd > 1 else "looks"
    return Shift(p_value, name, f"{note}; {told} calibration learners {look} as odd")


def shift_p_values(calibration: Calibration, features: Tensor) -> Tensor:
    """Computes for new learners which share of exchangeable learners looks at least as odd.

    How odd a learner looks is its Mahalanobis distance from the mean of all n + 1, itself included;
    that NC is surer of it than of others is not odd. The rank of the new one's distance is uniform
    if the n + 1 are exchangeable: P[p <= a] <= a for every a, whatever the distribution of the
    features (a conformal p-value).

    `features` are of new learners, each compared by itself, (B, k). P-values, (B,), are at least
    1 / (n + 1), and that for learners whose features are not finite.
    """
    known, n = calibration.features, len(calibration)
    if features.ndim != 2 or features.shape[1] != known.shape[1]:
        got = tuple(features.shape)
        raise ValueError(f"features must be (learners, {known.shape[1]}), got shape {got}")
    new = features.detach().cpu().double()
    found = torch.full((len(new),), 1 / (n + 1), dtype=torch.float64)
    fine = new.isfinite().all(dim=1).nonzero().squeeze(1)
    for rows in fine.split(BLOCK) if len(fine) else ():
        bags = torch.cat([known.expand(len(rows), -1, -1), new[rows].unsqueeze(1)], dim=1)
        found[rows] = _as_odd_as_the_last(bags, calibration.names)
    return found


def _as_odd_as_the_last(bags: Tensor, names: Sequence[str]) -> Tensor:
    """Computes the share of a bag's learners, (B, n + 1, k), as odd as its last one, (B,)."""
    z, _, covariance = _standardize(bags, names)
    odd: Tensor = (torch.linalg.solve(covariance, z.mT).mT * z).sum(dim=2)  # (B, n + 1)
    # Equal learners count as equal, however their distances are rounded.
    return (odd >= odd[:, -1:] * (1 - ROUNDING)).double().mean(dim=1)


def _standardize(features: Tensor, names: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns centred, scaled features (..., n, k), their scale and an invertible covariance."""
    (n, k), mean = features.shape[-2:], features.mean(dim=-2, keepdim=True)
    # Standard deviations over learners; of what hardly varies, a part of its size.
    deviation = features.std(dim=-2, correction=0, keepdim=True)
    scale = torch.maximum(deviation, 1e-4 * (1 + mean.abs()))  # (..., 1, k)
    z = _one_sided((features - mean) / scale, names)
    return z, scale, z.mT @ z / n + 1e-6 * torch.eye(k, dtype=z.dtype)  # (..., k, k)


def _one_sided(z: Tensor, names: Sequence[str]) -> Tensor:
    """Returns standardized features, (..., k), of which the spread is no less than usual."""
    only_large = torch.tensor([name == SPREAD for name in names])
    return torch.where(only_large, z.clamp(min=0), z)
