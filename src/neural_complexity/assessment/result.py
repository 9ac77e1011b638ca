"""What comes out when NC is asked about one model."""

import math
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neural_complexity.reliability.bounds import Interval
from neural_complexity.reliability.shift import Likeness

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from neural_complexity.assessment.summary_page import Findings

__all__ = ["Assessment"]

SHOWN = 5  # of the worst points in a summary


@dataclass(frozen=True, kw_only=True, eq=False)
class Assessment:
    """What NC says about one model. All losses are of the kind that NC was trained to predict."""

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
    """Where the gap lies at the confidence that was asked for; `None` if NC is not calibrated."""
    trust: float | None
    """How far NC understands this training set, from 0 to 1 (see `trust`); `None` if it cannot be
    found out."""
    unlike: Likeness | None
    """Whether the model and its data are like those that NC was calibrated on, with a p-value;
    `None` if NC is not calibrated."""
    warnings: tuple[str, ...]
    """What to keep in mind, in plain sentences."""
    loss: str
    """The name of the loss."""
    training_points: int
    """How many there were, M."""

    def worst(self, k: int = 10) -> list[int]:
        """Gives the numbers, from 0, of the test points with the largest predicted loss.

        Args:
            k: How many, all of them if there are fewer.

        Raises:
            ValueError: If k is negative.
        """
        if k < 0:
            raise ValueError(f"k must be at least 0, got {k}")
        order: list[int] = np.argsort(-self.points, kind="stable")[:k].tolist()
        return order

    def to_dict(self) -> dict[str, Any]:
        """Gives everything as numbers, text, lists and `None`, as JSON knows them.

        An end of a bound that is infinite is `None`.
        """
        interval = None if self.bound is None else asdict(self.bound)
        if interval is not None:
            interval |= {end: _finite(interval[end]) for end in ("low", "high")}
        return {
            "gap": self.gap,
            "loss": self.loss,
            "loss_tr": self.loss_tr,
            "loss_te": self.loss_te,
            "accuracy_tr": self.accuracy_tr,
            "accuracy_te": self.accuracy_te,
            "spread": self.spread,
            "bound": interval,
            "trust": self.trust,
            "unlike": None if self.unlike is None else asdict(self.unlike),
            "training_points": self.training_points,
            "test_points": len(self.points),
            "warnings": list(self.warnings),
            "worst": self.worst(),
            "points": self.points.tolist(),
        }

    def plot(self) -> "Figure":
        """Draws the predicted loss of each test point, and the bound against the training loss.

        Returns:
            A matplotlib figure of two panels; `savefig` writes it.
        """
        from neural_complexity.assessment.summary_page import draw

        return draw(self._findings())

    def to_html(self) -> str:
        """Makes one page of everything, which needs no other file and no network."""
        from neural_complexity.assessment.drawing import to_png
        from neural_complexity.assessment.page import Figure, render
        from neural_complexity.assessment.summary_page import draw, tables

        found = self._findings()
        details = {k: v for k, v in self.to_dict().items() if k != "points"}
        lead = (
            f"Neural Complexity read {self.training_points} labelled training points and "
            f"{len(self.points)} unlabelled test points, and what the model says about both."
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "assessment.png"
            path.write_bytes(to_png(draw(found)))
            picture = Figure(
                path,
                "How the loss is expected to spread",
                "Left: every test point by its predicted loss. Right: the predicted test loss next "
                "to the training loss.",
            )
            return render(
                f"Predicted gap: {_signed(self.gap)}",
                lead,
                tables(found),
                [picture],
                details,
                remarks=self.warnings,
                detailed="All numbers but those of single points",
            )

    def __repr__(self) -> str:
        sizes = f"{self.training_points} training and {len(self.points)} test points"
        right_tr, right_te = (
            "" if share is None else f"   accuracy {100 * share:.1f} %"
            for share in (self.accuracy_tr, self.accuracy_te)
        )
        worst = ", ".join(f"{i} ({self.points[i]:.3g})" for i in self.worst(SHOWN))
        lines = [
            f"Assessment on {sizes}, {self.loss.replace('_', ' ')}",
            f"  training loss        {self.loss_tr:.4g}{right_tr}",
            f"  predicted test loss  {self.loss_te:.4g}{right_te}",
            f"  predicted gap        {_signed(self.gap)}",
            f"  bound of the gap     {self._bound_told()}",
            f"  trust                {'unknown' if self.trust is None else f'{self.trust:.2f}'}",
            f"  like calibration     {self._likeness_told()}",
            f"  worst test points    {worst}",
            *(f"  note: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)

    def _bound_told(self) -> str:
        if self.bound is None:
            return "none"
        ends = f"{_signed(self.bound.low)} to {_signed(self.bound.high)}"
        return f"{ends} at {100 * self.bound.confidence:g} % ({self.bound.method})"

    def _likeness_told(self) -> str:
        return "unknown" if self.unlike is None else f"p = {self.unlike.p_value:.2g}"

    def _findings(self) -> "Findings":
        from neural_complexity.assessment.summary_page import Findings

        interval, told = None, "no bound: NC is not calibrated"
        if self.bound is not None:
            low, high = (self.loss_tr + end for end in (self.bound.low, self.bound.high))
            interval = (max(low, 0.0), max(high, 0.0))  # no loss is negative
            told = f"{100 * self.bound.confidence:g} % bound ({self.bound.method})"
        return Findings(
            loss=self.loss,
            loss_tr=self.loss_tr,
            loss_te=self.loss_te,
            accuracy_tr=self.accuracy_tr,
            accuracy_te=self.accuracy_te,
            interval=interval,
            told=told,
            points=self.points,
            worst=self.worst(),
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _signed(value: float) -> str:
    return f"{value:+.3g}"
