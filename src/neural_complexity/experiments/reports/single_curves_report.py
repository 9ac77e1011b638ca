"""Tables and figures of learning curves on one dataset."""

from pathlib import Path

import matplotlib as mpl

from neural_complexity.assessment.drawing import STYLE, save
from neural_complexity.assessment.page import Figure
from neural_complexity.assessment.tables import Table, find, show
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.shared_networks import BESIDE
from neural_complexity.experiments.base.trajectories import PLAIN
from neural_complexity.experiments.reports.large_report import beside, curves
from neural_complexity.experiments.single_curves import LONG

__all__ = ["LEAD", "TITLE", "figures", "tables"]

TITLE = "Learning curves on one dataset"
LEAD = (
    "Learners of all training images with and without NC, from the same initial weights, on their "
    "way. Transductive: NC judges the learner on the unlabelled test images themselves, as in the "
    "paper; inductive: on held-out training images, whose labels the learner then does not see "
    "either. The paper gives a figure of this, but no numbers."
)


def tables(rows: list[Row]) -> list[Table]:
    """Makes the tables of accuracies and losses by step, and of who is faster."""
    found = [row for row in rows if row.metric == "accuracy" and row.setting != BESIDE]
    steps = sorted({int(row.setting.split()[0]) for row in found})
    settings = [f"{step} steps" for step in steps]
    runs = found[0].n
    note = f"Value ± 95 % interval over {runs} runs."
    made = []
    for metric, digits, title in (
        ("accuracy", 2, "Accuracy in % on the test images"),
        ("test loss", 3, "Test loss"),
        ("train loss", 3, "Train loss"),
    ):
        lines = [
            (method, *(show(find(rows, method, s, metric), digits) for s in settings))
            for method in dict.fromkeys(row.method for row in found)
        ]
        made.append(
            Table(f"{title} after learner steps", ("method", *settings), tuple(lines), note)
        )
    return [*made, _reached(rows, runs), beside(rows)]


def _reached(rows: list[Row], runs: int) -> Table:
    goals = list(dict.fromkeys(row.setting for row in rows if row.metric == "runs as good"))
    lines = []
    for method in dict.fromkeys(row.method for row in rows if row.metric == "runs as good"):
        cells = []
        for goal in goals:
            first, good = (
                find(rows, method, goal, m) for m in ("first step as good", "runs as good")
            )
            assert good is not None
            cells.append(show(first, 0) if first else f"{good.value:.0f} of {runs} runs get there")
        lines.append((method, *cells))
    return Table(
        "First step at which a learner is as good as the plain one at its end",
        ("method", *goals),
        tuple(lines),
        f"By the test error, against its mean over runs. Value ± 95 % interval over {runs} runs "
        "of the first look at which a run is as good; looks are evenly spaced in the logarithm of "
        "the step. Test errors go up and down a little: a first look flatters all methods alike.",
    )


def figures(outcome: Outcome, folder: Path) -> list[Figure]:
    """Draws the figure from what a run left."""
    tensors = outcome.tensors
    level = tensors[f"{LONG}/error"][-1].mean().item()
    steps = int(tensors[f"{LONG}/step"][-1])
    with mpl.rc_context(STYLE):
        return [
            Figure(
                save(curves(tensors, PLAIN, level=level), folder, "curves"),
                "Learning curves with and without NC",
                "Mean over runs. Left and middle: train loss solid, test loss dashed. Right: test "
                "error; dashed curves where NC judges on held-out training images instead "
                "(inductive). The dashed horizontal line is the plain learner after "
                f"{steps:,} steps.",
            )
        ]
