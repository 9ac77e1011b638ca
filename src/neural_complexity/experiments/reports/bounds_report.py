"""Tables and figures of bounds: coverage, width, and learners that they do not apply to."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from neural_complexity.assessment.drawing import COLORS, STYLE, save
from neural_complexity.assessment.page import Figure
from neural_complexity.assessment.tables import Table, find, show
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.bounds import ALARM, CONFIDENCES, DELTA, MEAN
from neural_complexity.reliability.bounds import METHODS, PAC

__all__ = ["LEAD", "TITLE", "figures", "tables"]

TITLE = "Bounds on the gap"
LEAD = (
    "From how far NC was off on calibration learners follows how far it is off on a new one: by "
    "Proposition 1, stated correctly (dkw), by the binomial distribution (clopper_pearson), and by "
    "conformal prediction, also normalised by NC's own spread. The first two claim that all but "
    f"{DELTA:g} of all calibration sets give a bound that holds for at least the stated share of "
    "new learners; the others claim that share over calibration sets and learners together. Here "
    "calibration sets and new learners are drawn again and again. For comparison, the same bounds "
    "around the mean gap of other learners, which needs no NC. No bound says anything about "
    "learners that are unlike those calibrated on: how many of these raise an alarm is told below. "
    "Learners of digits are trained and tested on points that their NC has never seen."
)
PREDICTORS = {
    "NC posterior": COLORS["posterior"],
    "NC direct": COLORS["direct"],
    MEAN: COLORS["none"],
}
MARKS = dict(zip(METHODS, ("o", "D", "s", "^"), strict=True))


def tables(rows: list[Row]) -> list[Table]:
    """Makes a table of each domain's bounds and one of unlike learners."""
    made = []
    for domain in _domains(rows):
        names = [p for p in PREDICTORS if any(_is_bound(r, domain, p) for r in rows)]
        made.append(_bounds(rows, domain, names))
        made.append(_unlike(rows, domain, [p for p in names if p != MEAN]))
    return made


def _domains(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row.setting.split(", ")[0] for row in rows))


def _is_bound(row: Row, domain: str, predictor: str) -> bool:
    return row.method.startswith(f"{predictor}: ") and row.setting.startswith(f"{domain}, ")


def _bounds(rows: list[Row], domain: str, predictors: list[str]) -> Table:
    lines = []
    for predictor in predictors:
        for method in METHODS:
            name = f"{predictor}: {method}"
            settings = [f"{domain}, {confidence}" for confidence in CONFIDENCES]
            found = [find(rows, name, s, "coverage") for s in settings]
            if not any(found):
                continue
            good = [show(find(rows, name, s, "good calibration sets"), 3) for s in settings]
            widths = [show(find(rows, name, s, "width"), 3) or "infinite" for s in settings]
            shares = [show(row, 3) for row in found]
            lines.append((name, *shares, *widths, *(good if method in PAC else [""] * len(good))))
    header = [
        f"{metric}, {confidence:g}"
        for metric in ("coverage", "width", "good sets")
        for confidence in CONFIDENCES
    ]
    return Table(
        f"Two-sided bounds on {domain}",
        ("bound", *header),
        tuple(lines),
        "Value ± 95 % interval over draws of a calibration set. Coverage: the share of all "
        "learners that is inside, on average over calibration sets. Width: from end to end; "
        "infinite where there are too few calibration learners for what is asked. Good sets: "
        "calibration sets whose bound holds for at least the stated share of all learners; "
        f"the claim is {1 - DELTA:g} of them.",
    )


def _unlike(rows: list[Row], domain: str, predictors: list[str]) -> Table:
    alarms = [r for r in rows if r.metric == "alarm" and r.setting.startswith(f"{domain}, ")]
    kinds = list(dict.fromkeys(row.setting.split(", ", 1)[1] for row in alarms))
    metrics = ("alarm", "coverage", "coverage without alarm")
    lines = [
        (
            kind,
            *(
                show(find(rows, p, f"{domain}, {kind}", metric), 2)
                for p in predictors
                for metric in metrics
            ),
        )
        for kind in kinds
    ]
    return Table(
        f"Unlike learners of {domain}",
        ("learners", *(f"{p}: {metric}" for p in predictors for metric in metrics)),
        tuple(lines),
        f"Alarm: the share whose p-value is at most {ALARM:g}. Coverage: of the normalised bound "
        "at 0.95, of all learners and of those without alarm. All with one calibration set.",
    )


