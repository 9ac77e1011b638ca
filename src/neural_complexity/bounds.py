"""Bounds on the gap of a new learner, from how far NC was off on calibration learners.

All that the bounds need is n learners on held-out tasks, one per task, whose gaps are known. Let
Delta_i = true gap - predicted gap of learner i. A new learner that comes from where these came from
(the n + 1 are exchangeable, or independent and alike) has a Delta of its own, and a bound says how
large it can be.

**Proposition 1, as the paper has it**, bounds P[|L(h) - L_emp(h)| <= f + eps] from below by
1 - #{Delta_i > eps} / n - 2 sqrt(log(2 / delta) / 2n). That is not true as it stands:

- The event is two-sided in the gap, but what is counted is one-sided in Delta. If every gap is -10
  and f = 0, no Delta_i exceeds eps = 1, so that the right side is close to 1; yet |-10| <= 1 never
  happens. The event must be either gap <= f + eps (an upper bound, which counts Delta_i > eps) or
  |gap - f| <= eps (a two-sided one, which counts |Delta_i| > eps, and which the proof is about).
- delta appears in the bound but not in what is claimed: the inequality holds with probability
  1 - delta over the draw of Delta_1 ... Delta_n.
- The proof writes F(eps) - F(-eps) for P[|Delta| > eps], which is the probability of the opposite,
  and leaves out Delta = -eps, which matters when values are tied.
- The constant is larger than needed. The upper bound needs one tail of the Dvoretzky-Kiefer-
  Wolfowitz inequality, whose constant is sqrt(log(1 / delta) / 2n) if delta <= 1/2 (Massart,
  1990). The two-sided one needs both tails of Delta, hence the paper's 2 sqrt(log(2 / delta) / 2n),
  if it goes by the distribution of Delta; but |Delta| is a random variable, too, and an upper bound
  on it is all that is asked for: sqrt(log(1 / delta) / 2n) again.

**Proposition 1, correctly.** Let s_i be Delta_i (upper) or |Delta_i| (two-sided), independent and
alike, and delta <= 1/2. With probability at least 1 - delta over them, for all eps at once,

    P[s <= eps] >= 1 - #{s_i > eps} / n - sqrt(log(1 / delta) / 2n).

`guaranteed_coverage` computes the right side; `bound` with `method="dkw"` chooses the smallest eps
for which it is at least the confidence. As this holds for all eps at once, eps may be chosen so.

**Tighter.** For one eps, the k-th smallest of the s_i with k fixed beforehand, no more is needed
than the binomial distribution (Clopper and Pearson, 1934): P[s <= s_(k)] is at least a variable of
distribution Beta(k, n + 1 - k), which exceeds the confidence with probability
P[Binomial(n, confidence) < k]. That is `"clopper_pearson"`. Both are statements about (almost)
every calibration set. `"conformal"` states less, and is narrower still: of all calibration sets and
new learners together, at least the share `confidence` is inside (Vovk et al., 2005), if they are
exchangeable. `"normalised"` is the same for Delta over NC's own spread, so that learners that NC is
sure of get narrower bounds.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "METHODS",
    "Calibration",
    "Interval",
    "Likeness",
    "Method",
    "Side",
    "bound",
    "guaranteed_coverage",
    "join",
    "likeness",
    "margin",
    "needed",
    "rank",
    "unlike",
]

Method = Literal["conformal", "normalised", "dkw", "clopper_pearson"]
Side = Literal["two", "upper"]
Span = tuple[int, int]
METHODS: tuple[Method, ...] = ("conformal", "normalised", "dkw", "clopper_pearson")
PAC = ("dkw", "clopper_pearson")  # these hold for almost every calibration set
ROUNDING = 1e-9  # of a product that should be a whole number
STANDS_OUT = 3.0  # standard deviations from the mean that a feature is told by itself
BLOCK = 64  # learners compared at a time: bounds memory


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
        """Gives the tensors by name, for a file."""
        names = ("predicted", "true", "spread", "features")
        return {name: getattr(self, name) for name in names}

    def text(self) -> str:
        """Gives the rest, for a file."""
        return json.dumps({"names": self.names, "sizes": self.sizes, "note": self.note})

    @classmethod
    def read(cls, tensors: dict[str, Tensor], text: str) -> "Calibration":
        """Makes a calibration from what `tensors` and `text` gave.

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
        """Says how the sizes of a learner's sets differ from those calibrated on.

        Args:
            M: Training points.
            N: Test points.

        Returns:
            A sentence if a set is less than half or more than twice as large, else nothing.
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
    """Makes one calibration of several, whose learners have the same features; notes are lost."""
    first = calibrations[0]
    M, N = zip(*(c.sizes for c in calibrations), strict=True)
    spans = tuple((min(low for low, _ in span), max(high for _, high in span)) for span in (M, N))
    return Calibration(
        **{name: torch.cat([c.tensors()[name] for c in calibrations]) for name in first.tensors()},
        names=first.names,
        sizes=(spans[0], spans[1]),
        note="",
    )


@dataclass(frozen=True)
class Interval:
    """Where the gap of a new learner lies, and how sure that is."""

    low: float
    high: float
    confidence: float
    method: str
    note: str  # what exactly is claimed, or why nothing is, as a sentence

    @property
    def width(self) -> float:
        """How far the ends are apart."""
        return self.high - self.low


def bound(
    calibration: Calibration,
    predicted_gap: float,
    spread: float,
    *,
    confidence: float = 0.95,
    method: Method = "conformal",
    side: Side = "two",
    delta: float = 0.05,
    least: float = -math.inf,
) -> Interval:
    """Bounds the gap of a new learner that is like the calibration learners.

    Args:
        calibration: How far NC was off on these.
        predicted_gap: What NC predicts for the new learner.
        spread: NC's own standard deviation of it; only `"normalised"` looks at it.
        confidence: The share of new learners whose gap is inside, at least.
        method: Which bound; the module says what each claims.
        side: `"two"` bounds the gap from both sides, `"upper"` from above.
        delta: The share of calibration sets for which `"dkw"` and `"clopper_pearson"` may fail.
        least: What the gap cannot be below: minus the training loss, for losses that are never
            negative.

    Returns:
        The interval. With too few calibration learners for what is asked it is infinite, and its
        note says how many are needed.

    Raises:
        ValueError: If an argument is out of its range.
    """
    _check(confidence, method, side, delta)
    if not (math.isfinite(predicted_gap) and 0 < spread < math.inf):
        note = f"nothing can be said of a predicted gap of {predicted_gap:g} ± {spread:g}"
        return Interval(-math.inf, math.inf, confidence, method, note)
    width = float(
        margin(
            calibration.residuals,
            calibration.spread,
            torch.tensor(spread, dtype=torch.float64),
            confidence=confidence,
            method=method,
            side=side,
            delta=delta,
        )
    )
    low = predicted_gap - width if side == "two" else -math.inf
    high = predicted_gap + width
    claim = _claim(len(calibration), confidence, method, delta)
    note = "; ".join(part for part in (claim, calibration.note) if part)
    # Where the least value itself is above the rest, the bound has failed: it stays as it is.
    return Interval(max(low, least) if least <= high else low, high, confidence, method, note)


def margin(
    residuals: Tensor,
    spreads: Tensor,
    spread: Tensor,
    *,
    confidence: float = 0.95,
    method: Method = "conformal",
    side: Side = "two",
    delta: float = 0.05,
) -> Tensor:
    """Computes how far above the predicted gap (and below it) the bound lies.

    Args:
        residuals: True minus predicted gap of the calibration learners, (..., n).
        spreads: NC's own standard deviations of these, (..., n).
        spread: The same for the new learner, (...).
        confidence: As in `bound`.
        method: As in `bound`.
        side: As in `bound`.
        delta: As in `bound`.

    Returns:
        One value per calibration set and new learner, (...); infinite if there are too few.
    """
    _check(confidence, method, side, delta)
    n = residuals.shape[-1]
    k = rank(n, confidence, method=method, delta=delta)
    if k > n:
        return torch.full_like(spread, math.inf)
    scores = residuals.abs() if side == "two" else residuals
    if method != "normalised":
        return scores.kthvalue(k, dim=-1).values.expand_as(spread)
    # The median of all n + 1 spreads keeps tiny ones from making scores huge. As it treats the new
    # learner like the others, the n + 1 scores stay exchangeable.
    everyone = torch.cat([spreads, spread.unsqueeze(-1)], dim=-1)
    floor = everyone.median(dim=-1).values
    scores = scores / (spreads + floor.unsqueeze(-1))
    return scores.kthvalue(k, dim=-1).values * (spread + floor)


def rank(n: int, confidence: float, *, method: Method, delta: float = 0.05) -> int:
    """Computes which of n ordered scores bounds that of a new learner: the k-th smallest.

    Args:
        n: How many calibration learners there are.
        confidence: As in `bound`.
        method: As in `bound`.
        delta: As in `bound`.

    Returns:
        k, from 1 to n, or n + 1 if not even the largest score is large enough.
    """
    if method == "dkw":
        k = _ceil(n * (confidence + math.sqrt(math.log(1 / delta) / (2 * n))))
    elif method == "clopper_pearson":
        below = _binomial_cdf(n, confidence)  # P[Binomial <= j] for j = 0 ... n
        enough = torch.tensor(1 - delta - ROUNDING, dtype=torch.float64)
        k = int(torch.searchsorted(below, enough)) + 1
    else:
        k = _ceil((n + 1) * confidence)
    return min(max(k, 1), n + 1)


def needed(confidence: float, *, method: Method, delta: float = 0.05) -> int:
    """Computes how many calibration learners a finite bound needs, at least.

    Args:
        confidence: As in `bound`.
        method: As in `bound`.
        delta: As in `bound`.
    """
    if method == "dkw":
        return _ceil(math.log(1 / delta) / (2 * (1 - confidence) ** 2))
    if method == "clopper_pearson":
        return max(1, _ceil(math.log(delta) / math.log(confidence)))
    return max(1, _ceil(confidence / (1 - confidence)))


def guaranteed_coverage(
    residuals: Tensor, epsilon: float, *, side: Side = "two", delta: float = 0.05
) -> float:
    """Computes the right side of Proposition 1, as the module states it.

    With probability at least 1 - delta over the calibration learners, this is a lower bound, for
    all epsilon at once, on the probability that a new learner's true gap is at most epsilon above
    the predicted one (`side="upper"`), or at most that far from it (`side="two"`).

    Args:
        residuals: True minus predicted gap of the calibration learners, (n,).
        epsilon: How far.
        side: Which of the two.
        delta: The share of calibration sets for which it may be wrong, at most 1/2.

    Returns:
        A probability; less than 0 says nothing.
    """
    _check(0.5, "dkw", side, delta)
    n = residuals.numel()
    exceeding = int(((residuals.abs() if side == "two" else residuals) > epsilon).sum())
    return 1 - exceeding / n - math.sqrt(math.log(1 / delta) / (2 * n))


@dataclass(frozen=True)
class Likeness:
    """Whether a new learner is like those calibrated on, and what stands out in it."""

    p_value: float
    """The chance that a learner that is like them looks at least as odd as this one."""
    feature: str
    """In what it differs most."""
    note: str
    """The same as a sentence."""


def unlike(calibration: Calibration, features: Tensor) -> Likeness:
    """Tests whether a new learner is exchangeable with the calibration learners.

    Where it is not, the bounds say nothing about it.

    Args:
        calibration: The learners to compare with.
        features: What tells the new one apart, (k,); NaN, of a learner that diverged, is as odd as
            can be.
    """
    p_value = float(likeness(calibration, features.unsqueeze(0)))
    difference = features.detach().cpu().double() - calibration.features.mean(dim=0)  # (k,)
    scale = _scale(calibration.features)
    own = difference / scale
    # What is not odd by itself can be so for a learner that is otherwise like this one.
    precision = torch.linalg.inv(_covariance(calibration.features / scale))
    given_others = (precision @ own.nan_to_num()) / precision.diagonal().sqrt()
    alone = bool((own.abs() > STANDS_OUT).any())
    odd = (own if alone else given_others).nan_to_num(nan=math.inf)
    place = int(odd.abs().argmax())
    name = calibration.names[place]
    how = "large" if odd[place] > 0 else "small"
    context = "" if alone else " for a learner that is otherwise like it"
    if not features.isfinite().all():
        note = "the learner diverged, or its losses are beyond all numbers"
    else:
        note = f"{name} is {how}{context} ({odd[place]:+.1f} standard deviations)"
    n = len(calibration)
    as_odd = round(p_value * (n + 1)) - 1  # itself not counted
    told = f"{as_odd} of" if as_odd else "none of the"
    note = f"{note}; {told} {n} calibration learners {'look' if as_odd > 1 else 'looks'} as odd"
    return Likeness(p_value, name, note)


def likeness(calibration: Calibration, features: Tensor) -> Tensor:
    """Computes for new learners how many learners like the calibration ones look as odd.

    How odd a learner is, is told by its Mahalanobis distance from the mean of all n + 1, itself
    included, which puts learners in the same order as their distance from the n others does. The
    rank of the new one's distance is uniform if the n + 1 are exchangeable: P[p <= a] <= a for
    every a, whatever the distribution of the features (a conformal p-value).

    Args:
        calibration: The learners to compare with.
        features: Of the new learners, each compared by itself, (B, k).

    Returns:
        p-values, (B,), at least 1 / (n + 1); that for learners whose features are not finite.
    """
    known, n = calibration.features, len(calibration)
    if features.ndim != 2 or features.shape[1] != known.shape[1]:
        raise ValueError(
            f"features must be (learners, {known.shape[1]}), got shape {tuple(features.shape)}"
        )
    new = features.detach().cpu().double()
    found = torch.full((len(new),), 1 / (n + 1), dtype=torch.float64)
    fine = new.isfinite().all(dim=1).nonzero().squeeze(1)
    for rows in fine.split(BLOCK) if len(fine) else ():
        bags = torch.cat([known.expand(len(rows), -1, -1), new[rows].unsqueeze(1)], dim=1)
        found[rows] = _as_odd_as_the_last(bags)
    return found


def _as_odd_as_the_last(bags: Tensor) -> Tensor:
    """Gives the share of each bag's learners, (B, n + 1, k), that look as odd as its last, (B,)."""
    z = (bags - bags.mean(dim=1, keepdim=True)) / _scale(bags).unsqueeze(1)  # (B, n + 1, k)
    solved: Tensor = torch.linalg.solve(_covariance(z), z.mT).mT
    odd = (solved * z).sum(dim=2)  # (B, n + 1)
    # Equal learners count as equal, however their distances are rounded.
    return (odd >= odd[:, -1:] * (1 - ROUNDING)).double().mean(dim=1)


