"""Section 4.3, "Loss Surface Visualization": losses, gap and NC around a converged learner."""

from collections.abc import Iterable
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from matplotlib import cm, colors, ticker
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.experiments.base import few_shot_images as few_shot
from neural_complexity.experiments.base.comparison import NONE, label, presets
from neural_complexity.experiments.base.config import POSITIVE, AtLeast, Bound, Count
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.rows import Keys, Row, distinct, pivot, select, show
from neural_complexity.experiments.base.run_folder import HEADS, load_networks
from neural_complexity.learners.batched import BatchedLearner, Measure, PlacedLearner, surface
from neural_complexity.learners.fit import usable_rows
from neural_complexity.losses import PointLoss
from neural_complexity.meta import scores
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import stream
from neural_complexity.snapshot import gap, take_snapshot
from neural_complexity.task import Task
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "surfaces"
DRAWN = 3  # tasks with rows of their own, and drawn
AT_LEARNER, AT_EDGE = "train loss lowest at the learner", "at the edge"
WITH_GAP, WITH_TEST = "correlation of NC with gap", "correlation of objective with test loss"
NCS: list[Keys] = [{"method": "NC", "head": head} for head in HEADS]
ORACLE: Keys = {"method": "oracle"}
METHODS: list[Keys] = [NONE.keys, *NCS, ORACLE]
# The plane that each method descends, and how people call that.
OBJECTIVES = {label(keys): f"regularized loss, {keys['head']}" for keys in NCS}
OBJECTIVES |= {"none": "train loss", "oracle": "test loss"}
NAMES = {label(keys): f"{label(keys)} (train loss + NC)" for keys in NCS}
NAMES |= {"none": "the learner (train loss)", "oracle": "oracle (test loss)"}
LEVELS = 24
SEEN = 0.75  # losses grow without end: scales stop where so much of the plane is below
SEEN_GAP = 0.95  # of the gap, which is cut off there and, below, where as much is above

Plane = np.ndarray[Any, np.dtype[Any]]
Panel = tuple[str, Plane, dict[str, Any]]  # title, values, and the scale: `norm` and `cmap`


@dataclass(frozen=True, kw_only=True)
class Config(few_shot.FewShotConfig):
    """Planes of parameters around learners that were trained without NC."""

    networks: str = ""  # The folder of a run of `omniglot`, for its NCs; the shipped ones if empty.
    steps: Count = 500  # Updates of the learners, enough to converge.
    size: Annotated[int, AtLeast(3), Bound("odd", lambda size: size % 2 == 1)] = 31
    """Points along each of the two directions; odd, so that the learner is one of them."""
    radius: Annotated[float, POSITIVE] = 2.0  # Of the plane, in lengths of the learner's filters.
    chunk: Count = 64  # Points of the plane at a time: bounds memory.


SMOKE: dict[str, Any] = {"queries": 2, "eval_tasks": 4, "learner_width": 16}
SMOKE |= {"steps": 20, "size": 7, "radius": 1.0}
PAPERS = few_shot.PAPERS_LEARNERS | {"steps": 5000, "size": 51}  # it shows one task
PRESETS = presets(Config, smoke=SMOKE, cpu={"eval_tasks": 48}, paper=PAPERS)


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    networks = load_networks(config.networks, config.device, "omniglot")
    task = few_shot.draw_held_out_tasks(config)[0]
    recipe = config.recipe(tuple(task.X_tr.shape[2:]))
    parts = Parts(work, 1 + len(task), callback)
    generator = stream(config.seed, "learners")
    state = parts.do("learners", lambda: recipe.train(task, generator).state())
    with torch.random.fork_rng(devices=[]):
        h = BatchedLearner(recipe.make(), state).to(config.device)

    def measure(b: int) -> dict[str, Tensor]:
        gaps = gap_measure(networks, task[b : b + 1].loaded(), recipe.loss, config.ways)
        how: Any = {name: getattr(config, name) for name in ("size", "radius", "chunk")}
        return surface(h.one(b), gaps, generator=stream(config.seed, "directions", b), **how)

    measured = [parts.do(f"task {b + 1}", partial(measure, b)) for b in range(len(task))]
    planes = {name: torch.stack([plane[name] for plane in measured]) for name in measured[0]}
    kept = usable_rows(~plane.flatten(1).isfinite().all(dim=1) for plane in planes.values())
    planes = {name: plane[kept] for name, plane in planes.items()}
    tensors = {name: plane[:DRAWN].clone() for name, plane in planes.items()}
    return Outcome(_rows(config, planes, kept), tensors, facts=parts.facts(networks))


