"""Tables and figures of the ablation study."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from neural_complexity.assessment.drawing import COLORS, STYLE, save
from neural_complexity.assessment.page import Figure
from neural_complexity.assessment.tables import Table, find, show
from neural_complexity.experiments.ablation import ALL, INDUCTIVE, ONCE, OURS, PAPER
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row

__all__ = ["LEAD", "TITLE", "figures", "tables"]

TITLE = "Ablation study"
LEAD = (
    "Learners of a single hidden layer see few images of each of several characters that NC has "
    "never seen (the paper: ten characters, one image of each), and descend their training loss "
    "plus the gap that NC predicts on the unlabelled test images (transductive). From the full NC, "
    "the paper's head with all it adds for images and labels, one component after the other is "
    "removed: each row lacks what the rows above it lack, too (without the bilinear layer, V is "
    "again a linear map of embedding and label, as for real targets, and sees the embedding). "
    "Unlike the paper's, every variant takes over, and does not train, the image encoder and the "
    "attention (by distance, with three rounds in which unlabelled images gather around labelled "
    "ones) of an NC with our posterior head; it learns values and decoder, from learners and from "
    "made-up hypotheses, point by point. Every variant is meta-trained from several seeds; all "
    "train the same learners on the same tasks. This training is shorter than that of the "
    "experiment omniglot, so the full NC here is not the direct NC there."
)
LOSSES = ("test loss", "R2, unregularized", "R2, regularized")


def tables(rows: list[Row]) -> list[Table]:
    """Makes the paper's table, that of our variants, and that of other methods."""
    return [_papers(rows), _ours(rows), _others(rows)]


def _settings(rows: list[Row]) -> list[str]:
    """Gives the settings of single seeds, in order."""
    found = dict.fromkeys(row.setting for row in rows)
    return [setting for setting in found if setting not in (ALL, ONCE)]


def _tasks(rows: list[Row]) -> int:
    return next(row.n for row in rows if row.setting == ONCE)


def _line(rows: list[Row], method: str) -> tuple[str, ...]:
    """Writes accuracy over seeds, then by seed, then what else there is over seeds."""
    seeds = [find(rows, method, setting, "accuracy") for setting in _settings(rows)]
    more = [find(rows, method, ALL, metric) for metric in LOSSES]
    return (
        show(find(rows, method, ALL, "accuracy")),
        *("" if row is None else f"{row.value:.2f}" for row in seeds),
        *(show(row, 3) for row in more),
    )


def _papers(rows: list[Row]) -> Table:
    lines = [(name, f"{PAPER[name]:.2f}", *_line(rows, name)) for name in PAPER]
    seeds = _settings(rows)
    diverged = sum(
        row.value for row in rows if row.metric == "diverged tasks" and row.setting in seeds
    )
    return Table(
        f"Accuracy in % of learners with NC, {_tasks(rows):,} held-out tasks",
        ("NC", "paper", "ours", *seeds, *LOSSES),
        tuple(lines),
        f"Ours: mean over {len(seeds)} seeds of meta-training ± 95 % interval over seeds "
        "(Student's), then each seed; tasks, initial learners and image encoder are the same, so "
        "the interval does not speak for those. Removed one after "
        "the other. R2: coefficient of determination of predicted against true gap of learners "
        "after their last step, without NC (unregularized) and with it. Learners that diverged "
        "count as wrong everywhere, and have no loss and no gap; over all seeds and variants there "
        f"were {diverged:.0f}.",
    )


def _ours(rows: list[Row]) -> Table:
    return Table(
        "Accuracy in % with single changes of the full NC",
        ("NC", "ours", *_settings(rows), *LOSSES),
        tuple((name, *_line(rows, name)) for name in ("full", *OURS)),
        f"As above. {INDUCTIVE.removeprefix('full, ').capitalize()}: the same NC judges learners "
        "on other images of the task's characters (inductive). Scalar supervision: NC learns from "
        "one gap per learner, not from each test point's loss. No made-up hypotheses: NC learns "
        "from learners only. Attention on (x, h(x)): queries and keys are made from image and "
        "prediction, trained here, compared by their product, and nothing gathers; the image "
        "encoder is the same.",
    )


def _once(rows: list[Row]) -> list[str]:
    """Gives the methods that no seed of meta-training changes."""
    return list(dict.fromkeys(row.method for row in rows if row.setting == ONCE))


def _others(rows: list[Row]) -> Table:
    lines = [
        (
            name,
            show(find(rows, name, ONCE, "accuracy")),
            *(show(find(rows, name, ONCE, metric), 3) for metric in LOSSES),
        )
        for name in _once(rows)
    ]
    return Table(
        f"Accuracy in % of other methods, {_tasks(rows):,} held-out tasks",
        ("method", "accuracy", *LOSSES),
        tuple(lines),
        "Value ± 95 % interval over tasks. No NC, oracle (which descends the test loss itself) and "
        "posterior head (the NC whose image encoder all variants use): the same learners. The "
        "others classify without a learner; the prototypical networks have an image encoder of the "
        "same kind, trained on the same tasks as the posterior head.",
    )


def figures(outcome: Outcome, folder: Path) -> list[Figure]:
    """Draws the accuracies from what a run left."""
    with mpl.rc_context(STYLE):
        return [
            Figure(
                save(_bars(outcome.rows), folder, "accuracy"),
                "Accuracy with and without NC's components",
                "Bars: mean over seeds of meta-training, or the one value there is. Dots: single "
                "seeds. Diamonds: the paper's values.",
            )
        ]


def _bars(rows: list[Row]) -> Canvas:
    groups = {
        "components removed one after the other": (list(PAPER), COLORS["direct"]),
        "single changes of the full NC": (list(OURS), COLORS["posterior"]),
        "other methods": (_once(rows), COLORS["none"]),
    }
    sizes = [len(names) for names, _ in groups.values()]
    canvas = Canvas(figsize=(8.2, 1.4 + 0.27 * sum(sizes)), layout="constrained")
    axes = canvas.subplots(len(groups), sharex=True, height_ratios=sizes)
    for ax, (title, (names, color)) in zip(axes, groups.items(), strict=True):
        _group(ax, rows, names, color)
        ax.set_title(title, loc="left")
    axes[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes[-1].set_xlabel("accuracy in % on held-out tasks")
    return canvas


def _group(ax: Axes, rows: list[Row], names: list[str], color: str) -> None:
    for i, name in enumerate(names):
        mean = find(rows, name, ALL, "accuracy") or find(rows, name, ONCE, "accuracy")
        assert mean is not None, f"{name} has no accuracy"
        ax.barh(i, mean.value, height=0.62, color=color, alpha=0.55)
        ax.text(1, i, f"{mean.value:.1f}", va="center", fontsize=8)
        seeds = [find(rows, name, setting, "accuracy") for setting in _settings(rows)]
        dots = [row.value for row in seeds if row is not None]
        look: dict[str, Any] = {"color": COLORS["target"], "zorder": 3}
        ax.plot(dots, [i] * len(dots), "o", ms=3, label="a seed" if i == 0 else None, **look)
        if name in PAPER:
            label = "the paper" if i == 0 else None
            ax.plot(PAPER[name], i, "D", ms=6, mfc="none", mew=1.3, label=label, **look)
    ax.set_yticks(range(len(names)), names)
    ax.set(xlim=(0, 100), ylim=(len(names) - 0.5, -0.5))
    ax.grid(axis="y", visible=False)
