"""Tables and figures of what the tool does for somebody's own data."""

from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from neural_complexity.assessment.drawing import COLORS, STYLE, save
from neural_complexity.assessment.page import Figure
from neural_complexity.assessment.tables import Table, find, show
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.own import ESTIMATORS, KINDS, METHODS

__all__ = ["LEAD", "TITLE", "figures", "tables"]

TITLE = "Own data: digits"
LEAD = (
    "Scikit-learn's digits as somebody's own data: 1,437 points that meta_learn and the models may "
    "use, and 360 whose labels neither has seen. NC learns from MLPs with one layer of 64 units, "
    "on splits of the former. It is then asked (assess) about models of kinds that it has never "
    "met, trained on 50 to 1,437 points, and regularizes: scikit-learn style classifiers "
    "(NCClassifier) with the unlabelled test inputs (transductive) and without them (inductive), "
    "and a network in a loop of one's own, also with them (NCRegularizer)."
)


def tables(rows: list[Row]) -> list[Table]:
    """Makes one table of predicted gaps and one of accuracies."""
    return [_gaps(rows), _accuracies(rows)]


def _gaps(rows: list[Row]) -> Table:
    metrics = {"R2": 3, "correlation": 3, "MAE": 3, "true gap": 3}
    bounds = {"inside the bound": 2, "width of the bound": 2, "told to be unlike": 2}
    lines = []
    for kind in ("all kinds", *KINDS):
        cells = [show(find(rows, "NC", kind, m), digits) for m, digits in metrics.items()]
        cells += [show(find(rows, "NC", kind, m), digits) for m, digits in bounds.items()]
        count = find(rows, "NC", kind, "R2")
        lines.append((kind, *cells, "" if count is None else str(count.n)))
    return Table(
        "Predicted against true gap of models of unseen kinds",
        ("model", *metrics, *bounds, "models"),
        tuple(lines),
        "Value ± 95 % interval over models. The bound is split-conformal at 95 %, for models like "
        "those that it was calibrated on (MLPs); it promises nothing for others, which are told "
        "to be unlike at a level of 5 %.",
    )


def _accuracies(rows: list[Row]) -> Table:
    settings = list(dict.fromkeys(r.setting for r in rows if r.metric == "accuracy"))
    lines = []
    for method in METHODS:
        for metric in ("accuracy", "change"):
            cells = [show(find(rows, method, setting, metric)) for setting in settings]
            if any(cells):
                name = method if metric == "accuracy" else f"{method}: change"
                lines.append((name, *cells))
    return Table(
        "Accuracy of regularized classifiers, %",
        ("classifier", *settings),
        tuple(lines),
        "Value ± 95 % interval over seeds, which draw training points, weights and minibatches; "
        "the change is that of each seed.",
    )


def figures(outcome: Outcome, folder: Path) -> list[Figure]:
    """Draws predicted against true gaps."""
    with mpl.rc_context(STYLE):
        return [
            Figure(
                save(_fit(outcome.tensors), folder, "own-fit"),
                "Predicted against true gap",
                "Each point is a model of a kind that NC was not trained on; the bars are the 95 % "
                "bounds.",
            )
        ]


def _fit(tensors: dict[str, Tensor]) -> Canvas:
    canvas = Canvas(figsize=(9, 4.2), layout="constrained")
    axes = canvas.subplots(1, 2, sharex=True, sharey=True)
    networks = [kind for kind in KINDS if kind not in ESTIMATORS]
    colors = [mpl.colormaps["tab10"](i) for i in range(10)]
    everything = torch.cat([tensors[f"true/{kind}"] for kind in KINDS])
    ends = [everything.min().item(), everything.max().item()]
    for ax, title, kinds in (
        (axes[0], "networks", networks),
        (axes[1], "scikit-learn", list(ESTIMATORS)),
    ):
        ax.plot(ends, ends, color=COLORS["target"], lw=0.8)
        for kind, color in zip(kinds, colors, strict=False):
            true, predicted, low, high = (
                tensors[f"{name}/{kind}"] for name in ("true", "predicted", "low", "high")
            )
            bars = [(predicted - low).clamp(min=0), (high - predicted).clamp(min=0)]
            if low.isfinite().all() and high.isfinite().all():
                ax.errorbar(true, predicted, bars, fmt="none", ecolor=color, alpha=0.25, lw=0.8)
            ax.plot(true, predicted, "o", ms=3.5, color=color, label=kind)
        ax.set(title=title, xlabel="true gap")
        ax.legend(loc="upper left")
    axes[0].set_ylabel("predicted gap")
    return canvas
