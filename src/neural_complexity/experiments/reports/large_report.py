"""What the reports on one large dataset share."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator, NullLocator
from torch import Tensor

from neural_complexity.assessment.drawing import COLORS
from neural_complexity.assessment.tables import Table, find, show
from neural_complexity.experiments.base.networks import HEADS
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.shared_networks import BESIDE
from neural_complexity.experiments.single import NO_LEARNER

__all__ = ["beside", "color_of", "compare", "curves", "dots", "scatter", "verdict"]

MODES = {"transductive": "-", "inductive": "--"}


def color_of(method: str) -> str:
    """Gives the colour of a method: its head's, or that of the CNN, or grey."""
    if "CNN" in method:
        return COLORS["oracle"]
    return next((COLORS[head] for head in HEADS if f"NC {head}" in method), COLORS["none"])


def compare(ours: Row, theirs: Row) -> str:
    """Tells whether ours is better, worse or neither: where intervals overlap or there are none."""
    if ours.ci95 is None or theirs.ci95 is None:
        return "neither"
    room = ours.ci95 + theirs.ci95
    if ours.value - theirs.value > room:
        return "better"
    return "worse" if theirs.value - ours.value > room else "neither"


VERDICTS = {
    "better": "beyond the intervals better than",
    "worse": "beyond the intervals worse than",
    "neither": "not to be told apart from",
}


def verdict(found: dict[str, Row], method: str, opponents: list[str]) -> str:
    """Says which opponents a method beats, in one sentence.

    Args:
        found: Accuracies by method.
        method: Whose sentence it is.
        opponents: The methods it is compared with.
    """
    by = {name: compare(found[method], found[name]) for name in opponents}
    parts = [
        f"{text} {_listed([name for name in opponents if by[name] == kind])}"
        for kind, text in VERDICTS.items()
        if kind in by.values()
    ]
    return f"{method}: {'; '.join(parts)}."


def _listed(names: list[str]) -> str:
    """Writes names as a sentence lists them."""
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def dots(found: dict[str, Row], plain: str) -> Canvas:
    """Draws accuracies with their intervals, and the paper's.

    Args:
        found: Accuracies by method, from above to below.
        plain: The method at which a line is drawn.
    """
    canvas = Canvas(figsize=(6.8, 0.26 * len(found) + 0.8), layout="constrained")
    ax = canvas.subplots()
    for y, (method, row) in enumerate(found.items()):
        mark = "s" if row.setting.endswith(NO_LEARNER) else "o"
        ax.errorbar(row.value, y, xerr=row.ci95, color=color_of(method), marker=mark, ms=5, lw=1.2)
        if row.paper is not None:
            ax.plot(row.paper, y, "o", ms=6, mfc="none", color=COLORS["target"])
    ax.axvline(found[plain].value, color=COLORS["none"], lw=0.8, ls=":")
    ax.set_yticks(range(len(found)), list(found))
    ax.set_ylim(len(found) - 0.4, -0.6)
    low, high = ax.get_xlim()  # few runs have intervals that say nothing
    ax.set(xlim=(max(low, -2), min(high, 102)))
    ax.set(xlabel="accuracy in %", title=found[plain].setting)
    return canvas


def curves(
    tensors: dict[str, Tensor], plain: str, *, level: float | None = None, more: str | None = None
) -> Canvas:
    """Draws losses and test errors of learners with and without NC by their number of updates.

    Args:
        tensors: `METHOD/step`, (looks,), and `METHOD/loss_tr`, `METHOD/loss_te` and `METHOD/error`,
            (looks, runs).
        plain: The method without NC.
        level: A test error to draw a line at.
        more: A further method whose test error is drawn.
    """
    canvas = Canvas(figsize=(11, 3.7), layout="constrained")
    axes = canvas.subplots(1, 3)
    axes[1].sharey(axes[0])
    for ax, mode in zip(axes, MODES, strict=False):
        for method in (plain, *(f"NC {head}, {mode}" for head in HEADS)):
            _curve(ax, tensors, method, "loss_tr", "-")
            _curve(ax, tensors, method, "loss_te", "--")
        ax.set_title(f"NC {mode}")
    axes[0].plot([], color=COLORS["target"], label="train loss")
    axes[0].plot([], "--", color=COLORS["target"], label="test loss")
    axes[0].set_ylabel("cross-entropy")
    axes[0].legend()
    _curve(axes[2], tensors, plain, "error", "-", label=plain)
    for head in HEADS:
        for mode, line in MODES.items():
            method = f"NC {head}, {mode}"
            _curve(axes[2], tensors, method, "error", line, label=method)
    if more is not None:
        _curve(axes[2], tensors, more, "error", ":", label=more)
    if level is not None:
        look = {"color": COLORS["none"], "lw": 0.9, "ls": (0, (6, 3))}
        axes[2].axhline(100 * level, **look, label=f"{plain}, after convergence")
    axes[2].set(ylabel="test error in %", title="Test error")
    for ax in axes:  # what matters happens where everything is small
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_locator(NullLocator())
    for ax in axes:
        ax.set(xscale="log", xlabel="learner step")
    canvas.legend(*axes[2].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return canvas


def _curve(
    ax: Axes,
    tensors: dict[str, Tensor],
    method: str,
    name: str,
    line: str,
    label: str | None = None,
) -> None:
    """Draws the mean over runs, but for the untrained learner, who has no place on the axis."""
    values = tensors[f"{method}/{name}"][1:].mean(dim=1)  # (looks - 1,)
    scale = 100 if name == "error" else 1
    steps = tensors[f"{method}/step"][1:]
    ax.plot(steps, scale * values, line, lw=1.3, color=color_of(method), label=label)


def scatter(ax: Axes, true: Tensor, predicted: Tensor, color: object, **look: object) -> None:
    """Draws predicted against true gaps of learners on their way, (looks, B), the last ones large.

    The untrained learners, whose gap is zero, are left out.
    """
    pairs = ((slice(1, -1), 2.5, 0.35, None), (slice(-1, None), 5.0, 0.9, look.get("label")))
    for looks, size, alpha, label in pairs:
        columns = (true[looks].flatten(), predicted[looks].flatten())
        ax.plot(*columns, "o", ms=size, alpha=alpha, mew=0, color=color, label=label)


def beside(rows: list[Row]) -> Table:
    """Makes the table of what must stand beside NC: where its help comes from."""
    found = [row for row in rows if row.setting == BESIDE and row.metric == "accuracy"]
    lines = [
        (row.method, show(row), show(find(rows, row.method, BESIDE, "test loss"), 3))
        for row in found
    ]
    return Table(
        f"Beside NC, from {BESIDE}",
        ("method", "accuracy", "test loss"),
        tuple(lines),
        "What classifies without a learner is one network and has no interval.",
    )
