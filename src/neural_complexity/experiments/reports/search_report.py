"""Tables and figures of the hyperparameter search."""

import math
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from neural_complexity.assessment.drawing import COLORS, STYLE, save
from neural_complexity.assessment.page import Figure
from neural_complexity.assessment.tables import Table, find, show
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.search import (
    PAPER_SETTING,
    SEARCHED,
    read_setting,
    write_setting,
)

__all__ = ["LEAD", "TITLE", "figures", "tables"]

TITLE = "Hyperparameter search on the sinusoid"
LEAD = (
    "A random search as in appendix C of the paper: each trial meta-trains one NC with sizes, "
    "batch and learning rate drawn at random, for the same number of updates. After a grace "
    "period a trial is stopped when its best validation R2 is below the median of the running "
    "means, since that period, of the trials before it. The best trial is then scored once on "
    "held-out tasks that had no part in choosing it. The paper's search ended with "
    f"{write_setting(PAPER_SETTING)}."
)
# How a trial ended: marker and colour.
LOOKS = {
    "best": ("o", COLORS["posterior"]),
    "to the end": ("o", COLORS["none"]),
    "stopped": ("x", COLORS["direct"]),
    "diverged": ("v", COLORS["target"]),
}


@dataclass(frozen=True)
class Line:
    """A trial as its rows tell it."""

    name: str
    setting: dict[str, str]
    r2: Row | None
    iterations: int
    ended: str  # "to the end", "stopped" or "diverged"


def _lines(rows: list[Row]) -> list[Line]:
    """Gives the trials, the best first, those that diverged last."""
    lines = []
    for name, text in dict.fromkeys((row.method, row.setting) for row in rows):
        found = {row.metric: row for row in rows if row.method == name}
        ended = [word for word in ("stopped", "diverged") if found[word].value]
        lines.append(
            Line(
                name,
                read_setting(text),
                found.get("validation R2"),
                round(found["iterations"].value),
                ended[0] if ended else "to the end",
            )
        )
    return sorted(lines, key=lambda line: math.inf if line.r2 is None else -line.r2.value)


def tables(rows: list[Row]) -> list[Table]:
    """Makes the tables of the best trial and of all trials."""
    return [_best(rows), _trials(rows)]


def _best(rows: list[Row]) -> Table:
    (r2,) = (row for row in rows if row.metric == "R2")
    found = [find(rows, r2.method, r2.setting, m) for m in ("R2", "MAE", "share of oracle")]
    diverged = find(rows, r2.method, r2.setting, "diverged tasks")
    left_out = 0 if diverged is None else diverged.value
    return Table(
        f"The best trial on {r2.n:,} held-out tasks",
        ("trial", *SEARCHED, "R2", "MAE", "share of oracle"),
        (
            (r2.method, *read_setting(r2.setting).values(), *(show(row, 4) for row in found)),
            ("the paper's choice", *(str(value) for value in PAPER_SETTING.values()), "", "", ""),
        ),
        "Value ± 95 % interval over tasks. R2 and MAE of the predicted gap: plain learners after "
        "their last step. Share of oracle: learners regularized by this NC, transductive, after "
        f"their last step. Tasks left out because a learner diverged: {left_out:.0f}.",
    )


def _trials(rows: list[Row]) -> Table:
    lines = tuple(
        (line.name, *line.setting.values(), str(line.iterations), line.ended, show(line.r2, 4))
        for line in _lines(rows)
    )
    return Table(
        f"All {len(lines)} trials, the best first",
        ("trial", *SEARCHED, "iterations", "ended", "validation R2"),
        lines,
        "R2 ± 95 % interval over the validation learners, which also chose the best trial, so the "
        "first value is flattered. A stopped trial shows its last value, not the one it would "
        "have reached. In the paper's symbols: encoder_layers is n_enc, width d, decoder_layers "
        "n_dec, batch bs.",
    )


