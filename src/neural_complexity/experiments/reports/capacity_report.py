"""Table and figure of larger networks against NC."""

from pathlib import Path

import matplotlib as mpl

from neural_complexity.assessment.drawing import STYLE, save
from neural_complexity.assessment.page import Figure
from neural_complexity.assessment.tables import Table, find, show
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.shared_networks import BESIDE
from neural_complexity.experiments.base.trajectories import NC_METHODS, PLAIN
from neural_complexity.experiments.reports.large_report import beside, dots, verdict

__all__ = ["LEAD", "TITLE", "figures", "tables"]

TITLE = "Network size"
LEAD = (
    "Does NC help only because there are more parameters? Plain learners of a multiple of the "
    "capacity, which are several networks trained jointly whose predictions are averaged, at the "
    "same learning rate, against learners of the usual size with NC. Transductive: NC judges the "
    "learner on the unlabelled test images themselves, as in the paper; inductive: on held-out "
    "training images, whose labels the learner then does not see either. NC's own parameters are "
    "not the learner's and are not counted."
)


def tables(rows: list[Row]) -> list[Table]:
    """Makes the paper's table, and what must stand beside it."""
    found = _accuracies(rows)
    lines = []
    for method, row in found.items():
        size = find(rows, method, row.setting, "parameters")
        losses = (find(rows, method, row.setting, f"{part} loss") for part in ("test", "train"))
        published = "" if row.paper is None else f"{row.paper:.2f}"
        assert size is not None
        cells = (f"{size.value:,.0f}", show(row), *(show(loss, 3) for loss in losses), published)
        lines.append((method, *cells))
    first = next(iter(found.values()))
    plain = [method for method in found if method.startswith(PLAIN)]
    said = [verdict(found, method, plain) for method in NC_METHODS]
    header = ("accuracy", "test loss", "train loss", "paper's accuracy")
    return [
        Table(
            f"Accuracy in % on the test images: {first.setting}, {first.n} runs",
            ("learner", "its parameters", *header),
            tuple(lines),
            " ".join(["Value ± 95 % interval over runs.", *said]),
        ),
        beside(rows),
    ]


def _accuracies(rows: list[Row]) -> dict[str, Row]:
    return {r.method: r for r in rows if r.metric == "accuracy" and r.setting != BESIDE}


def figures(outcome: Outcome, folder: Path) -> list[Figure]:
    """Draws the table."""
    found = _accuracies(outcome.rows)
    with mpl.rc_context(STYLE):
        return [
            Figure(
                save(dots(found, PLAIN), folder, "accuracy"),
                "Accuracy on the test images",
                "Ours with 95 % interval over runs (dots) and the paper's (circles). The dotted "
                "line is the plain learner of the usual size.",
            )
        ]