def figures(outcome: Outcome, folder: Path) -> list[Figure]:
    """Draws coverage and width."""
    with mpl.rc_context(STYLE):
        return [
            Figure(
                save(_coverage(outcome.rows), folder, "coverage"),
                "Do the bounds hold?",
                "Share of new learners inside the bound against the share that is claimed; on or "
                "above the line the claim is true. What is not drawn is infinite.",
            ),
            Figure(
                save(_widths(outcome.rows), folder, "widths"),
                "How wide are they?",
                "Mean width of the two-sided bounds, on a logarithmic scale.",
            ),
        ]


def _coverage(rows: list[Row]) -> Canvas:
    domains = _domains(rows)
    canvas = Canvas(figsize=(8.5, 2.9 * len(domains) + 0.4), layout="constrained")
    axes = canvas.subplots(len(domains), len(PREDICTORS), squeeze=False, sharex=True, sharey=True)
    ends = (min(CONFIDENCES) - 0.03, 1.0)
    for line, domain in zip(axes, domains, strict=True):
        for ax, (predictor, color) in zip(line, PREDICTORS.items(), strict=True):
            ax.set_visible(any(_is_bound(row, domain, predictor) for row in rows))
            ax.plot(ends, ends, color=COLORS["target"], lw=0.8, ls=":")
            for method, mark in MARKS.items():
                found = [_of(rows, predictor, method, domain, c, "coverage") for c in CONFIDENCES]
                finite = [_of(rows, predictor, method, domain, c, "width") for c in CONFIDENCES]
                both = zip(CONFIDENCES, found, finite, strict=True)
                drawn = [(c, row.value) for c, row, width in both if row and width]
                xs, ys = zip(*drawn, strict=True) if drawn else ((), ())
                ax.plot(xs, ys, mark, ms=5, color=color, mfc="none", label=method)
            ax.set(title=f"{domain}, {predictor}", xticks=CONFIDENCES)
        line[0].set_ylabel("inside the bound")
    for ax in axes[-1]:
        ax.set_xlabel("claimed")
    marks = [
        Line2D([], [], color=COLORS["target"], marker=mark, ls="", mfc="none", label=method)
        for method, mark in MARKS.items()
    ]
    canvas.legend(handles=marks, loc="outside lower center", ncols=len(MARKS))
    return canvas


def _of(
    rows: list[Row], predictor: str, method: str, domain: str, confidence: float, metric: str
) -> Row | None:
    return find(rows, f"{predictor}: {method}", f"{domain}, {confidence}", metric)


def _widths(rows: list[Row]) -> Canvas:
    domains = _domains(rows)
    canvas = Canvas(figsize=(8.5, 2.9 * len(domains) + 0.5), layout="constrained")
    axes = canvas.subplots(len(domains), len(CONFIDENCES), squeeze=False, sharey="row")
    for line, domain in zip(axes, domains, strict=True):
        for ax, confidence in zip(line, CONFIDENCES, strict=True):
            for i, (predictor, color) in enumerate(PREDICTORS.items()):
                found = [_of(rows, predictor, m, domain, confidence, "width") for m in METHODS]
                drawn = [(j + 0.26 * (i - 1), r.value) for j, r in enumerate(found) if r]
                if drawn:
                    places, heights = zip(*drawn, strict=True)
                    ax.bar(places, heights, width=0.24, color=color, label=predictor)
            ax.set(yscale="log", title=f"{domain}, confidence {confidence:g}")
            ax.set_xticks(range(len(METHODS)), [m.replace("_", "\n") for m in METHODS], fontsize=7)
            ax.grid(visible=False, axis="x")
        line[0].set_ylabel("width")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=len(PREDICTORS))
    return canvas