def _scale(features: Tensor) -> Tensor:
    """Gives standard deviations over learners; of what hardly varies, a small part of its size."""
    mean = features.mean(dim=-2)
    return torch.maximum(features.std(dim=-2, correction=0), 1e-4 * (1 + mean.abs()))


def _covariance(features: Tensor) -> Tensor:
    """Gives the covariance of scaled features (..., n, k), as (..., k, k) that can be inverted."""
    centred = features - features.mean(dim=-2, keepdim=True)
    own = centred.mT @ centred / features.shape[-2]
    return own + 1e-6 * torch.eye(features.shape[-1], dtype=features.dtype)


def _binomial_cdf(n: int, p: float) -> Tensor:
    """Gives P[Binomial(n, p) <= j] for j from 0 to n, (n + 1,)."""
    j = torch.arange(n + 1, dtype=torch.float64)
    whole = torch.tensor(n + 1.0, dtype=torch.float64).lgamma()
    ways = whole - (j + 1).lgamma() - (n - j + 1).lgamma()
    return (ways + j * math.log(p) + (n - j) * math.log1p(-p)).exp().cumsum(dim=0)


def _ceil(number: float) -> int:
    return math.ceil(number - ROUNDING * max(1.0, abs(number)))


def _check(confidence: float, method: str, side: str, delta: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method}")
    if side not in ("two", "upper"):
        raise ValueError(f"side must be two or upper, got {side}")
    if not 0 < delta <= 0.5:
        raise ValueError(f"delta must be above 0 and at most 0.5, got {delta}")


def _claim(n: int, confidence: float, method: Method, delta: float) -> str:
    """Says what a bound from n learners claims."""
    least = needed(confidence, method=method, delta=delta)
    if rank(n, confidence, method=method, delta=delta) > n:
        return (
            f"{n} calibration learners are too few for a {method} bound at confidence "
            f"{confidence:g}, which needs at least {least}"
        )
    inside = f"at least {confidence:.4g} of new learners like the {n} calibrated on are inside"
    if method in PAC:
        return f"{inside}, but for at most {delta:.4g} of all calibration sets"
    return f"{inside}, on average over calibration sets"
