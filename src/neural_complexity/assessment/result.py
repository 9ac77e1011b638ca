"""The result of an assessment: its numbers, its figure and its page."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from neural_complexity.assessment.metrics import Estimate
from neural_complexity.assessment.moved import Moved
from neural_complexity.assessment.report import COLORS, STYLE, Figure, Table, render, to_png
from neural_complexity.reliability.calibration import Shift
from neural_complexity.reliability.gap_bounds import Interval

__all__ = ["Assessment", "Joint"]

ENDLESS = (-inf, inf)
NAMED = 5  # of the worst points that the summary and the figure name
WIDE = 100.0  # ratio of largest and smallest loss from which on the scale is logarithmic
TRAIN, TEST, WORST = COLORS["oracle"], COLORS["posterior"], COLORS["direct"]
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # lines do not cross numbers


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
    cross_validated: Mapping[str, float] = field(default_factory=dict)
    """Loss and accuracy out of fold, where there are such predictions, to compare."""
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
        return {name: value for name, value in vars(self).items() if name != "joint"} | {
            **{"bound": bound, "unlike": shift, "warnings": list(self.warnings)},
            **{"moved": self.moved and vars(self.moved)},
            **{"metrics": {name: vars(found) for name, found in self.metrics.items()}},
            **{"cross_validated": dict(self.cross_validated)},
            **{"test_points": len(self.points), "worst": self.worst()},
            "points": self.points.tolist(),
        }

    @mpl.rc_context(STYLE)
    def plot(self) -> Canvas:
        """Draws the losses of test points, and the bound, as a matplotlib figure of two panels."""
        canvas = Canvas(figsize=(9.2, 3.4), layout="constrained")
        left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
        ranked, n = np.sort(self.points), len(self.points)
        kind = "o" if n <= 100 else "-"
        left.plot(range(1, n + 1), ranked, kind, ms=3, lw=1.6, color=TEST, label="test points")
        worst = self.worst()[: max(1, n // 5)]  # among few, not all are the worst
        places = [n - row for row in range(len(worst))]
        left.plot(places, self.points[worst], "o", ms=5, color=WORST, label="expected worst")
        if ranked[0] > 0 and ranked[-1] > WIDE * ranked[0]:
            left.set_yscale("log")
        # Names stand in a column to the left, evenly spaced: the losses may be alike.
        line: dict[str, Any] = {"arrowstyle": "-", "color": WORST, "lw": 0.5, "alpha": 0.7}
        text: dict[str, Any] = {"textcoords": "axes fraction", "fontsize": 8, "va": "top"}
        for row, i in enumerate(worst[:NAMED]):
            spot, place = (places[row], self.points[i]), (0.6, 0.97 - 0.09 * row)
            left.annotate(f"point {i}", spot, place, bbox=PAPER, arrowprops=line, **text)
        left.axhline(self.loss_te, color=TEST, lw=0.9, ls="--", label="their mean")
        left.set(title="Predicted loss of each test point", xlabel="test points, best to worst")
        left.set(ylabel=self._unit, xmargin=0.03, ymargin=0.12)
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        left.legend(loc="upper left")
        label, ends = self._interval()
        if ends:
            # A bar of no end leaves the figure, with an arrow.
            far = 1.4 * max(self.loss_tr, self.loss_te)
            bar: dict[str, Any] = {"color": TEST, "lw": 5, "alpha": 0.3, "solid_capstyle": "butt"}
            high = far if np.isinf(ends[1]) else ends[1]
            right.plot([ends[0], high], [0, 0], label=label, **bar)
            if np.isinf(ends[1]):
                right.plot([far], [0], ">", ms=9, color=TEST, alpha=0.5, label="no upper end")
        above: dict[str, Any] = {"xytext": (0, 11), "textcoords": "offset points", "ha": "center"}
        for value, row, color in ((self.loss_tr, 1, TRAIN), (self.loss_te, 0, TEST)):
            right.plot([value], [row], "o", ms=8, color=color)
            right.annotate(f"{value:.3g}", (value, row), bbox=PAPER, **above)
        right.axvline(self.loss_tr, color=TRAIN, lw=0.9, ls="--")
        right.set(title="Loss", xlabel=self._unit, xmargin=0.15, ylim=(-0.7, 1.5))
        right.set_yticks([1, 0], ["training", "test,\npredicted"])
        if right.dataLim.x0 >= 0:
            right.set_xlim(left=0)  # so that a small gap looks small
        if ends:
            right.legend(loc="lower right", frameon=True, framealpha=1, edgecolor="none")
        return canvas

    def to_html(self) -> str:
        """Returns a page of everything, which needs no other file and no network."""
        title, M, N = "How the loss is expected to spread", self.training_points, len(self.points)
        caption = "Left: every test point by its predicted loss. Right: the predicted test loss "
        figure = Figure(to_png(self.plot()), title, f"{caption}next to the training loss.")
        answer, moved = f"Predicted gap: {self.gap:+.3g}", ""
        for name, estimate in [*self.metrics.items()][:1]:
            answer = f"Expected {name.replace('_', ' ')}: {estimate}"
        if self.moved is not None:
            moved = f" The {self.moved}."
        return render(
            answer,
            f"Neural Complexity read {M} labelled training points and {N} unlabelled test points, "
            f"and what the model says about both.{moved}",
            self._tables(),
            [figure],
            {name: value for name, value in self.to_dict().items() if name != "points"},
            warnings=self.warnings,
            details_title="All numbers but those of single points",
        )

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
        folds = [f"{name} {value:.3g}" for name, value in self.cross_validated.items()]
        worst = ", ".join(f"{i} ({self.points[i]:.3g})" for i in self.worst(NAMED))
        sizes = f"{self.training_points} training and {len(self.points)} test points"
        lines = [
            f"Assessment on {sizes}, {self._unit}",
            f"  training loss        {self.loss_tr:.4g}{accuracy_tr}",
            f"  predicted test loss  {self.loss_te:.4g}{accuracy_te}",
            f"  predicted gap        {self.gap:+.3g}",
            f"  bound of the gap     {bound}",
            *(f"  {name:20} {found}" for name, found in self.metrics.items()),
            *([f"  cross-validation     {', '.join(folds)}"] if folds else []),
            f"  trust                {'unknown' if self.trust is None else f'{self.trust:.2f}'}",
            f"  distribution shift   {shift}",
            f"  worst test points    {worst}",
            *(f"  note: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)

    @property
    def _unit(self) -> str:
        return self.loss.replace("_", " ")

    def _interval(self) -> tuple[str, list[float]]:
        """Returns the bound of the test loss, if any: its name and ends, as no loss is negative."""
        if self.bound is None:
            return "no bound: NC is not calibrated", []
        ends = [max(self.loss_tr + end, 0.0) for end in (self.bound.low, self.bound.high)]
        return f"{100 * self.bound.confidence:g} % bound ({self.bound.method})", ends

    def _tables(self) -> list[Table]:
        """Returns the tables of the page: the losses, and the worst test points."""
        rows = [("loss", f"{self.loss_tr:.4g}", f"{self.loss_te:.4g}")]
        if self.accuracy_tr is not None:
            known = self.accuracy_te is None or "accuracy" in self.metrics  # which has its own row
            test = "" if known else f"{100 * (self.accuracy_te or 0.0):.1f} %"
            rows.append(("accuracy", f"{100 * self.accuracy_tr:.1f} %", test))
        label, ends = self._interval()
        if ends:
            rows.append(("bound of the loss", "", f"{ends[0]:.4g} to {ends[1]:.4g}"))
        rows += [(name, "", str(found)) for name, found in self.metrics.items()]
        rows += [(f"{n}, out of fold", f"{v:.4g}", "") for n, v in self.cross_validated.items()]
        title, header = f"Loss ({self._unit})", ("", "training", "test, predicted")
        worst = tuple((str(i), f"{self.points[i]:.4g}") for i in self.worst())
        names = ("test point, counted from 0", "predicted loss")
        return [
            Table(title, header, tuple(rows), label),
            Table("Test points that NC expects to go worst", names, worst),
        ]
