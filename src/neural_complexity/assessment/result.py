"""The result of an assessment."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from neural_complexity.assessment import summary_page
from neural_complexity.reliability.gap_bounds import Interval
from neural_complexity.reliability.shift import Shift

__all__ = ["Assessment"]

WORST_IN_SUMMARY = 5


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
    """How far NC understands this training set, from 0 to 1 (see `trust`); `None` if it cannot be
    tested."""
    unlike: Shift | None
    """Test for a distribution shift between this model and those that NC was calibrated on, with a
    p-value; `None` if NC is not calibrated."""
    warnings: tuple[str, ...]
    """What to keep in mind, in plain sentences."""
    loss: str
    """The name of the loss."""
    training_points: int
    """How many there were, M."""

    def worst(self, k: int = 10) -> list[int]:
        """Returns the indices of the k test points with the largest predicted loss, worst first.

        Raises:
            ValueError: If k is negative.
        """
        if k < 0:
            raise ValueError(f"k must be at least 0, got {k}")
        order: list[int] = np.argsort(-self.points, kind="stable")[:k].tolist()
        return order

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as JSON can hold it; an infinite end of the bound is `None`."""
        content = {name: value for name, value in vars(self).items() if name != "points"}
        if self.bound is not None:
            interval = asdict(self.bound)
            ends = {end: interval[end] for end in ("low", "high") if math.isinf(interval[end])}
            content["bound"] = interval | dict.fromkeys(ends)
        return content | {
            "unlike": None if self.unlike is None else asdict(self.unlike),
            "warnings": list(self.warnings),
            "test_points": len(self.points),
            "worst": self.worst(),
            "points": self.points.tolist(),
        }

    def plot(self) -> Figure:
        """Draws the predicted loss of each test point, and the bound against the training loss.

        Returns:
            A matplotlib figure of two panels; `savefig` writes it.
        """
        return summary_page.draw(self)

    def to_html(self) -> str:
        """Returns a page of everything, which needs no other file and no network."""
        return summary_page.page(self)

    def __repr__(self) -> str:
        accuracy_tr, accuracy_te = (
            "" if share is None else f"   accuracy {100 * share:.1f} %"
            for share in (self.accuracy_tr, self.accuracy_te)
        )
        bound, trust, shift = "none", "unknown", "not tested"
        if self.bound is not None:
            ends = f"{self.bound.low:+.3g} to {self.bound.high:+.3g}"
            bound = f"{ends} at {100 * self.bound.confidence:g} % ({self.bound.method})"
        if self.trust is not None:
            trust = f"{self.trust:.2f}"
        if self.unlike is not None:
            shift = f"p = {self.unlike.p_value:.2g}"
        worst = ", ".join(f"{i} ({self.points[i]:.3g})" for i in self.worst(WORST_IN_SUMMARY))
        sizes = f"{self.training_points} training and {len(self.points)} test points"
        lines = [
            f"Assessment on {sizes}, {self.loss.replace('_', ' ')}",
            f"  training loss        {self.loss_tr:.4g}{accuracy_tr}",
            f"  predicted test loss  {self.loss_te:.4g}{accuracy_te}",
            f"  predicted gap        {self.gap:+.3g}",
            f"  bound of the gap     {bound}",
            f"  trust                {trust}",
            f"  distribution shift   {shift}",
            f"  worst test points    {worst}",
            *(f"  note: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)
