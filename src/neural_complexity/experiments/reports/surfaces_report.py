"""Tables and figures of the loss surfaces."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from neural_complexity.assessment.drawing import COLORS, STYLE, save
from neural_complexity.assessment.page import Figure
from neural_complexity.assessment.tables import Table, find, show
from neural_complexity.experiments.base.networks import HEADS
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.surfaces import ALL, AT_EDGE, AT_LEARNER, WITH_GAP, WITH_TEST

__all__ = ["LEAD", "TITLE", "draw_contours", "draw_surfaces", "figures", "tables"]

TITLE = "Loss surfaces"
LEAD = (
    "Learners trained without NC until they converge, each moved along two random directions, in "
    "which every filter moves by a multiple of its own length (Li et al., 2018). Over this plane: "
    "train loss, test loss, their difference (the gap), what NC predicts of it, and the "
    "regularized loss, train loss + NC, which a learner regularized by NC descends. The paper "
    "says that minimizing it moves the learner to lower test loss."
)
METHODS = ("none", *(f"NC {head}" for head in HEADS), "oracle")
LEVELS = 24
# Losses grow without end towards the corners: colours and heights stop where so much of the plane
# is below.
SEEN = 0.75
SEEN_GAP = 0.95  # of the gap, which is cut off there and, below, where as much is above

Plane = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Scale:
    """What colour a value has; values beyond the ends have the colours of the ends."""

    norm: Normalize
    colours: str

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest value told apart."""
        assert self.norm.vmin is not None
        assert self.norm.vmax is not None
        return self.norm.vmin, self.norm.vmax


def tables(rows: list[Row]) -> list[Table]:
    """Makes the table of what each objective says over the plane, and that of each task drawn."""
    return [_summary(rows), _tasks(rows)]


def _summary(rows: list[Row]) -> Table:
    metrics = ("test loss", "change", "share of oracle", AT_EDGE, WITH_TEST, WITH_GAP)
    lines = []
    for method in METHODS:
        found = [show(find(rows, method, ALL, metric), 3) for metric in metrics]
        lines.append((_objective(method), *found))
    n = next(row.n for row in rows if row.setting == ALL and row.metric == "test loss")
    lost = next(row.value for row in rows if row.metric == "diverged tasks")
    return Table(
        f"Where each objective is lowest on the plane, {n:,} tasks",
        ("lowest point of the objective", *metrics),
        tuple(lines),
        "Mean over tasks ± 95 % interval. Change: of the test loss, against the learner's own. "
        "Share of oracle: of the change that the plane allows. At the edge: share of tasks whose "
        "lowest point is there, so that it may be still lower outside. Correlations are over the "
        "points of each plane. The train loss is lowest at the learner itself in "
        f"{_percent(find(rows, 'none', ALL, AT_LEARNER))} of tasks. Tasks left out because "
        f"something was not finite: {lost:.0f}.",
    )


def _tasks(rows: list[Row]) -> Table:
    settings = [s for s in dict.fromkeys(row.setting for row in rows) if s != ALL]
    lines = []
    for setting in settings:
        losses = [show(find(rows, method, setting, "test loss"), 3) for method in METHODS]
        tests = [show(find(rows, method, setting, WITH_TEST), 3) for method in METHODS[:-1]]
        gaps = [show(find(rows, method, setting, WITH_GAP), 3) for method in METHODS[1:-1]]
        lines.append((setting, *losses, *tests, *gaps))
    return Table(
        "The tasks drawn",
        (
            "task",
            *(f"test loss, {method}" for method in METHODS),
            *(f"with test loss, {method}" for method in METHODS[:-1]),
            *(f"with gap, {method}" for method in METHODS[1:-1]),
        ),
        tuple(lines),
        "Test loss at the learner (none), at the lowest regularized loss (NC) and at the lowest "
        "test loss (oracle) of the plane. With test loss: correlation over the plane of train loss "
        "(none) or regularized loss (NC) with the test loss. With gap: of NC with the gap.",
    )