def gap_measure(
    networks: dict[str, NeuralComplexity], task: Task, loss: PointLoss, classes: int | None = None
) -> Measure:
    """Returns what `surface` measures of K learners of one task, (K,) each: losses, gaps, NCs."""
    contexts = {}  # once for the whole plane
    for name, nc in networks.items():
        nc.check(classes=classes, X_tr=task.X_tr, Y_tr=task.Y_tr, X_te=task.X_te)
        with torch.no_grad():
            contexts[name] = nc.encode(task.X_tr, task.Y_tr, task.X_te, classes=classes)

    def measure(copies: PlacedLearner) -> dict[str, Tensor]:
        K = len(next(copies.parameters()))
        tasks: Task = _expanded(task, K)
        snapshot = take_snapshot(copies, tasks)
        loss_tr = loss(snapshot.H_tr, tasks.Y_tr).mean(dim=1)  # (K,)
        true_gap = gap(loss, snapshot, tasks.Y_te)
        found = {"train loss": loss_tr, "test loss": loss_tr + true_gap, "gap": true_gap}
        for name, nc in networks.items():
            predicted = nc.points(_expanded(contexts[name], K), snapshot.H_tr, snapshot.H_te)
            found[f"NC, {name}"] = predicted.mean(dim=1)
            # Eq. (4) at weight 1.
            found[f"regularized loss, {name}"] = loss_tr + found[f"NC, {name}"]
        return found

    return measure


def _expanded(tree: Any, K: int) -> Any:
    """Returns all tensors of a tree of dataclasses, (1, ...), as (K, ...) without copying them."""
    if isinstance(tree, Tensor):  # what has one axis is of no task: centres and scales
        return tree.expand(K, *tree.shape[1:]) if tree.ndim > 1 else tree
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{name: _expanded(part, K) for name, part in vars(tree).items()})
    return tree


