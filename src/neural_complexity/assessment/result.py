"""The result of an assessment: its numbers, its figure and its page."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray

from neural_complexity.assessment.evidence import Checked
from neural_complexity.assessment.metrics import Estimate
from neural_complexity.assessment.moved import Moved
from neural_complexity.assessment.page import draw, to_page
from neural_complexity.assessment.slices import Slice
from neural_complexity.reliability.calibration import Shift
from neural_complexity.reliability.gap_bounds import Interval

__all__ = ["Assessment", "Joint"]

ENDLESS = (-inf, inf)
NAMED = 5  # of the worst points that the summary names


@dataclass(frozen=True, eq=False)
class Joint:
    """What a model's loss hangs on, where several are compared."""

    losses: NDArray[np.float64]  # (draws,), on targets that all models share
    by_tilt: NDArray[np.float64]  # (G,), expected at each tilt of `GRID`
    tilt: NDArray[np.float64]  # (G,), the probability of each


@dataclass(frozen=True, kw_only=True, eq=False)
class Assessment:
    """How well one model generalizes, as NC predicts it, in units of the loss that NC predicts."""

    gap: float
    """Predicted test loss minus training loss; positive means that the model overfits."""
    loss_tr: float
    """Training loss, measured."""
    loss_te: float
    """Test loss, predicted."""
    accuracy_tr: float | None
    """Share of training points that the model gets right, measured; `None` for real targets."""
    accuracy_te: float | None
    """The same for test points, predicted; `None` also for the direct head."""
    points: NDArray[np.float64]
    """Predicted loss of each test point, (N,)."""
    spread: float
    """NC's own standard deviation of the test loss; no bound by itself."""
    bound: Interval | None
    """Prediction interval of the gap; `None` if NC is not calibrated."""
    trust: float | None
    """How far NC understands this training set, 0 to 1 (see `trust`); `None` if not testable."""
    unlike: Shift | None
    """Test for a distribution shift between this model and those that NC was calibrated on, with a
    p-value; `None` if NC is not calibrated."""
    warnings: tuple[str, ...] = ()
    """What to keep in mind, in plain sentences."""
    metrics: Mapping[str, Estimate] = field(default_factory=dict)
    """Metrics on the new points, each with an interval, of an NC for tables."""
    moved: Moved | None = None
    """Whether the new points differ from the training points, as an NC for tables has it tested."""
    errors: NDArray[np.float64] | None = None
    """How likely the model is to be wrong at each test point, or its expected squared error, (N,),
    by an NC for tables."""
    cross_validated: Mapping[str, Estimate] = field(default_factory=dict)
    """Loss and accuracy out of fold, where there are such predictions, to compare: what
    cross-validation says, with its usual interval."""
    checked: Checked | None = None
    """How NC did at labelled points that the model did not learn from, where there are any."""
    powered: Estimate | None = None
    """Accuracy, or squared error, by what NC expects, corrected by how far it was off at labelled
    points (prediction-powered inference): its interval holds whatever NC believes, if the new
    points are like the labelled ones."""
    slices: tuple[Slice, ...] = ()
    """Where the model is expected to fail: slices of the test points by one feature, the worst
    first."""
    inputs: pd.DataFrame | None = None
    """The worst ten test points as they were given, the worst first."""
    joint: Joint | None = None
    """For `compare`."""
    loss: str
    """The name of the loss."""
    training_points: int
    """How many there were, M."""

    def worst(self, k: int = 10) -> list[int]:
        """Returns the indices of the k >= 0 test points of largest predicted loss, worst first."""
        if k < 0:
            raise ValueError(f"k must be at least 0, got {k}")
        return list(map(int, np.argsort(-self.points, kind="stable")[:k]))

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as JSON can hold it; an infinite end of the bound is `None`."""
        bound, shift = (
            part and {k: None if v in ENDLESS else v for k, v in vars(part).items()}
            for part in (self.bound, self.unlike)
        )
        metrics, folds = (
            {name: vars(found) for name, found in estimates.items()}
            for estimates in (self.metrics, self.cross_validated)
        )
        left_out = ("joint", "inputs")
        return {name: value for name, value in vars(self).items() if name not in left_out} | {
            **{"bound": bound, "unlike": shift, "warnings": list(self.warnings)},
            **{"moved": self.moved and vars(self.moved), "metrics": metrics},
            **{"powered": self.powered and vars(self.powered)},
            **{"cross_validated": folds, "checked": self.checked and self.checked.to_dict()},
            **{"test_points": len(self.points), "worst": self.worst()},
            **{"slices": [vars(one) for one in self.slices], "points": self.points.tolist()},
            "errors": None if self.errors is None else self.errors.tolist(),
        }

    def plot(self) -> Canvas:
        """Draws the losses of test points, and the bound, as a matplotlib figure of two panels."""
        return draw(self)

    def to_html(self) -> str:
        """Returns a page of everything, which needs no other file and no network."""
        return to_page(self)

    def __repr__(self) -> str:
        accuracy_tr, accuracy_te = (
            "" if share is None else f"   accuracy {100 * share:.1f} %"
            for share in (self.accuracy_tr, self.accuracy_te)
        )
        bound = "none"
        if self.bound is not None:
            ends = f"{self.bound.low:+.3g} to {self.bound.high:+.3g}"
            bound = f"{ends} at {100 * self.bound.confidence:g} % ({self.bound.method})"
        shift = "not tested" if self.unlike is None else f"p = {self.unlike.p_value:.2g}"
        shift = shift if self.moved is None else str(self.moved)
        worst = ", ".join(f"{i} ({self.points[i]:.3g})" for i in self.worst(NAMED))
        sizes = f"{self.training_points} training and {len(self.points)} test points"
        lines = [
            f"Assessment on {sizes}, {self.unit}",
            f"  training loss        {self.loss_tr:.4g}{accuracy_tr}",
            f"  predicted test loss  {self.loss_te:.4g}{accuracy_te}",
            f"  predicted gap        {self.gap:+.3g}",
            f"  bound of the gap     {bound}",
            *(f"  {name:20} {found}" for name, found in self.metrics.items()),
            *(f"  {f'{name}, folds':20} {found}" for name, found in self.cross_validated.items()),
            *([f"  prediction-powered   {self.powered}"] if self.powered else []),
            *([f"  labelled points      {self.checked}"] if self.checked else []),
            f"  trust                {'unknown' if self.trust is None else f'{self.trust:.2f}'}",
            f"  distribution shift   {shift}",
            f"  worst test points    {worst}",
            *([f"  worst slice          {self.slices[0]}"] if self.slices else []),
            *(f"  note: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)

    @property
    def unit(self) -> str:
        """The loss in words."""
        return self.loss.replace("_", " ")
