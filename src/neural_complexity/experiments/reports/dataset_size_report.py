"""Tables and figures of training sets of different size."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from neural_complexity.assessment.drawing import COLORS, STYLE, save
from neural_complexity.assessment.page import Figure
from neural_complexity.assessment.tables import Table, find, show
from neural_complexity.experiments.base.networks import HEADS
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.dataset_size import TRUE

__all__ = ["LEAD", "TITLE", "figures", "tables"]

TITLE = "Dataset size"
LEAD = (
    "Unregularized learners of parts of the training images, and how their gap on the test images "
    "grows: smaller training sets are overfitted more. NC was meta-trained on splits of the "
    "training images and sees no label of a test image. The paper gives a figure of this, but no "
    "numbers."
)


def tables(rows: list[Row]) -> list[Table]:
    """Makes the tables of gaps by size and of the fit."""
    settings = list(dict.fromkeys(row.setting for row in rows if row.metric == "gap"))
    methods = [TRUE, *(f"NC {head}" for head in HEADS)]
    lines = []
    for setting in settings:
        gaps = (show(find(rows, method, setting, "gap"), 3) for method in methods)
        accuracy = show(find(rows, TRUE, setting, "accuracy"))
        lines.append((setting.removesuffix(" training images"), *gaps, accuracy))
    runs = next(row.n for row in rows if row.metric == "gap")
    sizes = Table(
        f"Gap after the last step by training images, {runs} runs",
        ("training images", "true gap", *(f"NC {head}" for head in HEADS), "accuracy in %"),
        tuple(lines),
        "Value ± 95 % interval over runs, each on other training images.",
    )
    metrics = ("R2", "correlation", "MAE")
    fits = tuple(
        (
            f"{row.method}, {row.setting}",
            f"{row.n:,}",
            *(show(find(rows, row.method, row.setting, metric), 3) for metric in metrics),
        )
        for row in rows
        if row.metric == "R2"
    )
    return [
        sizes,
        Table(
            "Predicted against true gap, all sizes and runs",
            ("gap predictor, learners", "values", *metrics),
            fits,
            "Value ± 95 % interval over learners after their last step (endpoints); at all looks "
            "but that before the first step (all the way), which depend on each other, there is "
            "no interval. R2 is the coefficient of determination.",
        ),
    ]


def figures(outcome: Outcome, folder: Path) -> list[Figure]:
    """Draws the figure from what a run left."""
    with mpl.rc_context(STYLE):
        return [
            Figure(
                save(_curves(outcome.tensors), folder, "gaps"),
                "The gap and NC's estimate while learning",
                "Mean over runs, by the number of training images. Solid: NC's estimate; dashed: "
                "the gap on the test images.",
            )
        ]


def _curves(tensors: dict[str, Tensor]) -> Canvas:
    sizes = sorted({int(key.split("/")[0]) for key in tensors})
    shades = mpl.colormaps["viridis"](np.linspace(0.0, 0.85, len(sizes)))
    canvas = Canvas(figsize=(8.8, 3.7), layout="constrained")
    axes = canvas.subplots(1, len(HEADS), sharey=True)
    for ax, head in zip(axes, HEADS, strict=True):
        for size, shade in zip(sizes, shades, strict=True):
            steps = tensors[f"{size}/step"][1:]
            true, own = (
                tensors[f"{size}/{name}"][1:].mean(dim=1) for name in ("gap", f"predicted/{head}")
            )
            ax.plot(steps, own, color=shade, lw=1.4, label=f"{size:,} images")
            ax.plot(steps, true, "--", color=shade, lw=1.4)
        ax.set(xscale="log", xlabel="learner step", title=f"NC {head}")
    axes[0].plot([], color=COLORS["target"], label="NC's estimate")
    axes[0].plot([], "--", color=COLORS["target"], label="true gap")
    axes[0].set_ylabel("test loss - train loss")
    canvas.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    return canvas
