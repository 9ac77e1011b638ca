"""Tables and figures of learners unlike those that NC was trained on."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from neural_complexity.experiments.ood import ALTERED, HOME
from neural_complexity.experiments.outcome import Outcome
from neural_complexity.experiments.rows import Row
from neural_complexity.report.drawing import COLORS, STYLE, save
from neural_complexity.report.page import Figure
from neural_complexity.report.tables import Table, find, show

__all__ = ["LEAD", "TITLE", "figures", "tables"]

TITLE = "Learners unlike NC's own"
LEAD = (
    "NC was trained on ReLU learners with 2 layers of 40 units, learning rate 0.01 and 16 steps. "
    "Here one of these is changed at a time, and the same NC predicts the gap of the learners and "
    "regularizes them (transductive), against no regularizer, L2, dropout and variational dropout "
    "at the strengths that did best in the table of regularizers."
)
METHODS = {
    "none": (COLORS["none"], "o-"),
    "L2 (1)": ("#9a6fb0", "s-"),
    "dropout (0.7)": ("#b0894f", "^-"),
    "variational dropout": ("#5fa8a0", "v-"),
    "NC direct": (COLORS["direct"], "o-"),
    "NC posterior": (COLORS["posterior"], "o-"),
    "oracle": (COLORS["oracle"], "x:"),
}
HEADS = ("posterior", "direct")


def tables(rows: list[Row]) -> list[Table]:
    """Makes one table of how well NC predicts and one of how much it helps."""
    settings = list(dict.fromkeys(row.setting for row in rows))
    return [_fits(rows, settings), _losses(rows, settings)]


def _named(setting: str) -> str:
    altered, value = setting.split(" ")
    home = " (NC's own)" if str(HOME[altered]) == value else ""
    return f"{altered} {value}{home}"


def _diverged(rows: list[Row], setting: str) -> tuple[int, int]:
    """Gives the tasks left out of a setting, and all of its tasks."""
    counts = [r for r in rows if r.setting == setting and r.metric == "diverged tasks"]
    kept = find(rows, "none", setting, "test loss")
    return counts[0].n - (kept.n if kept else 0), counts[0].n


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
        "Value ± 95 % interval over tasks on which no method's learner diverged; the other table "
        "has their number. Empty: fewer than two such tasks.",
    )


def _losses(rows: list[Row], settings: list[str]) -> Table:
    lines = []
    for setting in settings:
        cells = [show(find(rows, method, setting, "test loss")) for method in METHODS]
        shares = [show(find(rows, f"NC {h}", setting, "share of oracle"), 3) for h in HEADS]
        lost, of = _diverged(rows, setting)
        lines.append((_named(setting), *cells, *shares, f"{lost} of {of}"))
    shares = [f"share of oracle, {head}" for head in HEADS]
    return Table(
        "Test loss after learning",
        ("learner", *METHODS, *shares, "tasks left out"),
        tuple(lines),
        "Value ± 95 % interval over tasks. A task is left out of all methods when under any of "
        "them the learner diverged: losses ten times above where they began, or not finite.",
    )


def figures(outcome: Outcome, folder: Path) -> list[Figure]:
    """Draws the paper's figure."""
    with mpl.rc_context(STYLE):
        return [
            Figure(
                save(_overview(outcome.rows), folder, "ood"),
                "NC on learners it has never seen",
                "Above: R2 of predicted against true gap, plain learners, cut off below 0. Middle: "
                "mean absolute error. Below: test loss after learning. The dotted line marks the "
                "learners that NC was trained on. Settings in which learners diverge on more than "
                "half of the tasks are not shown.",
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
                ys = [max(r.value, -0.05) if r else None for r in found]
                axes[i, j].plot(places, ys, "o-", ms=3.5, color=COLORS[head], label=f"NC {head}")
        for method, (color, style) in METHODS.items():
            found = [find(rows, method, f"{altered} {v}", "test loss") for v in shown]
            ys = [r.value if r else None for r in found]
            axes[2, j].plot(places, ys, style, ms=3.5, lw=1.2, color=color, label=method)
        for ax in axes[:, j]:
            if HOME[altered] in shown:
                ax.axvline(shown.index(HOME[altered]), color=COLORS["none"], lw=0.8, ls=":")
        axes[0, j].set(ylim=(-0.07, 1.05), title=altered)
        axes[1, j].set(yscale="log")
        axes[2, j].set_xticks(places, [str(v) for v in shown])
    axes[2, -1].set(yscale="log")
    for i, name in enumerate(("R2", "MAE", "test loss")):
        axes[i, 0].set_ylabel(name)
    handles, labels = axes[2, 0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=len(METHODS))
    return canvas


def _is_shown(rows: list[Row], setting: str) -> bool:
    if not any(row.setting == setting for row in rows):
        return False
    lost, of = _diverged(rows, setting)
    return lost <= of / 2
