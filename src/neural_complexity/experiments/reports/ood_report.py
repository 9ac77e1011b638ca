"""Tables and figures of learners unlike those that NC was trained on."""

import math
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from neural_complexity.assessment.drawing import COLORS, STYLE, save
from neural_complexity.assessment.page import Figure
from neural_complexity.assessment.tables import Table, find, show
from neural_complexity.experiments.base.networks import HEADS
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.ood import ALTERED, HOME

__all__ = ["LEAD", "TITLE", "figures", "tables"]

TITLE = "Learners unlike NC's own"
LEAD = (
    "NC was trained on ReLU learners with 2 layers of 40 units, learning rate 0.01 and 16 steps. "
    "Here one of these is changed at a time, and the same NC predicts the gap of the learners and "
    "regularizes them (transductive), against no regularizer, L2, dropout and variational dropout "
    "(L2 at the strength that did best in the table of regularizers; dropout at 0.5, since wider "
    "learners diverge at 0.7; variational dropout as it is). The paper shows these as figures "
    "without numbers."
)
METHODS = {
    "none": (COLORS["none"], "o-"),
    "L2 (1)": ("#9a6fb0", "s-"),
    "dropout (0.5)": ("#b0894f", "^-"),
    "variational dropout": ("#5fa8a0", "v-"),
    "NC direct": (COLORS["direct"], "o-"),
    "NC posterior": (COLORS["posterior"], "o-"),
    "oracle": (COLORS["oracle"], "x:"),
}


def tables(rows: list[Row]) -> list[Table]:
    """Makes one table of how well NC predicts and one of how much it helps."""
    settings = list(dict.fromkeys(row.setting for row in rows))
    return [_fits(rows, settings), _losses(rows, settings)]


def _named(setting: str) -> str:
    altered, value = setting.split(" ")
    home = " (NC's own)" if str(HOME[altered]) == value else ""
    return f"{altered} {value}{home}"


def _diverged(rows: list[Row], setting: str, method: str = "none") -> tuple[float, int]:
    """Gives the tasks whose learners diverged under a method, and all tasks of the setting."""
    row = find(rows, method, setting, "diverged tasks")
    return (row.value, row.n) if row else (0.0, 0)


def _fits(rows: list[Row], settings: list[str]) -> Table:
    kinds = [
        f"{metric}, {learners} learners"
        for learners in ("plain", "regularized")
        for metric in ("R2", "MAE")
    ]
    lines = []
    for setting in settings:
        cells = [show(find(rows, f"NC {head}", setting, k), 3) for head in HEADS for k in kinds]
        lines.append((_named(setting), *cells))
    header = [f"{head}: {kind}" for head in HEADS for kind in kinds]
    return Table(
        "Predicted against true gap",
        ("learner", *header),
        tuple(lines),
        "Value ± 95 % interval over tasks whose learners did not diverge; the other table has the "
        "number of those that did. Empty: more than half diverged.",
    )


def _losses(rows: list[Row], settings: list[str]) -> Table:
    lines = []
    for setting in settings:
        cells = [_loss(rows, setting, method) for method in METHODS]
        shares = [show(find(rows, f"NC {h}", setting, "share of oracle"), 3) for h in HEADS]
        lines.append((_named(setting), *cells, *shares, str(_diverged(rows, setting)[1])))
    shares = [f"share of oracle, {head}" for head in HEADS]
    return Table(
        "Test loss after learning",
        ("learner", *METHODS, *shares, "tasks"),
        tuple(lines),
        "Value ± 95 % interval over tasks. Behind †: so many learners diverged, with losses ten "
        "times above where they began, or not finite; where these are more than 1 %, a method gets "
        "no mean, and elsewhere they are left out of it.",
    )


def _loss(rows: list[Row], setting: str, method: str) -> str:
    row, lost = find(rows, method, setting, "test loss"), _diverged(rows, setting, method)[0]
    diverged = f"†{lost:,.0f}" if lost else ""
    return " ".join(part for part in (show(row), diverged) if part)


def figures(outcome: Outcome, folder: Path) -> list[Figure]:
    """Draws the paper's figure."""
    with mpl.rc_context(STYLE):
        return [
            Figure(
                save(_overview(outcome.rows), folder, "ood"),
                "NC on learners it has never seen",
                "Above: R2 of predicted against true gap, plain learners, cut off below 0. Middle: "
                "mean absolute error. Below: test loss after learning. The dotted line marks the "
                "learners that NC was trained on. Settings in which more than 1 % of the plain "
                "learners diverge are not shown, nor is a method whose learners do.",
            )
        ]


def _overview(rows: list[Row]) -> Canvas:
    canvas = Canvas(figsize=(12.5, 7.2), layout="constrained")
    axes = canvas.subplots(3, len(ALTERED), sharex="col")
    for j, (altered, values) in enumerate(ALTERED.items()):
        shown = [v for v in values if _is_shown(rows, f"{altered} {v}")]
        places = range(len(shown))
        for head in HEADS:
            for i, metric in enumerate(("R2", "MAE")):
                name = f"{metric}, plain learners"
                found = [find(rows, f"NC {head}", f"{altered} {v}", name) for v in shown]
                ys = [max(r.value, -0.05) if r else math.nan for r in found]
                axes[i, j].plot(places, ys, "o-", ms=3.5, color=COLORS[head], label=f"NC {head}")
        for method, (color, style) in METHODS.items():
            found = [find(rows, method, f"{altered} {v}", "test loss") for v in shown]
            ys = [r.value if r else math.nan for r in found]
            axes[2, j].plot(places, ys, style, ms=3.5, lw=1.2, color=color, label=method)
        for ax in axes[:, j]:
            if HOME[altered] in shown:
                ax.axvline(shown.index(HOME[altered]), color=COLORS["none"], lw=0.8, ls=":")
        axes[0, j].set(ylim=(-0.07, 1.05), title=altered)
        axes[1, j].set(yscale="log")
        axes[2, j].set_xticks(places, [str(v) for v in shown], fontsize=7)
    axes[2, -1].set(yscale="log")
    for i, name in enumerate(("R2", "MAE", "test loss")):
        axes[i, 0].set_ylabel(name)
    handles, labels = axes[2, 0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=len(METHODS))
    return canvas


def _is_shown(rows: list[Row], setting: str) -> bool:
    return find(rows, "none", setting, "test loss") is not None
