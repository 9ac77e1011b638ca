"""The figure and the page of an assessment."""

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from neural_complexity.assessment.report import COLORS, STYLE, Figure, Table, render, to_png
from neural_complexity.convert.arrays_in import LEAST

if TYPE_CHECKING:
    from neural_complexity.assessment.result import Assessment

__all__ = ["ASSUMED", "CLIPPED", "draw", "slices_of", "tables_of", "to_page"]

NAMED = 5  # of the worst points that the figure names
COLUMNS = 8  # features of a row that the page shows
FEWEST = 5  # rows that a mean is of
LONG = 40  # letters of a value that it shows
CLIPPED = f"Probabilities of predict_proba are clipped at {LEAST:g}: the loss of a 0 is infinite"
WIDE = 100.0  # ratio of largest and smallest loss from which on the scale is logarithmic
TRAIN, TEST, WORST = COLORS["oracle"], COLORS["posterior"], COLORS["direct"]
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # lines do not cross numbers
ASSUMED = (
    "Targets of the new rows depend on their features as those of the training rows do. If that "
    "has changed, only new labels can tell.",
    "Training rows are a fair sample of some population, and the model learned from these only.",
    "Intervals are of targets that are drawn from NC's belief, which may be as far off as it was "
    "on tables for development, and farther where rows have moved.",
)


