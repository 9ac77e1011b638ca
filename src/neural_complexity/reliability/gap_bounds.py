"""Bounds on the gap of a new learner, from how far NC was off on calibration learners.

All that the bounds need is n learners on held-out tasks, one per task, whose gaps are known. Let
Delta_i = true gap - predicted gap of learner i. A new learner that comes from where these came from
(the n + 1 are exchangeable, or independent and alike) has a Delta of its own, and a bound says how
large it can be.

**Proposition 1, correctly** (docs/deviations.md says what is wrong in the paper's). Let s_i be
Delta_i (upper) or |Delta_i| (two-sided), independent and alike, and delta <= 1/2. With probability
at least 1 - delta over them, for all eps at once,

    P[s <= eps] >= 1 - #{s_i > eps} / n - sqrt(log(1 / delta) / 2n),

by one tail of the Dvoretzky-Kiefer-Wolfowitz inequality (Massart, 1990). `guaranteed_coverage`
computes the right side; `bound` with `method="dkw"` chooses the smallest eps for which it is at
least the confidence. As this holds for all eps at once, eps may be chosen so.

**Tighter.** For one eps, the k-th smallest of the s_i with k fixed beforehand, no more is needed
than the binomial distribution (Clopper and Pearson, 1934): P[s <= s_(k)] is at least a variable of
distribution Beta(k, n + 1 - k), which exceeds the confidence with probability
P[Binomial(n, confidence) < k]. That is `"clopper_pearson"`. Both are statements about (almost)
every calibration set. `"conformal"` states less, and is narrower still: of all calibration sets and
new learners together, at least the share `confidence` is inside (Vovk et al., 2005), if they are
exchangeable. `"normalised"` is the same for Delta over NC's own spread, so that learners that NC is
sure of get narrower bounds.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from scipy.special import bdtr, bdtrik  # scipy.stats takes a second to import
from torch import Tensor

from neural_complexity.reliability.calibration import Calibration
from neural_complexity.reliability.methods import Method

__all__ = ["METHODS", "PAC", "Interval", "Side", "bound", "check_options"]
__all__ += ["guaranteed_coverage", "margin", "needed", "rank"]

Side = Literal["two", "upper"]
METHODS: tuple[Method, ...] = get_args(Method)
PAC = ("dkw", "clopper_pearson")  # these hold for almost every calibration set
ROUNDING = 1e-9  # of a product that should be a whole number


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
        least: What the gap cannot be below: minus the training loss, if no loss is negative.

    Returns:
        The interval; with too few calibration learners an infinite one, whose note says how many
        are needed.
    """
    if not (math.isfinite(predicted_gap) and 0 < spread < math.inf):
        note = f"nothing can be said of a predicted gap of {predicted_gap:g} ± {spread:g}"
        return Interval(-math.inf, math.inf, confidence, method, note)
    n, own = len(calibration), torch.tensor(spread, dtype=torch.float64)
    options: Any = {"confidence": confidence, "method": method, "side": side, "delta": delta}
    width = margin(calibration.residuals, calibration.spread, own, **options).item()
    low, high = predicted_gap - width if side == "two" else -math.inf, predicted_gap + width
    pac = f"but for at most {delta:.4g} of all calibration sets"
    note = (
        f"{n} calibration learners are too few for a {method} bound at confidence {confidence:g}, "
        f"which needs at least {needed(confidence, method, delta)}"
        if rank(n, confidence, method, delta) > n
        else f"at least {confidence:.4g} of new learners like the {n} calibrated on are inside, "
        + (pac if method in PAC else "on average over calibration sets")
    )
    note = f"{note}; {calibration.note}" if calibration.note else note
    # Where the least value itself is above the rest, the bound has failed: it stays as it is.
    return Interval(max(low, least) if least <= high else low, high, confidence, method, note)


def margin(residuals: Tensor, spreads: Tensor, spread: Tensor, **options: Any) -> Tensor:
    """Computes how far above the predicted gap (and below it) the bound lies, (...), or infinity.

    `residuals` are true minus predicted gaps of calibration learners, (..., n), `spreads` NC's own
    standard deviations of these, and `spread` that of the new learner, (...); options are
    `confidence`, `method`, `side` and `delta` of `bound`.
    """
    (confidence, method, side, delta), n = check_options(**options), residuals.shape[-1]
    k = rank(n, confidence, method, delta)
    if k > n:
        return torch.full_like(spread, math.inf)
    scores = residuals.abs() if side == "two" else residuals
    if method != "normalised":
        return scores.kthvalue(k, dim=-1).values.expand_as(spread)
    # The median of all n + 1 spreads keeps tiny ones from making scores huge. As it treats the new
    # learner like the others, the n + 1 scores stay exchangeable.
    floor = torch.cat([spreads, spread.unsqueeze(-1)], dim=-1).median(dim=-1).values
    scores = scores / (spreads + floor.unsqueeze(-1))
    return scores.kthvalue(k, dim=-1).values * (spread + floor)


def rank(n: int, confidence: float, method: Method, delta: float = 0.05) -> int:
    """Computes which of n scores, the k-th smallest, bounds a new one; n + 1 if none does."""
    if method == "dkw":
        k = _ceil(n * (confidence + math.sqrt(math.log(1 / delta) / (2 * n))))
    elif method == "clopper_pearson":
        level = 1 - delta - ROUNDING  # k - 1 is the least count whose probability reaches it
        k = math.ceil(bdtrik(level, n, confidence)) + 1
        k = k - 1 if k > 1 and bdtr(k - 2, n, confidence) >= level else k
    else:
        k = _ceil((n + 1) * confidence)
    return min(max(k, 1), n + 1)


def needed(confidence: float, method: Method, delta: float = 0.05) -> int:
    """Computes how many calibration learners a finite bound needs, at least."""
    if method == "dkw":
        return _ceil(math.log(1 / delta) / (2 * (1 - confidence) ** 2))
    if method == "clopper_pearson":
        return max(1, _ceil(math.log(delta) / math.log(confidence)))
    return max(1, _ceil(confidence / (1 - confidence)))


def guaranteed_coverage(
    residuals: Tensor, epsilon: float, *, side: Side = "two", delta: float = 0.05
) -> float:
    """Computes the right side of Proposition 1, as the module states it.

    Args:
        residuals: True minus predicted gap of the calibration learners, (n,).
        epsilon: How far the true gap of a new learner may be from the predicted one.
        side: Whether that is in both directions (`"two"`) or above (`"upper"`).
        delta: The share of calibration sets for which it may be wrong, at most 1/2.
    """
    check_options(side=side, delta=delta)
    n = residuals.numel()
    exceeding = int(((residuals.abs() if side == "two" else residuals) > epsilon).sum())
    return 1 - exceeding / n - math.sqrt(math.log(1 / delta) / (2 * n))


def _ceil(number: float) -> int:
    return math.ceil(number - ROUNDING * max(1.0, abs(number)))


def check_options(
    confidence: float = 0.95, method: Method = "conformal", side: Side = "two", delta: float = 0.05
) -> tuple[float, Method, Side, float]:
    """Returns options, with what was left out, or raises a ValueError if one cannot be met."""
    for right, wanted, got in (
        (0 < confidence < 1, "confidence must be between 0 and 1", confidence),
        (method in METHODS, f"method must be one of {', '.join(METHODS)}", method),
        (side in ("two", "upper"), "side must be two or upper", side),
        (0 < delta <= 0.5, "delta must be above 0 and at most 0.5", delta),
    ):
        if not right:
            raise ValueError(f"{wanted}, got {got}")
    return confidence, method, side, delta