def figures(outcome: Outcome, folder: Path) -> list[Figure]:
    """Draws the figures from what a run left."""
    with mpl.rc_context(STYLE):
        return [
            Figure(
                save(_curves(outcome), folder, "trials"),
                "The trials on their way",
                "1 - R2 on the validation learners; a cross is where a trial was stopped. In the "
                "shaded part none is.",
            ),
            Figure(
                save(_choices(outcome), folder, "choices"),
                "What each choice gives",
                "One mark per trial at its last score; marks of the same choice are spread "
                "sideways, from trial 0 on. A stopped trial had less time. Last: the seconds that "
                "the trial took.",
            ),
        ]


def _look(line: Line, rank: int) -> str:
    return "best" if rank == 0 else line.ended


def _curves(outcome: Outcome) -> Canvas:
    canvas = Canvas(figsize=(6.2, 3.6), layout="constrained")
    ax = canvas.subplots()
    lines = [line for line in _lines(outcome.rows) if line.name in outcome.history]
    for rank, line in reversed(list(enumerate(lines))):  # the best on top
        moments = outcome.history[line.name]
        look = _look(line, rank)
        marker, color = LOOKS[look]
        iterations, left = [m.iteration for m in moments], [1 - m.r2 for m in moments]
        ax.plot(iterations, left, color=color, lw=2 if rank == 0 else 1, alpha=0.8)
        ax.plot(iterations[-1:], left[-1:], marker, ms=5, color=color)
    ax.axvspan(0, outcome.tensors["grace"].item(), color=COLORS["none"], alpha=0.1, lw=0)
    ax.set(xlabel="iteration", ylabel="1 - R2, validation")
    ax.set_xlim(left=0)
    _log_axis(ax)
    _legend(canvas, ax, [_look(line, rank) for rank, line in enumerate(lines)])
    return canvas


def _choices(outcome: Outcome) -> Canvas:
    lines = [line for line in _lines(outcome.rows) if line.r2 is not None]
    canvas = Canvas(figsize=(8.6, 4.8), layout="constrained")
    axes = canvas.subplots(2, 3, sharey=True).flat
    for ax, name in zip(axes, SEARCHED, strict=False):
        _choice(ax, lines, name)
    last = axes[len(SEARCHED)]
    for rank, line in enumerate(lines):
        _mark(last, outcome.history[line.name][-1].seconds, line, rank)
    last.set(xlabel="seconds")
    last.set_xlim(left=0)
    for ax in (axes[0], axes[3]):
        ax.set_ylabel("1 - R2, validation")
    _log_axis(last)
    _legend(canvas, last, [_look(line, rank) for rank, line in enumerate(lines)])
    return canvas


def _choice(ax: Axes, lines: list[Line], name: str) -> None:
    choices = sorted({line.setting[name] for line in lines}, key=float)
    for position, choice in enumerate(choices):
        same = [(rank, line) for rank, line in enumerate(lines) if line.setting[name] == choice]
        same.sort(key=lambda pair: int(pair[1].name.split()[-1]))
        spread = np.linspace(-0.25, 0.25, len(same)) if len(same) > 1 else [0.0]
        for aside, (rank, line) in zip(spread, same, strict=True):
            _mark(ax, position + aside, line, rank)
    ax.set_xticks(range(len(choices)), choices)
    ax.set(xlabel=name, xlim=(-0.5, len(choices) - 0.5))
    ax.grid(visible=False, axis="x")
    for position in range(1, len(choices)):
        ax.axvline(position - 0.5, color=COLORS["none"], alpha=0.25, lw=0.6)


def _mark(ax: Axes, x: float, line: Line, rank: int) -> None:
    assert line.r2 is not None
    marker, color = LOOKS[_look(line, rank)]
    ax.plot([x], [1 - line.r2.value], marker, ms=8 if rank == 0 else 5, color=color, alpha=0.85)


def _log_axis(ax: Axes) -> None:
    """Makes the vertical axis logarithmic, with plain numbers: it often spans one decade only."""
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _legend(canvas: Canvas, ax: Axes, looks: list[str]) -> None:
    for look, (marker, color) in LOOKS.items():
        if look in looks:
            ax.plot([], [], marker, ms=5, color=color, label=look)
    canvas.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=len(LOOKS))