@mpl.rc_context(STYLE)
def draw(found: "Assessment") -> Canvas:
    """Draws the losses of test points, and the bound, as a matplotlib figure of two panels."""
    canvas = Canvas(figsize=(9.2, 3.4), layout="constrained")
    left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
    ranked, n = np.sort(found.points), len(found.points)
    kind = "o" if n <= 100 else "-"
    left.plot(range(1, n + 1), ranked, kind, ms=3, lw=1.6, color=TEST, label="test points")
    worst = found.worst()[: max(1, n // 5)]  # among few, not all are the worst
    places = [n - row for row in range(len(worst))]
    left.plot(places, found.points[worst], "o", ms=5, color=WORST, label="expected worst")
    if ranked[0] > 0 and ranked[-1] > WIDE * ranked[0]:
        left.set_yscale("log")
    # Names stand in a column to the left, evenly spaced: the losses may be alike.
    line: dict[str, Any] = {"arrowstyle": "-", "color": WORST, "lw": 0.5, "alpha": 0.7}
    text: dict[str, Any] = {"textcoords": "axes fraction", "fontsize": 8, "va": "top"}
    for row, i in enumerate(worst[:NAMED]):
        spot, place = (places[row], found.points[i]), (0.6, 0.97 - 0.09 * row)
        left.annotate(f"point {i}", spot, place, bbox=PAPER, arrowprops=line, **text)
    left.axhline(found.loss_te, color=TEST, lw=0.9, ls="--", label="their mean")
    left.set(title="Predicted loss of each test point", xlabel="test points, best to worst")
    left.set(ylabel=found.unit, xmargin=0.03, ymargin=0.12)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend(loc="upper left")
    label, ends = _interval(found)
    if ends:
        # A bar of no end leaves the figure, with an arrow.
        far = 1.4 * max(found.loss_tr, found.loss_te)
        bar: dict[str, Any] = {"color": TEST, "lw": 5, "alpha": 0.3, "solid_capstyle": "butt"}
        high = far if np.isinf(ends[1]) else ends[1]
        right.plot([ends[0], high], [0, 0], label=label, **bar)
        if np.isinf(ends[1]):
            right.plot([far], [0], ">", ms=9, color=TEST, alpha=0.5, label="no upper end")
    above: dict[str, Any] = {"xytext": (0, 11), "textcoords": "offset points", "ha": "center"}
    for value, row, color in ((found.loss_tr, 1, TRAIN), (found.loss_te, 0, TEST)):
        right.plot([value], [row], "o", ms=8, color=color)
        right.annotate(f"{value:.3g}", (value, row), bbox=PAPER, **above)
    right.axvline(found.loss_tr, color=TRAIN, lw=0.9, ls="--")
    right.set(title="Loss", xlabel=found.unit, xmargin=0.15, ylim=(-0.7, 1.5))
    right.set_yticks([1, 0], ["training", "test,\npredicted"])
    if right.dataLim.x0 >= 0:
        right.set_xlim(left=0)  # so that a small gap looks small
    if ends:
        right.legend(loc="lower right", frameon=True, framealpha=1, edgecolor="none")
    return canvas


def to_page(found: "Assessment") -> str:
    """Returns a page of everything, which needs no other file and no network."""
    title, M, N = "How the loss is expected to spread", found.training_points, len(found.points)
    caption = "Left: every test point by its predicted loss. Right: the predicted test loss "
    figure = Figure(to_png(found.plot()), title, f"{caption}next to the training loss.")
    answer, moved = f"Predicted gap: {found.gap:+.3g}", ""
    for name, estimate in [*found.metrics.items()][:1]:
        answer = f"Expected {name.replace('_', ' ')}: {estimate}"
    if found.moved is not None:
        moved = f" The {found.moved}."
    return render(
        answer,
        f"Neural Complexity read {M} labelled training points and {N} unlabelled test points, "
        f"and what the model says about both.{moved}",
        tables_of(found),
        [figure],
        {n: value for n, value in found.to_dict().items() if n not in ("points", "errors")},
        warnings=found.warnings,
        assumed=ASSUMED if found.metrics else (),
        details_title="All numbers but those of single points",
    )


def tables_of(found: "Assessment") -> list[Table]:
    """Returns the tables of the page."""
    return [
        _losses(found),
        *([_beside_folds(found)] if found.metrics else []),
        *([_shift(found)] if found.moved is not None else []),
        *([slices_of(found)] if found.slices else []),
        _worst(found),
    ]


def _interval(found: "Assessment") -> tuple[str, list[float]]:
    """Returns the bound of the test loss, if any: its name and ends, as no loss is negative."""
    if found.bound is None:
        return "no bound: NC is not calibrated", []
    ends = [max(found.loss_tr + end, 0.0) for end in (found.bound.low, found.bound.high)]
    return f"{100 * found.bound.confidence:g} % bound ({found.bound.method})", ends


def _losses(found: "Assessment") -> Table:
    rows = [("loss", f"{found.loss_tr:.4g}", f"{found.loss_te:.4g}")]
    if found.accuracy_tr is not None:
        test = "" if found.accuracy_te is None else f"{100 * found.accuracy_te:.1f} %"
        rows.append(("accuracy", f"{100 * found.accuracy_tr:.1f} %", test))
    label, ends = _interval(found)
    if ends:
        rows.append(("bound of the loss", "", f"{ends[0]:.4g} to {ends[1]:.4g}"))
    header = ("", "training", "test, predicted")
    note = ". ".join(filter(None, [label, CLIPPED if found.accuracy_tr is not None else ""]))
    return Table(f"Loss ({found.unit})", header, tuple(rows), note)


def _beside_folds(found: "Assessment") -> Table:
    """Returns metrics beside what cross-validation says about them, as far as it is known."""
    same = {"loss": "log_loss"} if found.accuracy_tr is not None else {}
    folds = {same.get(name, name): value for name, value in found.cross_validated.items()}
    rows = list[tuple[str, ...]]()
    for name, one in found.metrics.items():
        other = folds.get(name)
        theirs = ("", "") if other is None else (f"{other.value:.3g}", _ends(other))
        rows.append((name.replace("_", " "), f"{one.value:.3g}", _ends(one), *theirs))
    note = "Cross-validation judges rows like those of training, whatever the new ones are."
    if not folds:
        rows, note = [row[:3] for row in rows], "folds=5 puts cross-validation beside these."
    header = ("metric", "expected", "interval", "by folds", "their interval")
    if found.powered is not None:
        what = "accuracy" if found.accuracy_tr is not None else "squared error"
        note += f" Valid whatever NC believes, if new rows are like labelled ones: {what} "
        note += f"{found.powered} (of folds: of the model's copies, which saw fewer rows)."
    if found.checked is not None:
        note += f" At labelled points that the model did not learn from, {found.checked}."
    return Table("Metrics on the new points", header[: len(rows[0])], tuple(rows), note)


def _ends(one: Any) -> str:
    return f"{one.low:.3g} to {one.high:.3g}"


def _shift(found: "Assessment") -> Table:
    """Returns whether data moved, and what that does to the estimate."""
    moved = found.moved
    assert moved is not None
    rows = [
        ("p-value of rows as different as these", f"{moved.p_value:.2g}"),
        ("how well the two are told apart (AUC; 0.5: not at all)", f"{moved.auc:.2f}"),
        ("features that differ by themselves", ", ".join(moved.features[:COLUMNS]) or "none"),
        ("rows outside of all that training rows have", str(len(moved.outside))),
    ]
    if found.errors is not None:
        what = "share of wrong answers" if found.accuracy_tr is not None else "squared error"
        far = np.isin(np.arange(len(found.errors)), moved.outside)
        for name, some in (("outside of these", far), ("elsewhere", ~far)):
            if min(far.sum(), (~far).sum()) >= FEWEST:
                rows.append((f"expected {what} {name}", f"{found.errors[some].mean():.3g}"))
        if found.checked is not None:
            mean = found.checked.errors.mean()
            rows.append((f"expected {what} at labelled points", f"{mean:.3g}"))
            rows.append((f"expected {what} at new points", f"{found.errors.mean():.3g}"))
    return Table("Have the data moved?", ("", "training rows and new rows"), tuple(rows))


def slices_of(found: "Assessment", title: str = "Where it will fail") -> Table:
    """Returns the slices of new rows where the model is expected to fail."""
    what = "share of wrong answers" if found.accuracy_tr is not None else "squared error"
    rows = tuple((str(one), str(one.rows), f"{one.error:.3g}") for one in found.slices)
    overall = "" if found.errors is None else f"Of all rows: {found.errors.mean():.3g}."
    return Table(title, ("new rows where", "rows", f"expected {what}"), rows, overall)


def _worst(found: "Assessment") -> Table:
    """Returns the worst test points, with their values if these are known."""
    title, names = "Test points that NC expects to go worst", ("test point", "predicted loss")
    worst, note = found.worst(), "Test points are counted from 0."
    rows: list[tuple[str, ...]] = [(str(i), f"{found.points[i]:.4g}") for i in worst]
    if found.inputs is None:
        return Table(title, names, tuple(rows), note)
    first = [one.feature for one in found.slices]  # features that matter
    order = sorted(range(found.inputs.shape[1]), key=lambda i: _place(found, i, first))[:COLUMNS]
    if len(order) < found.inputs.shape[1]:
        note += f" {len(order)} of {found.inputs.shape[1]} features are shown."
    shown = found.inputs.iloc[:, order]
    cells = [tuple(_cell(value) for value in row) for row in shown.itertuples(index=False)]
    rows = [(*row, *more) for row, more in zip(rows, cells, strict=True)]
    return Table(title, (*names, *map(str, shown.columns)), tuple(rows), note)


def _place(found: "Assessment", i: int, first: list[str]) -> tuple[int, int]:
    assert found.inputs is not None
    name = str(found.inputs.columns[i])
    return (first.index(name) if name in first else len(first), i)


def _cell(value: Any) -> str:
    """Returns a value as a page shows it."""
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return "missing"
    text = f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)
    return text if len(text) <= LONG else f"{text[: LONG - 3]}..."
