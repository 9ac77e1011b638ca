"""Tables and figures of the experiment on one dataset."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from neural_complexity.assessment.drawing import COLORS, STYLE, save
from neural_complexity.assessment.page import Figure
from neural_complexity.assessment.tables import Table, find, show
from neural_complexity.experiments.base.networks import HEADS
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.trajectories import NC_METHODS
from neural_complexity.experiments.reports.large_report import (
    compare,
    curves,
    dots,
    scatter,
    verdict,
)
from neural_complexity.experiments.single import (
    BELIEFS,
    CNN,
    DISTILLED,
    EARLY,
    OPPONENTS,
    PLAIN,
    methods,
)
from neural_complexity.meta.scores import r_squared

__all__ = ["LEAD", "TITLE", "figures", "joint", "tables"]

TITLE = "One image dataset"
LEAD = (
    "NC is meta-trained on random splits of a dataset's training images, and then regularizes "
    "learners of all of them, which are judged on the test images. Transductive: NC judges the "
    "learner on the unlabelled test images themselves, as in the paper; inductive: on held-out "
    "training images, whose labels the learner then does not see either. The opponents' strengths "
    "are chosen on those held-out images; early stopping learns without them and stops where its "
    "error on them is least. All learners start from the same weights and take the same number of "
    "steps. Three lines say where NC's help comes from: NC's own beliefs used as a classifier "
    "without a learner, a network of NC's image encoder trained directly on the same labels, and "
    "the learner that is regularized as by the posterior head, but with that network's answers on "
    "the unlabelled test images in the place of NC's beliefs (distilled)."
)


def tables(rows: list[Row]) -> list[Table]:
    """Makes the paper's table, the fits to the gap, and the choice of strengths."""
    return [_accuracies(rows), _fits(rows), _by_size(rows), _strengths(rows)]


def joint(runs: list[list[Row]]) -> Table:
    """Makes the paper's table: methods against datasets, one run of each.

    Raises:
        ValueError: If two runs are of one dataset.
    """
    columns = [_by_method(rows) for rows in runs]
    names = [column[PLAIN].setting.removesuffix(" learner") for column in columns]
    if len(set(names)) < len(names):
        raise ValueError(f"runs must be of different datasets, got {', '.join(names)}")
    lines = []
    for method in columns[0]:
        lines.append((method, *(show(column[method]) for column in columns)))
        papers = [column[method].paper for column in columns]
        if any(papers):
            shown = ("" if paper is None else f"{paper:.2f}" for paper in papers)
            lines.append((f"the paper's {method}", *shown))
    return Table(
        "Accuracy in % on the test images, by dataset and learner",
        ("method", *names),
        tuple(lines),
        "Value ± 95 % interval over runs. The paper's numbers are of full datasets and its own "
        "learners; each run's page says how far it is from that.",
    )


def _by_method(rows: list[Row]) -> dict[str, Row]:
    """Gives the accuracies in the order of the table."""
    found = {row.method: row for row in rows if row.metric == "accuracy"}
    return {method: found[method] for method in (*methods(), BELIEFS, CNN)}


def _accuracies(rows: list[Row]) -> Table:
    found = _by_method(rows)
    lines = []
    for method, row in found.items():
        losses = (find(rows, method, row.setting, f"{part} loss") for part in ("test", "train"))
        published = "" if row.paper is None else f"{row.paper:.2f}"
        lines.append((method, show(row), *(show(loss, 3) for loss in losses), published))
    setting = found[PLAIN].setting
    opponents = [PLAIN, *OPPONENTS, EARLY]
    return Table(
        f"Accuracy in % on the test images: {setting}, {found[PLAIN].n} runs",
        ("method", "accuracy", "test loss", "train loss", "paper's accuracy"),
        tuple(lines),
        " ".join(
            [
                "Value ± 95 % interval over runs; what needs no learner is one network and has "
                "none. Test images are the same in all runs.",
                *(verdict(found, method, opponents) for method in NC_METHODS),
                _honesty(found),
            ]
        ),
    )


def _honesty(found: dict[str, Row]) -> str:
    """Says whether NC beats what is distilled from the same CNN."""
    said = {
        "better": "beats the learner distilled from the CNN",
        "worse": "does not beat the learner distilled from the CNN, but is worse",
        "neither": "does not beat the learner distilled from the CNN: the intervals overlap",
    }
    sentences = []
    for head in HEADS:
        method = f"NC {head}, transductive"
        ours, theirs = found[method], found[DISTILLED]
        numbers = f"({show(ours)} against {show(theirs)})"
        sentences.append(f"{method}, {said[compare(ours, theirs)]} {numbers}.")
    return " ".join(sentences)