def _percent(row: Row | None) -> str:
    return "" if row is None else f"{100 * row.value:.0f} %"


def _objective(method: str) -> str:
    if method == "none":
        return "the learner (train loss)"
    if method == "oracle":
        return "oracle (test loss)"
    return f"{method} (train loss + NC)"


def figures(outcome: Outcome, folder: Path) -> list[Figure]:
    """Draws the planes as contours, and those of the first task as surfaces."""
    tensors = outcome.tensors
    alpha, beta = tensors["alpha"][0].numpy(), tensors["beta"][0].numpy()
    names = [name for name in tensors if name not in ("alpha", "beta")]
    tasks = [{name: tensors[name][b].numpy() for name in names} for b in range(len(tensors["gap"]))]
    with mpl.rc_context(STYLE):
        drawn = [
            Figure(
                save(draw_contours(alpha, beta, tasks, HEADS), folder, "contours"),
                "Visualization of loss surfaces",
                "One task per row. The train loss has a scale of its own; test and regularized "
                f"loss share one, which ends where {SEEN:.0%} of the plane is below; gap and NC "
                "share another, cut off on both sides. Cross: the learner. Circle: the lowest "
                "point of the panel.",
            )
        ]
        for head in HEADS:
            drawn.append(
                Figure(
                    save(draw_surfaces(alpha, beta, tasks[0], head), folder, f"surfaces-{head}"),
                    f"Loss surfaces in three dimensions, {head} head",
                    "The first task, arranged as in the paper's appendix, with the scales of the "
                    "contours: what is beyond them is cut off. Dot: the learner.",
                )
            )
        return drawn


def _panels(heads: tuple[str, ...]) -> list[tuple[str, str]]:
    """Gives the key and the title of each panel, in the paper's order."""
    return [
        ("train loss", "train loss"),
        ("gap", "gap"),
        *((f"NC, {head}", f"NC, {head}") for head in heads),
        ("test loss", "test loss"),
        *((f"regularized loss, {head}", f"train loss + NC,\n{head}") for head in heads),
    ]


def _scales(planes: dict[str, Plane]) -> tuple[Scale, Scale, Scale]:
    """Gives the scale of the train loss, that of gap and NC, and that of test and regularized loss.

    Those that are shared are those of the true quantities: an NC that is far off shows as such. A
    learner of few images fits them so well that its train loss would show nothing on any other
    scale than its own.
    """
    train, test = planes["train loss"], planes["test loss"]
    gap = np.quantile(planes["gap"], [1 - SEEN_GAP, SEEN_GAP])
    return (
        Scale(
            Normalize(train.min(), max(np.quantile(train, SEEN_GAP), train.min() + 1e-9)), "viridis"
        ),
        Scale(Normalize(*gap), "plasma"),
        Scale(Normalize(test.min(), np.quantile(test, SEEN)), "viridis"),
    )


def _scale_of(name: str, scales: tuple[Scale, Scale, Scale]) -> Scale:
    train, gap, test = scales
    return train if name == "train loss" else test if "loss" in name else gap


def draw_contours(
    alpha: Plane, beta: Plane, tasks: list[dict[str, Plane]], heads: tuple[str, ...]
) -> Canvas:
    """Draws one row of contour panels per task.

    Args:
        alpha: Steps along the first direction, (size,).
        beta: Steps along the second, (size,).
        tasks: For each task its planes by name, (size, size).
        heads: The NCs, as the names of planes have them.
    """
    panels = _panels(heads)
    canvas = Canvas(figsize=(1.7 * len(panels), 0.8 + 1.45 * len(tasks)), layout="constrained")
    axes = canvas.subplots(len(tasks), len(panels), sharex=True, sharey=True, squeeze=False)
    for i, planes in enumerate(tasks):
        scales = _scales(planes)
        for ax, (name, title) in zip(axes[i], panels, strict=True):
            _contour(ax, alpha, beta, planes[name], _scale_of(name, scales))
            if i == 0:
                ax.set_title(title)
        losses, gaps = axes[i, -len(heads) - 1 :], axes[i, 1 : len(heads) + 2]
        for scale, group in zip(scales, (axes[i, :1], gaps, losses), strict=True):
            shown = ScalarMappable(scale.norm, scale.colours)
            bar = canvas.colorbar(shown, ax=group, extend="both", aspect=12, shrink=0.68, pad=0.02)
            bar.locator = MaxNLocator(4)
        axes[i, 0].set_ylabel(f"task {i + 1}\n" + r"$\alpha$")
    for ax in axes[-1]:
        ax.set_xlabel(r"$\beta$")
    return canvas


