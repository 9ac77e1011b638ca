"""Which of several models is best on new points, and what it costs to choose another one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray
from scipy.special import ndtr

from neural_complexity.assessment.assess import assess
from neural_complexity.assessment.metrics import ENDS
from neural_complexity.assessment.page import ASSUMED, CLIPPED
from neural_complexity.assessment.prepare import Options
from neural_complexity.assessment.report import COLORS, STYLE, Figure, Table, plain, render, to_png
from neural_complexity.assessment.result import Assessment, Joint
from neural_complexity.assessment.tilt import GRID
from neural_complexity.model.network import NeuralComplexity

__all__ = ["Comparison", "compare"]

SHARED = 0.5  # the part of the variance of tilts that all models of a table have in common


@dataclass(frozen=True)
class Comparison:
    """Models side by side, the least expected loss first."""

    assessments: Mapping[str, Assessment]  # by name
    best: Mapping[str, float]  # the probability that a model has the least loss on the new points
    regret: Mapping[str, float]  # how much more its loss is expected to be than that of the best

    @property
    def names(self) -> list[str]:
        """The names, in the order of the least expected regret."""
        return sorted(self.regret, key=lambda name: self.regret[name])

    def to_df(self) -> pd.DataFrame:
        """Returns a row for each model: loss, metrics with intervals, chances and regret."""
        rows = {}
        for name in self.names:
            found = self.assessments[name]
            rows[name] = {
                "loss": found.loss_te,
                **{f"{m} {end}": getattr(e, end) for m, e in found.metrics.items() for end in ENDS},
                "probability of being best": self.best[name],
                "expected regret": self.regret[name],
            }
        return pd.DataFrame.from_dict(rows, orient="index")

    def to_html(self) -> str:
        """Returns a page, which needs no other file and no network."""
        first = self.names[0]
        said = f"{first} is the one to choose: its chance to be best is {self.best[first]:.0%}."
        assessed = self.assessments[first]
        said += "" if assessed.moved is None else f" The {assessed.moved}."
        caption = "Left: each model with its interval. Right: its chance to have the least loss."
        figure = Figure(to_png(self.plot()), "Models side by side", caption)
        details = json.loads(self.to_df().to_json(orient="index"))
        return render(
            f"Which model? {first}",
            said,
            [self._table()],
            [figure],
            details,
            warnings=assessed.warnings,
            assumed=ASSUMED,
            details_title="All numbers",
        )

    @mpl.rc_context(STYLE)
    def plot(self) -> Canvas:
        """Draws the first metric of each model with its interval, and its chance to be best."""
        names = self.names[::-1]  # the best is on top
        canvas = Canvas(figsize=(9.2, 1.2 + 0.4 * len(names)), layout="constrained")
        left, right = canvas.subplots(1, 2, width_ratios=(3, 2), sharey=True)
        metric = next(iter(self.assessments[names[0]].metrics))
        for row, name in enumerate(names):
            found, color = self.assessments[name].metrics.get(metric), COLORS["posterior"]
            if found is not None:  # it may have no value
                left.plot([found.low, found.high], [row, row], lw=5, alpha=0.3, color=color)
                left.plot([found.value], [row], "o", ms=6, color=color)
            right.barh(row, self.best[name], color=color, height=0.5)
        left.set_yticks(range(len(names)), [plain(name) for name in names])
        left.set(xlabel=f"expected {metric.replace('_', ' ')}", ymargin=0.15)
        right.set(xlabel="chance to be best", xlim=(0, 1))
        return canvas

    def _table(self) -> Table:
        metrics = list(self.assessments[self.names[0]].metrics)
        lines = []
        for name in self.names:
            found = self.assessments[name]
            told = (f"{found.loss_te:.3g}", f"{self.best[name]:.2f}", f"{self.regret[name]:.2g}")
            lines.append((name, *told, *(str(found.metrics[metric]) for metric in metrics)))
        header = ("model", "loss", "chance to be best", "expected regret", *metrics)
        labels = self.assessments[self.names[0]].accuracy_tr is not None
        return Table("Models on the new points", header, tuple(lines), CLIPPED if labels else "")

    def __repr__(self) -> str:
        table = self._table()
        lines = [table.header, *table.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )


def compare(
    models: Mapping[str, Any],
    X_tr: object,
    y_tr: object = None,
    X_te: object = None,
    *,
    nc: NeuralComplexity | str | None = None,
    **options: Unpack[Options],
) -> Comparison:
    """Assesses several models of one table on the same new points.

    Chances are over targets that are drawn from NC's belief, the same for all models, and over how
    far that belief may be off about each of them, half of which they are assumed to share.

    Args:
        models: By name; all for the same targets, which have the same classes.
        X_tr: The training inputs of all of them; see `assess`.
        y_tr: Their targets.
        X_te: The new points, without labels.
        nc: An NC for tables; the one that ships if `None`.
        options: As of `assess`.

    Raises:
        TypeError: As by `assess`.
        ValueError: Likewise, or if there are fewer than two models, or NC is not for tables.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.tree import DecisionTreeClassifier
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = load_iris(return_X_y=True)
        >>> models = {"tree": DecisionTreeClassifier(), "linear": LogisticRegression(max_iter=500)}
        >>> fitted = {name: model.fit(X[::3], y[::3]) for name, model in models.items()}
        >>> compare(fitted, X[::3], y[::3], X[1::3]).names
        ['linear', 'tree']
    """
    if len(models) < 2:
        raise ValueError(f"models must be at least two by name, got {len(models)}")
    found = {name: assess(m, X_tr, y_tr, X_te, nc=nc, **options) for name, m in models.items()}
    joint = [one.joint for one in found.values() if one.joint is not None]
    if len(joint) < len(found):
        raise ValueError("nc must be for tables to compare models, got another")
    losses = _draw_losses(joint)  # (models, draws)
    least = losses.min(axis=0)
    best = (losses <= least).astype(float)
    best /= best.sum(axis=0)  # of equal ones, each has its share
    chances, regrets = best.mean(axis=1), (losses - least).mean(axis=1)
    return Comparison(
        found,
        dict(zip(found, map(float, chances), strict=True)),
        dict(zip(found, map(float, regrets), strict=True)),
    )


def _draw_losses(joint: list[Joint]) -> NDArray[np.float64]:
    """Draws mean losses of models on the same targets, each with its tilt, (models, draws)."""
    random, draws = np.random.default_rng(0), len(joint[0].losses)
    common, grid, found = random.normal(size=draws), GRID.numpy(), []
    for one in joint:
        own = random.normal(size=draws)
        at = ndtr(SHARED**0.5 * common + (1 - SHARED) ** 0.5 * own)
        tilts = np.interp(at, one.tilt.cumsum(), grid)
        moved = np.interp(tilts, grid, one.by_tilt) - np.interp(0.0, grid, one.by_tilt)
        found.append(one.losses + moved)
    return np.stack(found)
