"""Tables and figure of NC and MAML together."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from neural_complexity.assessment.drawing import COLORS, STYLE, save
from neural_complexity.assessment.page import Figure
from neural_complexity.assessment.tables import Table, find, show
from neural_complexity.experiments.base.networks import HEADS
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.maml import STARTS, method

__all__ = ["LEAD", "TITLE", "figures", "tables"]

TITLE = "NC and MAML"
LEAD = (
    "MAML finds initial parameters from which learners learn a sinusoid quickly; NC, trained on "
    "snapshots of learners that start there, regularizes them on their way. At presets `cpu` and "
    "`smoke` that NC does not start untrained, but goes on from the sinusoid experiment's, which "
    "is also the one that helps randomly initialised learners. NC judges learners on the "
    "unlabelled test inputs (transductive). The oracle descends the test loss itself, "
    "as a perfect gap predictor would make it."
)
LINES = {"random": "--", "MAML": "-"}


def tables(rows: list[Row]) -> list[Table]:
    """Makes the tables of losses and of the fit to the gap."""
    return [_losses(rows, "test loss"), _losses(rows, "train loss"), _fits(rows)]


def _losses(rows: list[Row], metric: str) -> Table:
    settings = list(dict.fromkeys(r.setting for r in rows if r.metric == metric))
    lines = []
    for name in dict.fromkeys(r.method for r in rows if r.metric == metric):
        found = [find(rows, name, setting, metric) for setting in settings]
        share = find(rows, name, settings[-1], "share of oracle")
        lines.append((name, *(show(row, 4) for row in found), show(share, 3)))
    n = next(row.n for row in rows if row.metric == metric)
    diverged = sum(row.value for row in rows if row.metric == "diverged tasks")
    test = metric == "test loss"
    return Table(
        f"{metric.capitalize()} after learner steps, {n:,} held-out tasks",
        ("learners", *settings, *(["share of oracle"] if test else [])),
        tuple(line if test else line[:-1] for line in lines),
        f"Value ± 95 % interval over tasks. Tasks left out because a learner diverged: "
        f"{diverged:.0f}."
        + (
            f" Share of the oracle from the same start, at {settings[-1]}. The paper draws these "
            "curves and gives no numbers: there, NC lowers the final test loss with and without "
            "MAML."
            if test
            else ""
        ),
    )


def _fits(rows: list[Row]) -> Table:
    lines = []
    for start in STARTS:
        for head in HEADS:
            kinds = (f"{start}, {kind} endpoints" for kind in ("unregularized", "regularized"))
            scores = (show(find(rows, f"NC {head}", kind, "R2"), 4) for kind in kinds)
            lines.append((f"NC {head}, {start} learners", *scores))
    n = next(row.n for row in rows if row.metric == "R2")
    return Table(
        f"R2 of predicted against true gap, {n:,} held-out tasks",
        ("gap predictor", "unregularized", "regularized"),
        tuple(lines),
        "Value ± 95 % interval over tasks, for learners after their last step: plain ones, and "
        "ones that the same NC regularized.",
    )


def figures(outcome: Outcome, folder: Path) -> list[Figure]:
    """Draws the figure from what a run left."""
    with mpl.rc_context(STYLE):
        return [
            Figure(
                save(_curves(outcome.tensors), folder, "maml-curves"),
                "Test loss with and without MAML, with and without NC",
                "Mean over held-out tasks, on a logarithmic scale; one panel per head of NC. "
                "Dots: the oracle from the same start.",
            )
        ]


def _curves(tensors: dict[str, Tensor]) -> Canvas:
    canvas = Canvas(figsize=(7.6, 3.9), layout="constrained")
    axes = canvas.subplots(1, len(HEADS), sharey=True)
    for ax, head in zip(axes, HEADS, strict=True):
        _panel(ax, tensors, head)
        ax.set(xlabel="learner step", title=f"{head} head")
    axes[0].set(ylabel="test loss (mean squared error)", yscale="log")
    axes[0].yaxis.set_major_formatter("{x:g}")
    handles = [h for ax in axes for h in ax.get_legend_handles_labels()[0]]
    labels = {str(handle.get_label()): handle for handle in handles}
    # One legend for both panels, filled column by column: plain, each head, oracle.
    order = [method(start, aid) for aid in ("", *HEADS) for start in STARTS] + ["oracle"]
    canvas.legend([labels[m] for m in order], order, loc="outside lower center", ncols=4)
    return canvas


def _panel(ax: Axes, tensors: dict[str, Tensor], head: str) -> None:
    for start in STARTS:
        plain, helped, best = (
            tensors[f"loss_te/{method(start, aid)}"] for aid in ("", head, "oracle")
        )
        line = LINES[start]
        ax.plot(plain, ls=line, color=COLORS["none"], label=method(start))
        ax.plot(helped, ls=line, color=COLORS[head], label=method(start, head))
        ax.plot(best, "o", ms=2.5, color=COLORS["oracle"], label="oracle")
    ax.set_xticks(range(0, len(plain), max(1, (len(plain) - 1) // 4)))