def _rows(config: Config, planes: dict[str, Tensor], kept: Tensor) -> list[Row]:
    """Scores each objective over the plane, and the test loss where it is lowest."""
    row, size = partial(Row.of, NAME, config.seed), config.size
    rows, shares = [row("diverged tasks", scores.count(~kept))], []
    points = {name: plane.flatten(1).double() for name, plane in planes.items()}  # (B, size^2)
    test, centre = points["test loss"], size**2 // 2
    plain, best = test[:, centre], test.amin(dim=1)  # (B,)
    for keys in (NONE.keys, ORACLE, *NCS):
        objective = points[OBJECTIVES[label(keys)]]
        lowest = objective.argmin(dim=1)  # (B,)
        reached = test.gather(1, lowest.unsqueeze(1)).squeeze(1)  # (B,)
        if keys == NONE.keys:  # the learner stays where it is
            found = {"test loss": plain, AT_LEARNER: (lowest == centre).double()}
        else:  # a plane that is larger may go on where the lowest point is at its edge
            edge = torch.stack([lowest // size, lowest % size]).remainder(size - 1).eq(0).any(dim=0)
            found = {"test loss": reached, "change": reached - plain, AT_EDGE: edge.double()}
        if keys != ORACLE:
            found[WITH_TEST] = scores.correlation(objective, test)
        if keys in NCS:
            found[WITH_GAP] = scores.correlation(points[f"NC, {keys['head']}"], points["gap"])
            if (best < plain).any():  # else there is nothing to share
                score = scores.estimate(scores.share_of_oracle, plain, reached, best)
                shares.append(row("share of oracle", score, **keys))
        for metric, values in found.items():
            rows.append(row(metric, scores.estimate_mean(values), **keys))
            for b, value in enumerate(values[:DRAWN].split(1), start=1):
                rows.append(row(metric, scores.estimate_mean(value), **keys, task=b))
    return rows + shares


def tables(rows: list[Row]) -> list[Table]:
    whole, three = select(rows, task=None), partial(show, digits=3)
    (lost,), (at_learner,) = (select(whole, metric) for metric in ("diverged tasks", AT_LEARNER))
    metrics = ("test loss", "change", "share of oracle", AT_EDGE, WITH_TEST, WITH_GAP)
    columns = {
        **{f"test loss, {label(keys)}": ("test loss", keys) for keys in METHODS},
        **{f"with test loss, {label(keys)}": (WITH_TEST, keys) for keys in METHODS[:-1]},
        **{f"with gap, {label(keys)}": (WITH_GAP, keys) for keys in NCS},
    }
    tasks = [keys for keys in distinct(rows, "task") if keys]
    return [
        Table(
            f"Where each objective is lowest on the plane, {at_learner.n:,} tasks",
            ("lowest point of the objective", *metrics),
            tuple(pivot(whole, METHODS, metrics, lambda keys: NAMES[label(keys)], three)),
            "Mean over tasks ± 95 % interval. Change: of the learner's test loss. Share of oracle: "
            "of the change that the plane allows. At the edge: share of tasks whose lowest point "
            "is there. Correlations are over each plane. The train loss is lowest at the learner "
            f"itself in {100 * at_learner.value:.0f} % of tasks. Not finite: {lost.value:.0f}.",
        ),
        Table(
            "The tasks drawn",
            ("task", *columns),
            tuple(pivot(rows, tasks, columns.values(), "task {task}".format_map, three)),
            "Test loss where the objective is lowest, and correlations over the plane: with test "
            "loss, of train loss (none) or regularized loss (NC); with gap, of NC.",
        ),
    ]


def figures(outcome: Outcome) -> list[Drawing]:
    planes = {name: tensor.numpy() for name, tensor in outcome.tensors.items()}
    first = {name: plane[0] for name, plane in planes.items()}
    return [_contours(planes), *(_surfaces(first, head) for head in HEADS)]


def _panels(planes: dict[str, Plane], heads: Iterable[str]) -> list[list[Panel]]:
    """Returns the panels of one task, in the paper's order; those of a list share their scale."""
    # Scales are those of the true quantities: an NC that is far off shows as such. A learner fits
    # few images so well that its train loss would show nothing on any scale but its own.
    train, test, gap = planes["train loss"], planes["test loss"], planes["gap"]
    highest = max(np.quantile(train, SEEN_GAP), train.min() + 1e-9)
    of_train = {"norm": colors.Normalize(train.min(), highest), "cmap": "viridis"}
    of_test = {"norm": colors.Normalize(test.min(), np.quantile(test, SEEN)), "cmap": "viridis"}
    ends = np.quantile(gap, [1 - SEEN_GAP, SEEN_GAP])
    of_gap = {"norm": colors.Normalize(*ends), "cmap": "plasma"}
    gaps, losses = [("gap", gap, of_gap)], [("test loss", test, of_test)]
    for head in heads:
        gaps.append((f"NC, {head}", planes[f"NC, {head}"], of_gap))
        objective = planes[f"regularized loss, {head}"]
        losses.append((f"train loss + NC,\n{head}", objective, of_test))
    return [[("train loss", train, of_train)], gaps, losses]


def _contours(planes: dict[str, Plane]) -> Drawing:
    tasks, columns = len(planes["gap"]), 3 + 2 * len(HEADS)
    alpha, beta = planes["alpha"][0], planes["beta"][0]
    fine = {"colors": "white", "linewidths": 0.4, "alpha": 0.6}
    canvas = Canvas(figsize=(1.7 * columns, 0.8 + 1.45 * tasks), layout="constrained")
    axes = canvas.subplots(tasks, columns, sharex=True, sharey=True, squeeze=False)
    look: dict[str, Any] = {"extend": "both", "aspect": 12, "shrink": 0.68, "pad": 0.02}
    for b, line in enumerate(axes):
        free = iter(line)
        for group in _panels({name: plane[b] for name, plane in planes.items()}, HEADS):
            used = [next(free) for _ in group]
            for ax, (title, plane, scale) in zip(used, group, strict=True):
                levels = np.linspace(scale["norm"].vmin, scale["norm"].vmax, LEVELS + 1)
                ax.contourf(beta, alpha, plane, levels, extend="both", **scale)
                ax.contour(beta, alpha, plane, levels[::3], **fine)
                i, j = np.unravel_index(plane.argmin(), plane.shape)
                # Twice, so that they stand out from any colour; a minimum may lie on the edge.
                for width, color in ((2.2, "white"), (1.0, COLORS["target"])):
                    mark = {"mew": width, "color": color, "clip_on": False, "zorder": 5}
                    ax.plot(0, 0, "x", ms=5, **mark)
                    ax.plot(beta[j], alpha[i], "o", ms=6, mfc="none", **mark)
                ax.set(aspect="equal", xlim=beta[[0, -1]], ylim=alpha[[0, -1]], xlabel=r"$\beta$")
                ax.set(title="" if b else title, ylabel=f"task {b + 1}\n$\\alpha$")
                ax.label_outer()
                ax.grid(False)
            bar = canvas.colorbar(cm.ScalarMappable(**group[0][2]), ax=used, **look)
            bar.locator = ticker.MaxNLocator(4)
    caption = (
        "One task per row. Test and regularized loss share a scale, gap and NC another; what is "
        "beyond is cut off. Cross: the learner. Circle: the lowest point of the panel."
    )
    return Drawing("contours", canvas, "Visualization of loss surfaces", caption)


def _surfaces(planes: dict[str, Plane], head: str) -> Drawing:
    """Draws one task's planes as surfaces: train loss; gap over NC; test over regularized loss."""
    canvas = Canvas(figsize=(10.5, 7.0))
    edges = {"left": 0.0, "right": 0.95, "bottom": 0.05, "top": 0.95, "hspace": 0.5}
    grid = canvas.add_gridspec(4, 3, wspace=0.1, **edges)
    across, down = np.meshgrid(planes["beta"], planes["alpha"])
    look = {"rcount": 50, "ccount": 50, "linewidth": 0.1, "edgecolor": (0, 0, 0, 0.25)}
    dot = {"ms": 6, "mfc": "white", "mec": COLORS["target"], "zorder": 10}
    for column, group in enumerate(_panels(planes, [head])):
        for line, (title, plane, scale) in zip((0, 2) if column else (1,), group, strict=True):
            ax: Any = canvas.add_subplot(grid[line : line + 2, column], projection="3d")
            ends = scale["norm"].vmin, scale["norm"].vmax
            heights, centre = plane.clip(*ends), len(plane) // 2
            ax.plot_surface(across, down, heights, **scale, **look)
            ax.plot([0], [0], [heights[centre, centre]], "o", **dot)
            ax.set(xlabel=r"$\beta$", ylabel=r"$\alpha$", zlim=ends)
            ax.set_title(title.replace("\n", " "), y=1.04)
            ax.set_box_aspect(None, zoom=1.1)
            ax.view_init(elev=32, azim=-60)
    caption = "The first task, as in the paper's appendix, with the same scales. Dot: the learner."
    title = f"Loss surfaces in three dimensions, {head} head"
    return Drawing(f"surfaces-{head}", canvas, title, caption)


LEAD = (
    "Learners trained without NC until they converge are moved along two random directions, in "
    "which every filter moves by a multiple of its own length (Li et al., 2018). The paper says "
    "that minimizing the regularized loss, train loss + NC, moves them to lower test loss."
)
EXPERIMENT = Experiment(NAME, "Loss surfaces", LEAD, Config, PRESETS, run, tables, figures)
