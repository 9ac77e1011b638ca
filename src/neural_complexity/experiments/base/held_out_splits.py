"""Held-out splits of one image dataset, on whose learners NC is scored."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from neural_complexity import ledger
from neural_complexity.assessment.drawing import COLORS
from neural_complexity.assessment.tables import Table
from neural_complexity.experiments.base.experiment import Parts
from neural_complexity.experiments.base.image_learners import (
    FITS,
    EmbeddedNC,
    Results,
    Runs,
    Trial,
    chunks,
    draw_subsets,
    fit_rows,
    in_chunks,
    run_trial,
)
from neural_complexity.experiments.base.image_report import fit_cells
from neural_complexity.experiments.base.one_dataset import ImageData, collections
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.saved_networks import HEADS
from neural_complexity.experiments.base.table_views import select
from neural_complexity.experiments.base.training import Head, Setup, train_network
from neural_complexity.meta.collect import log_steps
from neural_complexity.meta.scores import estimate, estimate_mean, mean_absolute_error, r_squared
from neural_complexity.meta.trainer import Status
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import Embeddings
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.images import moved
from neural_complexity.workspace import Workspace

__all__ = [
    "BY_SIZE",
    "HeldOutSplit",
    "draw_gap_fits",
    "draw_split",
    "fit_table",
    "size_table",
    "split_rows",
    "train_ncs",
    "train_splits",
]

SNAPSHOTS = 5
UNITS = 2048  # images that NC takes its units from
BY_SIZE = ("gap", "predicted gap", "MAE within a size")


@dataclass(frozen=True)
class HeldOutSplit:
    """Splits of one size, whose validation images no NC is trained on."""

    data: ImageData
    size: int
    task: Task  # what learners learn from
    evaluation: Task

    def train(self, steps: int, nc: EmbeddedNC | None, runs: Runs) -> Results:
        """Trains some learners, plain or regularized by an NC, and keeps their predictions."""
        rows = slice(runs.first, runs.first + runs.size)
        first = [runs.first] if runs.size < len(self.task) else []
        config, task = self.data.config, self.task[rows]
        trial = Trial(
            config,
            replace(self.data.recipe(), steps=steps),
            task,
            self.evaluation[rows],
            stream(config.seed, "splits", self.size, *first).initial_seed(),
            None if nc is None else nc.penalty(nc.encoder(task)),
            log_steps(steps, SNAPSHOTS),
        )
        with ledger.choosing():  # NC and strengths are chosen on these images
            return run_trial(trial, keep=True)

    def gaps(self, nc: EmbeddedNC, results: Results) -> Tensor:
        """Predicts the gaps of learners that `train` trained, (times, B)."""
        points, encoder = self.evaluation, nc.encoder(self.evaluation)
        H_tr, H_te = (results[name].to(points.Y_tr.device) for name in ("H_tr", "H_te"))
        gaps = [
            nc.gaps(encoder, Snapshot(points.X_tr, points.Y_tr, tr, points.X_te, te))
            for tr, te in zip(H_tr, H_te, strict=True)
        ]
        return torch.stack(gaps).cpu()

    def with_gaps(self, ncs: Mapping[Head, EmbeddedNC], results: Results) -> Results:
        """Returns results of `train` with predicted gaps in the place of predictions."""
        own = {f"predicted/{head}": self.gaps(nc, results) for head, nc in ncs.items()}
        return {k: t for k, t in results.items() if k not in ("H_tr", "H_te")} | own


def draw_split(data: ImageData, size: int) -> HeldOutSplit:
    """Draws splits with training sets of one size."""
    generator = stream(data.config.seed, "sizes", size)
    tasks = draw_subsets(data, data.pool, data.held, size, data.config.eval_tasks, generator)
    return HeldOutSplit(data, size, *tasks)


def train_splits(
    parts: Parts,
    splits: Mapping[int, HeldOutSplit],
    steps: int,
    name: str,
    nc: EmbeddedNC | None = None,
) -> dict[int, Results]:
    """Trains learners on splits of each size, plain or regularized by an NC."""
    found = {}
    for size, split in splits.items():
        together = chunks(split.data.config, len(split.task))
        train = partial(split.train, steps, nc)
        found[size] = in_chunks(parts, f"splits of {size}, {name}", together, train)
    return found


def train_ncs(
    splits: Mapping[int, HeldOutSplit],
    plain: Mapping[int, Results],
    data: ImageData,
    work: Workspace,
    callback: ProgressCallback | None,
) -> tuple[dict[Head, EmbeddedNC], dict[str, list[Status]]]:
    """Meta-trains an NC with each head, scored on the plain learners of held-out splits.

    The second one may take over the first one's image encoder.
    """
    config = data.config
    ncs: dict[Head, EmbeddedNC] = {}
    history: dict[str, list[Status]] = {}
    for head in HEADS:
        first, training = (
            ncs.get("posterior") if config.share_images else None,
            config.training(head),
        )
        embeddings = None if first is None else first.embeddings
        moves = training.shift or training.flip
        with collections(config, head, work) as queue:
            setup = Setup(
                family=data.splits(head),
                recipe=data.recipe(),
                seed=config.seed,
                device=config.device,
                images_from=None if first is None else first.nc,
                embeddings=embeddings,
                augment=partial(moved, pixels=training.shift, flip=training.flip)
                if moves
                else None,
                units=max(1, UNITS // training.M),
                collections=queue,
            )
            score = partial(_validate, splits, plain, embeddings)
            nc, history[head] = train_network(training, head, setup, work, callback, validate=score)
        ncs[head] = EmbeddedNC.of(nc, data, embeddings=embeddings)
    return ncs, history


def _validate(
    splits: Mapping[int, HeldOutSplit],
    plain: Mapping[int, Results],
    embeddings: Embeddings | None,
    nc: NeuralComplexity,
) -> float:
    """Returns R2 of NC's predicted gaps at the endpoints of plain learners."""
    tasks = [split.evaluation for split in splits.values()]
    own = EmbeddedNC.of(nc, splits[min(splits)].data, tasks=tasks, embeddings=embeddings)
    ends = {size: {name: t[-1:] for name, t in result.items()} for size, result in plain.items()}
    predicted = [splits[size].gaps(own, end)[0] for size, end in ends.items()]
    true = [end["gap"][0] for end in ends.values()]
    return r_squared(torch.cat(predicted), torch.cat(true)).item()


