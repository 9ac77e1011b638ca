"""Held-out splits of one image dataset, on whose learners NC is scored."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from neural_complexity import ledger
from neural_complexity.assessment.drawing import COLORS
from neural_complexity.assessment.tables import Table
from neural_complexity.experiments.base.experiment import Drawing, Outcome, Parts
from neural_complexity.experiments.base.image_learners import (
    EmbeddedNC,
    Results,
    Trial,
    chunks,
    draw_subsets,
    in_chunks,
    run_trial,
)
from neural_complexity.experiments.base.image_report import FITS, fit_cells, fit_rows
from neural_complexity.experiments.base.one_dataset import ImageData, collections
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.saved_networks import HEADS
from neural_complexity.experiments.base.table_views import distinct, select
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

__all__ = ["HeldOutSplits", "draw_gap_fits", "gap_tables", "split_rows"]

SNAPSHOTS = 5
UNITS = 2048  # images that NC takes its units from
BY_SIZE = ("gap", "predicted gap", "MAE within a size")


@dataclass(frozen=True)
class HeldOutSplits:
    """Splits whose validation images no NC is trained on."""

    data: ImageData
    steps: int  # updates of their learners
    tasks: Mapping[int, tuple[Task, Task]]  # by size: to learn from, and to be evaluated on

    @classmethod
    def draw(cls, data: ImageData, sizes: Iterable[int], steps: int) -> "HeldOutSplits":
        """Draws splits with training sets of each size."""
        seed, source = data.config.seed, (data.pool, data.held)
        runs, tasks = data.config.eval_tasks, {}
        for size in sizes:
            tasks[size] = draw_subsets(data, *source, size, runs, stream(seed, "sizes", size))
        return cls(data, steps, tasks)

    def train(self, parts: Parts, name: str, nc: EmbeddedNC | None = None) -> dict[int, Results]:
        """Trains learners by size, plain or regularized by an NC, and keeps their predictions."""
        config, recipe = self.data.config, replace(self.data.recipe(), steps=self.steps)
        together = chunks(config, config.eval_tasks)

        def train(size: int, runs: range) -> Results:
            task, evaluation = (tasks[runs.start : runs.stop] for tasks in self.tasks[size])
            first = [runs.start] if len(together) > 1 else []
            seed = stream(config.seed, "splits", size, *first).initial_seed()
            penalty = None if nc is None else nc.penalty(nc.encoder(task))
            times = log_steps(self.steps, SNAPSHOTS)
            with ledger.choosing():  # NC and strengths are chosen on these images
                trial = Trial(config, recipe, task, evaluation, seed, penalty, times)
                return run_trial(trial, keep=True)

        return {
            size: in_chunks(parts, f"splits of {size}, {name}", together, partial(train, size))
            for size in self.tasks
        }

    def gaps(self, nc: EmbeddedNC, size: int, results: Results) -> Tensor:
        """Predicts the gaps of learners that `train` trained, (times, B)."""
        points = self.tasks[size][1]
        encoder = nc.encoder(points)
        H_tr, H_te = (results[name].to(points.Y_tr.device) for name in ("H_tr", "H_te"))
        gaps = [
            nc.gaps(encoder, Snapshot(points.X_tr, points.Y_tr, tr, points.X_te, te))
            for tr, te in zip(H_tr, H_te, strict=True)
        ]
        return torch.stack(gaps).cpu()

    def with_gaps(
        self, ncs: Mapping[Head, EmbeddedNC], results: Mapping[int, Results]
    ) -> dict[int, Results]:
        """Returns results of `train` with predicted gaps in the place of predictions."""
        found = {}
        for size, result in results.items():
            own = {f"predicted/{head}": self.gaps(nc, size, result) for head, nc in ncs.items()}
            found[size] = {k: t for k, t in result.items() if k not in ("H_tr", "H_te")} | own
        return found

    def score(
        self, plain: Mapping[int, Results], known: Embeddings | None, nc: NeuralComplexity
    ) -> float:
        """Returns R2 of NC's predicted gaps at the endpoints of plain learners."""
        own = EmbeddedNC.of(nc, self.data, known, *(task for _, task in self.tasks.values()))
        ends = {size: {k: t[-1:] for k, t in result.items()} for size, result in plain.items()}
        predicted = [self.gaps(own, size, end)[0] for size, end in ends.items()]
        true = [end["gap"][0] for end in ends.values()]
        return r_squared(torch.cat(predicted), torch.cat(true)).item()

    def train_ncs(
        self, plain: Mapping[int, Results], work: Workspace, callback: ProgressCallback | None
    ) -> tuple[dict[Head, EmbeddedNC], dict[str, list[Status]]]:
        """Meta-trains an NC with each head, scored on the plain learners.

        The second one may take over the first one's image encoder.
        """
        data, config = self.data, self.data.config
        ncs: dict[Head, EmbeddedNC] = {}
        history: dict[str, list[Status]] = {}
        for head in HEADS:
            training = getattr(config, head)
            first = ncs.get("posterior") if config.share_images else None
            known = None if first is None else first.embeddings
            moves = partial(moved, pixels=training.shift, flip=training.flip)
            with collections(config, head, work) as queue:
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
            ncs[head] = EmbeddedNC.of(nc, data, known)
        return ncs, history


def split_rows(
    make: Callable[..., Row], results: Mapping[int, Results], learners: str
) -> list[Row]:
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

    def lines(metrics: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        made = []
        for row in select(rows, metrics[0]):
            keys = row.keys
            size = f" of {keys['size']}" if "size" in keys else ""
            names = [f"{keys['images']}{size}", keys.get("learners"), keys["snapshots"]]
            learners = ", ".join(str(name) for name in names if name is not None)
            made.append((f"NC {keys['head']}; {learners}", *fit_cells(rows, row, metrics)))
        return tuple(made)

    header = ("gap predictor; learners", "learners")
    return [
        Table(
            "Predicted against true gap",
            (*header, *FITS),
            lines(tuple(FITS)),
            "Value ± 95 % interval over learners, for these images: all of a kind are judged on "
            "the same ones. Held-out splits: learners of training sets of several sizes, all sizes "
            "together, plain or regularized by the posterior head on the images that they are then "
            "judged on (transductive), which no NC was trained on. Test images: the learners of "
            "the table above, all methods together, transductive ones among them. Endpoints: after "
            "the last step; all the way: at every snapshot but the one before the first step. "
            "Snapshots of one learner, and learners that started alike, depend on each other, so "
            "there is no interval. R2 is the coefficient of determination.",
        ),
        Table(
            "Predicted and true gap by the size of the training set",
            (*header, *BY_SIZE),
            lines(BY_SIZE),
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
