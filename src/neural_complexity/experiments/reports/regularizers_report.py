"""Tables and figures of the comparison of regularizers."""

import math
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from neural_complexity.assessment.drawing import COLORS, STYLE, save
from neural_complexity.assessment.page import Figure
from neural_complexity.assessment.tables import Table, find, show
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.regularizers import PAPER, STEPS

__all__ = ["LEAD", "TITLE", "figures", "tables"]

TITLE = "NC against other regularizers"
LEAD = (
    "The same learners, with the same initial weights, on the same held-out sinusoid tasks under "
    "every regularizer of the paper's table, and some of ours: the oracle (the true gap), early "
    "stopping (some of the ten training points tell when to stop), variational dropout, and NC "
    "with other weights, all transductive. Dropout is off when a learner is evaluated."
)
LAST = f"{STEPS[-1]} steps"


def tables(rows: list[Row]) -> list[Table]:
    """Makes the paper's table, ours beside it."""
    lines = []
    settings = [f"{step} steps" for step in STEPS]
    for method in dict.fromkeys(row.method for row in rows):
        cells = [_beside(rows, method, setting) for setting in settings]
        share = show(find(rows, method, LAST, "share of oracle"), 4)
        lines.append((method, *cells, share))
    tasks = max(row.n for row in rows)
    return [
        Table(
            f"Test loss after learner steps, {tasks:,} held-out tasks (in brackets: the paper)",
            ("regularizer", *settings, "share of oracle"),
            tuple(lines),
            f"Value ± 95 % interval over tasks. Share of oracle at {LAST}. Behind †: so many "
            "learners diverged, with losses ten times above where they began, or not finite; where "
            "these are more than 1 %, a method gets no mean, elsewhere they are left out of it. "
            "In brackets behind the name: the weight, or the probability to drop a unit.",
        )
    ]


def _beside(rows: list[Row], method: str, setting: str) -> str:
    row, diverged = (find(rows, method, setting, m) for m in ("test loss", "diverged tasks"))
    lost = f"†{diverged.value:,.0f}" if diverged and diverged.value else ""
    if row is None:
        return lost
    published = f" ({row.paper:.2f})" if row.paper is not None else ""
    return show(row) + published + (f" {lost}" if lost else "")


def figures(outcome: Outcome, folder: Path) -> list[Figure]:
    """Draws the table."""
    with mpl.rc_context(STYLE):
        return [
            Figure(
                save(_ranking(outcome.rows), folder, "ranking"),
                f"Test loss after {LAST}",
                "Ours with 95 % interval over tasks (dots) and the paper's (circles). Methods "
                "whose learners diverge are not shown.",
            ),
            Figure(
                save(_curves(outcome.rows), folder, "curves"),
                "Test loss while learning",
                "Of each kind of regularizer the strength that is best after the last step, on "
                "these same tasks; NC with weight 1.",
            ),
        ]


def _color(method: str) -> str:
    for name in ("posterior", "direct", "oracle"):
        if name in method:
            return COLORS[name]
    return COLORS["none"]


def _ranking(rows: list[Row]) -> Canvas:
    found = {r.method: r for r in rows if r.metric == "test loss" and r.setting == LAST}
    order = sorted(found, key=lambda method: -found[method].value)
    canvas = Canvas(figsize=(6.4, 0.19 * len(order) + 0.8), layout="constrained")
    ax = canvas.subplots()
    for y, method in enumerate(order):
        row = found[method]
        ax.errorbar(row.value, y, xerr=row.ci95, color=_color(method), marker="o", ms=4, lw=1)
        if row.paper is not None:
            ax.plot(row.paper, y, "o", ms=5, mfc="none", color=COLORS["target"])
    ax.set_yticks(range(len(order)), order, fontsize=7)
    ax.set_ylim(-0.7, len(order) - 0.3)
    ax.axvline(found["none"].value, color=COLORS["none"], lw=0.8, ls=":")
    ax.set(xlabel=f"test loss after {LAST}")
    return canvas


def _curves(rows: list[Row]) -> Canvas:
    canvas = Canvas(figsize=(6.0, 3.6), layout="constrained")
    ax = canvas.subplots()
    last = {r.method: r.value for r in rows if r.metric == "test loss" and r.setting == LAST}
    kinds: dict[str, str] = {}
    for method in sorted(last, key=lambda method: (not method.endswith("(1)"), last[method])):
        if not method.startswith("NC"):
            continue
        kinds.setdefault(method.split(" (")[0], method)
    for method in sorted(last, key=lambda method: last[method]):
        kinds.setdefault(method.split(" (")[0], method)  # the best of its kind comes first
    marks = iter("sDv^<>pPX*hd")
    for kind, method in kinds.items():
        values = [find(rows, method, f"{step} steps", "test loss") for step in STEPS]
        mark = "o" if kind.startswith(("NC", "oracle", "none")) else next(marks)
        ys = [v.value if v else math.nan for v in values]
        ax.plot(STEPS, ys, marker=mark, ms=3.5, lw=1.2, color=_color(method), label=method)
    published = [v or math.nan for v in PAPER["NC direct (1)"]]
    ax.plot(STEPS, published, "--", color=COLORS["target"], lw=0.8, label="the paper's NC")
    ax.set_xscale("log", base=2)
    ax.set_xticks(STEPS, [str(step) for step in STEPS])
    ax.set(xlabel="learner step", ylabel="test loss")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return canvas