def split_rows(
    make: Callable[..., Row], results: Mapping[int, Results], learners: str
) -> list[Row]:
    """Returns how well each NC predicts the gap on held-out splits, of all sizes and of each."""
    rows = []
    for head in HEADS:
        keys: dict[str, Any] = {"images": "held-out splits", "learners": learners}
        rows += fit_rows(make, head, list(results.values()), **keys)
        for size, result in results.items():
            own, true = result[f"predicted/{head}"][-1], result["gap"][-1]
            error = estimate(mean_absolute_error, own, true)
            for metric, value in zip(
                BY_SIZE, (estimate_mean(true), estimate_mean(own), error), strict=True
            ):
                more = {**keys, "size": size, "snapshots": "endpoints"}
                rows.append(make(metric, value, method="NC", head=head, **more))
    return rows


def _learners(row: Row) -> str:
    """Names the NC and the learners of a row on predicted gaps."""
    size = f" of {row.keys['size']}" if "size" in row.keys else ""
    names = [f"{row.keys['images']}{size}", row.keys.get("learners"), row.keys["snapshots"]]
    return f"NC {row.keys['head']}; {', '.join(str(name) for name in names if name is not None)}"


def fit_table(rows: list[Row]) -> Table:
    """Returns the table of how well NC predicts the gap, on held-out splits and test images."""
    return Table(
        "Predicted against true gap",
        ("gap predictor; learners", "learners", *FITS),
        tuple((_learners(row), *fit_cells(rows, row)) for row in select(rows, "R2")),
        "Value ± 95 % interval over learners, for these images: all of a kind are judged on the "
        "same ones. Held-out splits: learners of training sets of several sizes, all sizes "
        "together, plain or regularized by the posterior head on the images that they are then "
        "judged on (transductive), which no NC was trained on. Test images: the learners of the "
        "table above, all methods together, transductive ones among them. Endpoints: after the "
        "last step; all the way: at every snapshot but the one before the first step. Snapshots "
        "of one learner, and learners that started alike, depend on each other, so there is no "
        "interval. R2 is the coefficient of determination.",
    )


def size_table(rows: list[Row]) -> Table:
    """Returns the table of predicted and true gaps by size."""
    return Table(
        "Predicted and true gap by the size of the training set",
        ("gap predictor; learners", "learners", *BY_SIZE),
        tuple((_learners(row), *fit_cells(rows, row, BY_SIZE)) for row in select(rows, BY_SIZE[0])),
        "Value ± 95 % interval over learners, for these images. Learners of one size have nearly "
        "one gap, so that R2 over all sizes says how well NC tells sizes apart, and the mean "
        "absolute error how far it is off.",
    )


def draw_gap_fits(tensors: Mapping[str, Tensor], sizes: list[int]) -> Canvas:
    """Draws predicted against true gaps, by head and by learners, from what `single` keeps."""
    kinds = {"plain": "plain learners", "with NC posterior": "with NC posterior"}
    shades = mpl.colormaps["viridis"](np.linspace(0.0, 0.85, len(sizes)))
    canvas = Canvas(figsize=(7.6, 6.6), layout="constrained")
    axes = canvas.subplots(len(HEADS), len(kinds))
    for line, head in zip(axes, HEADS, strict=True):
        for ax, (kind, title) in zip(line, kinds.items(), strict=True):
            pairs = []
            for size, shade in zip(sizes, shades, strict=True):
                true = tensors[f"splits/{size}/{kind}/gap"]
                predicted = tensors[f"splits/{size}/{kind}/predicted/{head}"]
                _draw_gaps(ax, true, predicted, shade, label=f"{size:,} training images")
                pairs.append((predicted[-1], true[-1]))
            own, true = (torch.cat(column) for column in zip(*pairs, strict=True))
            ax.axline((0, 0), slope=1, color=COLORS["target"], lw=0.8)
            ax.set_title(f"{head} head, {title}: R2 = {r_squared(own, true).item():.3f}")
            ax.set(xlabel="true gap", ylabel="predicted gap")
    handles = axes[0, 0].get_legend_handles_labels()
    canvas.legend(*handles, loc="outside lower center", ncols=len(sizes))
    return canvas


def _draw_gaps(ax: Axes, true: Tensor, predicted: Tensor, color: object, label: str) -> None:
    """Draws predicted against true gaps of learners, (times, B), the last ones large."""
    pairs = ((slice(1, -1), 2.5, 0.35, None), (slice(-1, None), 5.0, 0.9, label))
    for times, size, alpha, name in pairs:
        columns = (true[times].flatten(), predicted[times].flatten())
        ax.plot(*columns, "o", ms=size, alpha=alpha, mew=0, color=color, label=name)