def _fits(rows: list[Row]) -> Table:
    lines = []
    metrics = ("R2", "correlation", "MAE")
    for row in rows:
        if row.metric == "R2":
            scores = (show(find(rows, row.method, row.setting, m), 3) for m in metrics)
            lines.append((f"{row.method}; {row.setting}", f"{row.n:,}", *scores))
    return Table(
        "Predicted against true gap",
        ("gap predictor; learners", "learners", *metrics),
        tuple(lines),
        "Value ± 95 % interval over learners, for these images: all of a kind are judged on the "
        "same ones. Held-out splits: learners of training sets of several sizes, all sizes "
        "together, plain or regularized by the posterior head on the images that they are then "
        "judged on (transductive), which no NC was trained on. Test images: the learners of the "
        "table above, all methods together, transductive ones among them. Endpoints: after the "
        "last step; all the way: at every look but the one before the first step. Looks at one "
        "learner, and learners that started alike, depend on each other, so there is no interval. "
        "R2 is the coefficient of determination.",
    )


def _by_size(rows: list[Row]) -> Table:
    metrics = ("gap", "predicted gap", "MAE within a size")
    lines = []
    for row in rows:
        if row.metric == metrics[0]:
            scores = (show(find(rows, row.method, row.setting, m), 3) for m in metrics)
            lines.append((f"{row.method}; {row.setting}", f"{row.n:,}", *scores))
    return Table(
        "Predicted and true gap by the size of the training set",
        ("gap predictor; learners", "learners", *metrics),
        tuple(lines),
        "Value ± 95 % interval over learners, for these images. Learners of one size have nearly "
        "one gap, so that R2 over all sizes says how well NC tells sizes apart, and the mean "
        "absolute error how far it is off.",
    )


def _strengths(rows: list[Row]) -> Table:
    tried = [row for row in rows if row.setting.startswith("strength ")]
    lines = []
    for row in tried:
        strength = row.setting.removeprefix("strength ")
        chosen = "chosen" if strength.endswith(", chosen") else ""
        lines.append((row.method, strength.removesuffix(", chosen"), show(row), chosen))
    return Table(
        "Choice of the opponents' strengths",
        ("method", "strength", "accuracy in %", "choice"),
        tuple(lines),
        "Of one learner each, trained without the held-out training images and judged on them.",
    )


def figures(outcome: Outcome, folder: Path) -> list[Figure]:
    """Draws the figures from what a run left."""
    with mpl.rc_context(STYLE):
        return [
            Figure(
                save(dots(_by_method(outcome.rows), PLAIN), folder, "accuracy"),
                "Accuracy on the test images",
                "Ours with 95 % interval over runs (dots; squares: one network, no learner) and "
                "the paper's (circles). The dotted line is cross-entropy.",
            ),
            Figure(
                save(curves(outcome.tensors, PLAIN, more=DISTILLED), folder, "curves"),
                "While learning",
                "Mean over runs. Left and middle: train loss solid, test loss dashed. Right: test "
                "error; dashed where NC judges on held-out training images instead (inductive).",
            ),
            Figure(
                save(_gap_fit(outcome.tensors), folder, "gap-fit"),
                "Predicted against true gap on held-out splits",
                "Large dots: learners after their last step, to which R2 belongs; small dots: on "
                "their way. Left: plain learners. Right: learners regularized by the posterior "
                "head.",
            ),
        ]


def _gap_fit(tensors: dict[str, Tensor]) -> Canvas:
    kinds = {"plain": "plain learners", "with NC": "with NC posterior"}
    sizes = sorted({int(key.split("/")[1]) for key in tensors if key.startswith("splits/")})
    shades = mpl.colormaps["viridis"](np.linspace(0.0, 0.85, len(sizes)))
    canvas = Canvas(figsize=(7.6, 6.6), layout="constrained")
    axes = canvas.subplots(len(HEADS), len(kinds))
    for line, head in zip(axes, HEADS, strict=True):
        for ax, (kind, title) in zip(line, kinds.items(), strict=True):
            pairs = []
            for size, shade in zip(sizes, shades, strict=True):
                true = tensors[f"splits/{size}/{kind}/gap"]
                predicted = tensors[f"splits/{size}/{kind}/predicted/{head}"]
                scatter(ax, true, predicted, shade, label=f"{size:,} training images")
                pairs.append((predicted[-1], true[-1]))
            own, true = (torch.cat(column) for column in zip(*pairs, strict=True))
            ax.axline((0, 0), slope=1, color=COLORS["target"], lw=0.8)
            ax.set_title(f"{head} head, {title}: R2 = {r_squared(own, true).item():.3f}")
            ax.set(xlabel="true gap", ylabel="predicted gap")
    canvas.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(sizes)
    )
    return canvas
