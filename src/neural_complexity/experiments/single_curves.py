"""Section 4.4, "Regularization Performance": learning curves with and without NC on one dataset."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from neural_complexity.assessment.report import Table
from neural_complexity.experiments import single
from neural_complexity.experiments.base import image_learners as images
from neural_complexity.experiments.base import image_report as report
from neural_complexity.experiments.base.experiment import Experiment, Outcome, Parts
from neural_complexity.experiments.base.one_dataset import SingleNetworksConfig
from neural_complexity.experiments.base.rows import Row, distinct, find, select, show
from neural_complexity.meta.scores import count, estimate_over_seeds
from neural_complexity.progress import ProgressCallback
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME, TITLE = "single_curves", "Learning curves on one dataset"


@dataclass(frozen=True, kw_only=True)
class Config(SingleNetworksConfig):
    """Learners with and without NC at many snapshot times, and plain ones that learn for longer."""

    long_steps: int = 60_000  # Updates of the learner that is trained until it has converged.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.long_steps < self.steps:
            raise ValueError(f"long_steps must be at least {self.steps}, got {self.long_steps}")


PAPER = {"dataset": "kmnist", "looks": 48, "long_steps": 300_000}
PRESETS = {
    "smoke": partial(Config.like, single.PRESETS["smoke"], looks=6, long_steps=40),
    "cpu": partial(Config.like, single.PRESETS["small"], looks=24, runs=3, long_steps=4500),
    "paper": partial(Config.like, single.PRESETS["paper"], **PAPER),
}


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Trains learners with each NC and without, and a plain one for longer."""
    data, ncs = images.load_ncs(config)
    methods = (images.PLAIN, images.LONG, *images.NC_METHODS)
    parts = Parts(work, len(methods) * len(config.chunks(config.runs)), callback)
    recipes = {images.LONG: replace(data.recipe(), steps=config.long_steps)}
    found = images.WholeDataset(data, ncs, recipes).train(parts, methods)
    rows = []
    for method, result in found.items():
        times = reported(result["step"])
        for time in times[-1:] if method == images.LONG else times:
            step = int(result["step"][time])
            row = partial(Row.of, NAME, config.seed, **method.keys, step=step)
            rows += report.learner_rows(row, result, time)
    rows += _reach_rows(config, found) + report.reference_rows(config.networks, NAME)
    tensors = {f"{m.label}/{k}": t for m, result in found.items() for k, t in result.items()}
    return Outcome(rows, tensors, facts=parts.facts({h: nc.nc for h, nc in ncs.items()}))


def reported(steps: torch.Tensor) -> list[int]:
    """Returns the places of the snapshot times that rows are made of: up to four, not the first."""
    last = len(steps) - 1
    return sorted({last, last * 3 // 4, last // 2, last // 4} - {0})


def _reach_rows(config: Config, found: dict[images.ImageMethod, images.Results]) -> list[Row]:
    """After how many steps learners are as good as plain ones are at their end, on average."""
    rows = []
    for goal in (images.PLAIN, images.LONG):
        level = found[goal]["error"][-1].mean()
        aim: dict[str, Any] = {"goal": goal.label, "goal_step": int(found[goal]["step"][-1])}
        for method in (m for m in found if m != images.LONG):
            result = found[method]
            there = result["error"] <= level  # (times, runs)
            row = partial(Row.of, NAME, config.seed, **method.keys, **aim)
            rows.append(row("runs as good", count(there.any(dim=0))))
            if there.any(dim=0).all():  # else there is no mean
                first = result["step"][there.to(torch.uint8).argmax(dim=0)]
                rows.append(row("first step as good", estimate_over_seeds(first)))
    return rows


def tables(rows: list[Row]) -> list[Table]:
    """Returns the tables of accuracies and losses by step, and of who is faster."""
    found = [row for row in select(rows, "accuracy") if "step" in row.keys]
    steps = sorted({int(row.keys["step"]) for row in found})
    runs, header = found[0].n, ("method", *(f"{step} steps" for step in steps))
    methods = dict.fromkeys(images.ImageMethod.of(row) for row in found)
    made = []
    for metric, digits in (("accuracy", 2), ("test loss", 3), ("train loss", 3)):
        title = metric.capitalize() + (" in % on the test images" if digits == 2 else "")
        lines = [
            (m.label, *(show(find(rows, metric, **m.keys, step=step), digits) for step in steps))
            for m in methods
        ]
        note = f"Value ± 95 % interval over {runs} runs."
        made.append(Table(f"{title} after learner steps", header, tuple(lines), note))
    lines = []
    goals = distinct(select(rows, "runs as good"), "goal", "goal_step")
    for method in (m for m in methods if m != images.LONG):
        cells = []
        for goal in goals:
            (good,) = select(rows, "runs as good", **method.keys, **goal)
            first = find(rows, "first step as good", **method.keys, **goal)
            cells.append(show(first, 0) if first else f"{good.value:.0f} of {runs} runs get there")
        lines.append((method.label, *cells))
    header = ("method", *(f"{goal['goal']}, {goal['goal_step']} steps" for goal in goals))
    title = "First step at which a learner is as good as the plain one at its end"
    note = (
        f"By the test error, against its mean over runs. Value ± 95 % interval over {runs} runs "
        "of the first snapshot at which a run is as good; snapshots are evenly spaced in the "
        "logarithm of the step. Test errors go up and down a little: the first snapshot flatters "
        "all methods alike."
    )
    return [*made, Table(title, header, tuple(lines), note), report.reference_table(rows)]


LEAD = (
    "Learners of all training images with and without NC, from the same initial weights, on "
    "their way. " + report.MODES + "The paper gives a figure of this, but no numbers."
)
EXPERIMENT = Experiment(NAME, TITLE, LEAD, Config, PRESETS, run, tables, report.draw_curves)
