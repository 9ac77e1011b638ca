"""Tables and figures of long learning curves."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from neural_complexity.assessment.drawing import COLORS, STYLE, save
from neural_complexity.assessment.page import Figure
from neural_complexity.assessment.tables import Table, find, show
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row

__all__ = ["LEAD", "TITLE", "figures", "tables"]

TITLE = "Long learning curves"
LEAD = (
    "Sinusoid learners trained far beyond the 16 steps on which NC was meta-trained: does it stay "
    "useful, and does the test loss stay below the train loss, as the paper observes?"
)
SHOWN = (1, 4, 16, 64, 256, 1024)
COLOR = {
    "none": COLORS["none"],
    "L2 (0.01)": "#c3a5d0",
    "L2 (1)": "#9a6fb0",
    "NC posterior, transductive": COLORS["posterior"],
    "NC posterior, inductive": "#8fbfe3",
    "NC direct, transductive": COLORS["direct"],
    "NC direct, inductive": "#f0bd8f",
    "oracle": COLORS["oracle"],
}


def tables(rows: list[Row]) -> list[Table]:
    """Makes the tables of test losses, shares of the oracle, and gaps."""
    steps = sorted({int(r.setting.split()[0]) for r in rows if r.metric == "test loss"})
    settings = [f"{step} steps" for step in steps if step in SHOWN or step == steps[-1]]
    methods = list(dict.fromkeys(r.method for r in rows if r.metric == "test loss"))
    tasks = max(r.n for r in rows)
    lost = {r.method: r.value for r in rows if r.metric == "diverged tasks" and r.value}
    some = ", ".join(f"{method} {count:.0f}" for method, count in lost.items()) or "none"
    note = (
        f"Value ± 95 % interval over {tasks:,} tasks. Left out of their method, since their losses "
        f"ended ten times above where they began, or not finite: {some}."
    )
    made = []
    for metric, digits, title in (
        ("test loss", 3, "Test loss"),
        ("train loss", 3, "Train loss"),
        ("gap", 3, "Test loss minus train loss"),
        ("share of oracle", 4, "Share of the oracle's improvement"),
    ):
        lines = [
            (method, *(show(find(rows, method, s, metric), digits) for s in settings))
            for method in methods
            if find(rows, method, settings[0], metric)
        ]
        made.append(
            Table(f"{title} after learner steps", ("regularizer", *settings), tuple(lines), note)
        )
    whole = [r for r in rows if r.setting.startswith("up to")]
    names = list(dict.fromkeys(r.metric for r in whole))
    lines = []
    for method in methods:
        found = {r.metric: r.value for r in whole if r.method == method}
        lines.append((method, *(f"{found[name]:.3g}" for name in names)))
    made.append(Table("Whole curves", ("regularizer", *names), tuple(lines)))
    return made


def figures(outcome: Outcome, folder: Path) -> list[Figure]:
    """Draws the curves."""
    with mpl.rc_context(STYLE):
        return [
            Figure(
                save(_curves(outcome.tensors), folder, "curves"),
                "Train and test loss",
                "Mean over held-out tasks, both axes logarithmic; test solid, train dashed. The "
                "dotted line is where NC's meta-training ends, and the paper's curves, of which it "
                "gives no numbers.",
            )
        ]


def _curves(tensors: dict[str, Tensor]) -> Canvas:
    methods = [key.split("/")[1] for key in tensors if key.startswith("loss_te/")]
    groups = [
        [m for m in methods if not m.endswith("inductive")],
        [m for m in methods if m in ("none", "oracle") or m.endswith("inductive")],
    ]
    canvas = Canvas(figsize=(10.5, 4.0), layout="constrained")
    axes = canvas.subplots(1, 2, sharey=True)
    for ax, group, title in zip(axes, groups, ("transductive", "inductive"), strict=True):
        for method in group:
            steps = range(1, len(tensors[f"loss_te/{method}"]))
            label = method.removesuffix(f", {title}")
            ax.plot(steps, tensors[f"loss_te/{method}"][1:], color=COLOR[method], label=label)
            ax.plot(steps, tensors[f"loss_tr/{method}"][1:], "--", lw=0.9, color=COLOR[method])
        ax.axvline(16, color=COLORS["target"], lw=0.8, ls=":")
        ax.set(xscale="log", yscale="log", xlabel="learner step", title=f"NC {title}")
        ax.legend(loc="lower left")
    axes[0].set_ylabel("mean squared error")
    return canvas