def _contour(ax: Axes, alpha: Plane, beta: Plane, plane: Plane, scale: Scale) -> None:
    levels = np.linspace(*scale.limits, LEVELS + 1)
    ax.contourf(beta, alpha, plane, levels, cmap=scale.colours, norm=scale.norm, extend="both")
    ax.contour(beta, alpha, plane, levels[::3], colors="white", linewidths=0.4, alpha=0.6)
    i, j = np.unravel_index(plane.argmin(), plane.shape)
    # Twice, so that they stand out from any colour; a minimum may lie on the edge.
    for width, color in ((2.2, "white"), (1.0, COLORS["target"])):
        look: dict[str, Any] = {"mew": width, "color": color, "clip_on": False, "zorder": 5}
        ax.plot(0, 0, "x", ms=5, **look)
        ax.plot(beta[j], alpha[i], "o", ms=6, mfc="none", **look)
    ax.set(aspect="equal", xlim=beta[[0, -1]], ylim=alpha[[0, -1]])
    ax.grid(False)


def draw_surfaces(alpha: Plane, beta: Plane, planes: dict[str, Plane], head: str) -> Canvas:
    """Draws one task's planes as surfaces: train loss; gap over NC; test over regularized loss.

    Args:
        alpha: Steps along the first direction, (size,).
        beta: Steps along the second, (size,).
        planes: By name, (size, size).
        head: Whose NC to draw.
    """
    canvas = Canvas(figsize=(10.5, 7.0))
    edges = {"left": 0.0, "right": 0.95, "bottom": 0.05, "top": 0.95, "hspace": 0.5}
    grid = canvas.add_gridspec(4, 3, wspace=0.1, **edges)
    places = {
        "train loss": grid[1:3, 0],
        "gap": grid[0:2, 1],
        f"NC, {head}": grid[2:4, 1],
        "test loss": grid[0:2, 2],
        f"regularized loss, {head}": grid[2:4, 2],
    }
    titles, scales = dict(_panels((head,))), _scales(planes)
    for name, place in places.items():
        ax = canvas.add_subplot(place, projection="3d")
        _surface(ax, alpha, beta, planes[name], _scale_of(name, scales))
        ax.set_title(titles[name].replace("\n", " "), y=1.04)
    return canvas


def _surface(ax: Any, alpha: Plane, beta: Plane, plane: Plane, scale: Scale) -> None:
    heights = plane.clip(*scale.limits)
    across, down = np.meshgrid(beta, alpha)
    look = {"cmap": scale.colours, "norm": scale.norm, "edgecolor": (0, 0, 0, 0.25)}
    ax.plot_surface(across, down, heights, rcount=50, ccount=50, linewidth=0.1, **look)
    centre = len(alpha) // 2
    dot = {"ms": 6, "mfc": "white", "mec": COLORS["target"], "zorder": 10}
    ax.plot([0], [0], [heights[centre, centre]], "o", **dot)
    ax.set(xlabel=r"$\beta$", ylabel=r"$\alpha$", zlim=scale.limits)
    ax.set_box_aspect(None, zoom=1.1)
    ax.view_init(elev=32, azim=-60)
