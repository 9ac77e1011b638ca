"""Held-out splits of one image dataset, on whose learners NC is scored."""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure as Canvas

from neural_complexity import ledger
from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.experiments.base import image_learners as images
from neural_complexity.experiments.base.experiment import Drawing, Outcome, Parts
from neural_complexity.experiments.base.image_learners import EmbeddedNC, Results
from neural_complexity.experiments.base.image_report import FITS, Make, fit_lines, fit_rows
from neural_complexity.experiments.base.one_dataset import ImageData, collect
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.saved_networks import HEADS
from neural_complexity.experiments.base.table_views import distinct, select
from neural_complexity.experiments.base.training import Head, Setup, train_network
from neural_complexity.meta.collect import log_steps
from neural_complexity.meta.executor import CollectionQueue, process_pool
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

__all__ = ["HeldOutSplits", "draw_gap_fits", "gap_tables", "split_rows"]

SNAPSHOTS = 5
UNITS = 2048  # images that NC takes its units from
BySize = dict[int, Results]
BY_SIZE = ("gap", "predicted gap", "MAE within a size")


class HeldOutSplits:
    """Splits by the size of their training set, whose validation images no NC is trained on."""

    def __init__(self, data: ImageData, sizes: Iterable[int], steps: int) -> None:
        self.data, self.steps, config = data, steps, data.config
        self.tasks: dict[int, tuple[Task, Task]] = {}  # to learn from, and to be evaluated on
        for size in sizes:
            drawn = (data.pool, data.held, size, config.eval_tasks)
            self.tasks[size] = images.draw_subsets(data, *drawn, stream(config.seed, "sizes", size))

    def train(self, parts: Parts, name: str, nc: EmbeddedNC | None = None) -> BySize:
        """Trains learners by size, plain or regularized by an NC, and keeps their predictions."""
        config, recipe = self.data.config, replace(self.data.recipe(), steps=self.steps)
        together = images.chunks(config, config.eval_tasks)

        def train(size: int, runs: range) -> Results:
            task, evaluation = (tasks[runs.start : runs.stop] for tasks in self.tasks[size])
            first = [runs.start] if len(together) > 1 else []
            seed = stream(config.seed, "splits", size, *first).initial_seed()
            penalty = None if nc is None else nc.penalty(nc.encoder(task))
            times = log_steps(self.steps, SNAPSHOTS)
            with ledger.choosing():  # NC and strengths are chosen on these images
                trial = images.Trial(config, recipe, task, evaluation, seed, penalty, times)
                return images.run_trial(trial, keep=True)

        return {
            size: images.in_chunks(
                parts, f"splits of {size}, {name}", together, partial(train, size)
            )
            for size in self.tasks
        }

    def with_gaps(self, results: BySize, *ncs: EmbeddedNC) -> BySize:
        """Returns results of `train` with predicted gaps in the place of predictions."""
        found = {}
        for size, result in results.items():
            points = self.tasks[size][1]
            found[size] = {k: t for k, t in result.items() if k not in ("H_tr", "H_te")}
            H = [result[name].to(points.Y_tr.device) for name in ("H_tr", "H_te")]
            for nc in ncs:
                encoder = nc.encoder(points)
                gaps = [
                    nc.gaps(encoder, Snapshot(points.X_tr, points.Y_tr, H_tr, points.X_te, H_te))
                    for H_tr, H_te in zip(*H, strict=True)
                ]
                found[size][f"predicted/{nc.nc.head.name}"] = torch.stack(gaps).cpu()  # (times, B)
        return found

    def score(self, plain: BySize, known: Embeddings | None, nc: NeuralComplexity) -> float:
        """Returns R2 of NC's predicted gaps at the endpoints of plain learners."""
        own = EmbeddedNC(nc, self.data, known, *(task for _, task in self.tasks.values()))
        ends = {size: {k: t[-1:] for k, t in result.items()} for size, result in plain.items()}
        found = self.with_gaps(ends, own).values()
        names = (f"predicted/{nc.head.name}", "gap")
        return r_squared(*(torch.cat([r[name][0] for r in found]) for name in names)).item()

    def train_ncs(
        self, plain: BySize, work: Workspace, callback: ProgressCallback | None
    ) -> tuple[dict[Head, EmbeddedNC], dict[str, list[Status]]]:
        """Meta-trains an NC with each head, scored on plain learners; they may share an encoder."""
        data, config = self.data, self.data.config
        ncs: dict[Head, EmbeddedNC] = {}
        history: dict[str, list[Status]] = {}
        for head in HEADS:
            training = getattr(config, head)
            first = ncs.get("posterior") if config.share_images else None
            known = None if first is None else first.embeddings
            moves = partial(moved, pixels=training.shift, flip=training.flip)
            pool = process_pool(config.workers) if config.workers else nullcontext()
            jobs, folder = partial(collect, config, head), work.path(f"collections for {head}")
            with pool as executor, CollectionQueue(jobs, executor, folder=folder) as queue:
                setup = Setup(
                    family=data.splits(head),
                    recipe=data.recipe(),
                    seed=config.seed,
                    device=config.device,
                    images_from=None if first is None else first.nc,
                    embeddings=known,
                    augment=moves if training.shift or training.flip else None,
                    units=max(1, UNITS // training.M),
                    collections=queue,
                )
                score = partial(self.score, plain, known)
                nc, history[head] = train_network(
                    training, head, setup, work, callback, validate=score
                )
            ncs[head] = EmbeddedNC(nc, data, known)
        return ncs, history


def split_rows(make: Make, results: BySize, learners: str) -> list[Row]:
    """Returns how well each NC predicts the gap on held-out splits, of all sizes and of each."""
    rows = []
    for head in HEADS:
        keys: dict[str, Any] = {"images": "held-out splits", "learners": learners}
        rows += fit_rows(make, head, results.values(), **keys)
        for size, result in results.items():
            own, true = result[f"predicted/{head}"][-1], result["gap"][-1]
            error = estimate(mean_absolute_error, own, true)
            more = {**keys, "size": size, "snapshots": "endpoints"}
            values = (estimate_mean(true), estimate_mean(own), error)
            for metric, value in zip(BY_SIZE, values, strict=True):
                rows.append(make(metric, value, method="NC", head=head, **more))
    return rows


def gap_tables(rows: list[Row]) -> list[Table]:
    """Returns how well NC predicts the gap on held-out splits and test images, and by size."""
    header = ("gap predictor; learners", "learners")
    return [
        Table(
            "Predicted against true gap",
            (*header, *FITS),
            fit_lines(rows),
            "Value ± 95 % interval over learners, for these images: all of a kind are judged on "
            "the same ones. Held-out splits: learners of training sets of all sizes, plain or "
            "regularized by the posterior head on the images that they are judged on, which no NC "
            "was trained on. Test images: the learners of the table above, all methods together, "
            "transductive ones among them. Endpoints: after the last step; all the way: at every "
            "snapshot but that before the first step. Snapshots of one learner, and learners that "
            "started alike, depend on each other: no interval. R2 is the coefficient of "
            "determination.",
        ),
        Table(
            "Predicted and true gap by the size of the training set",
            (*header, *BY_SIZE),
            fit_lines(rows, BY_SIZE),
            "Value ± 95 % interval over learners, for these images. Learners of one size have "
            "nearly one gap, so that R2 over all sizes says how well NC tells sizes apart, and the "
            "mean absolute error how far it is off.",
        ),
    ]


def draw_gap_fits(outcome: Outcome) -> Drawing:
    """Draws predicted against true gaps, by head and by learners, the last ones large."""
    tensors, kinds = outcome.tensors, ("plain", "with NC posterior")
    sizes = [int(keys["size"]) for keys in distinct(select(outcome.rows, BY_SIZE[0]), "size")]
    shades = mpl.colormaps["viridis"](np.linspace(0.0, 0.85, len(sizes)))
    canvas = Canvas(figsize=(7.6, 6.6), layout="constrained")
    axes = canvas.subplots(len(HEADS), len(kinds))
    for line, head in zip(axes, HEADS, strict=True):
        for ax, kind in zip(line, kinds, strict=True):
            ends = []
            for size, shade in zip(sizes, shades, strict=True):
                names = ("gap", f"predicted/{head}")
                pair = torch.stack([tensors[f"splits/{size}/{kind}/{name}"] for name in names])
                look = {"color": shade, "mew": 0}
                ax.plot(*pair[:, 1:-1].flatten(1), "o", ms=2.5, alpha=0.35, **look)
                label = f"{size:,} training images"
                ax.plot(*pair[:, -1], "o", ms=5.0, alpha=0.9, **look, label=label)
                ends.append(pair[:, -1])  # (2, B)
            true, own = torch.cat(ends, dim=1)
            title = "plain learners" if kind == "plain" else kind
            ax.axline((0, 0), slope=1, color=COLORS["target"], lw=0.8)
            ax.set_title(f"{head} head, {title}: R2 = {r_squared(own, true).item():.3f}")
            ax.set(xlabel="true gap", ylabel="predicted gap")
    handles = axes[0, 0].get_legend_handles_labels()
    canvas.legend(*handles, loc="outside lower center", ncols=len(sizes))
    return Drawing(
        "gap-fit",
        canvas,
        "Predicted against true gap on held-out splits",
        "Large dots: learners after their last step, to which R2 belongs; small dots: on their "
        "way. Left: plain learners. Right: learners regularized by the posterior head.",
    )
