"""Trials: learners of one image dataset, trained by minibatches and evaluated on their way."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from neural_complexity.experiments.base.experiment import Parts
from neural_complexity.experiments.base.image_methods import EmbeddedNC, Method
from neural_complexity.experiments.base.one_dataset import ImageConfig, ImageData
from neural_complexity.experiments.base.rows import Key, Row
from neural_complexity.experiments.base.training import Head
from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.learners.fit import Regularizer
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import cross_entropy, zero_one
from neural_complexity.meta.collect_splits import log_steps
from neural_complexity.meta.scores import (
    Estimate,
    correlation,
    estimate,
    mean_absolute_error,
    r_squared,
)
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap
from neural_complexity.task import Task
from neural_complexity.tasks.splits import Minibatches

__all__ = [
    "Results",
    "Runs",
    "Trial",
    "chunks",
    "draw_subsets",
    "fit_rows",
    "in_chunks",
    "join",
    "run_seed",
    "run_trial",
    "whole_dataset",
]

PART = 2000  # points that all learners predict at a time: bounds memory
SCORES = {"R2": r_squared, "correlation": correlation, "MAE": mean_absolute_error}
Results = dict[str, Tensor]  # of a trial, by what was measured


class Runs(NamedTuple):
    """Some of the learners that differ only by their seed."""

    first: int
    count: int


@dataclass(frozen=True)
class Trial:
    """B learners: what they learn from, how, and what they are evaluated on."""

    config: ImageConfig
    recipe: Recipe
    task: Task  # a regularizer sees its test inputs, without their labels
    evaluation: Task  # losses and gaps are measured on it
    seed: int  # decides the initial learners, the same for every method, and the order of points
    regularizer: Regularizer | None = None
    times: Sequence[int] = ()  # snapshot times in updates; the end is always one
    held: Task | None = None  # further test points on which the error is measured


def run_trial(
    trial: Trial, ncs: Mapping[Head, EmbeddedNC] | None = None, *, keep: bool = False
) -> Results:
    """Trains the learners of a trial by minibatches.

    Args:
        trial: The learners.
        ncs: NCs that predict their gaps.
        keep: Whether to keep the predictions at the points of evaluation.

    Returns:
        The snapshot times, `step`, and at each of them `loss_tr`, `loss_te`, `error`, `gap`,
        `error on held` and `predicted/HEAD`, (times, B) each; if kept, also `H_tr` and `H_te`,
        (times, B, points, C).
    """
    config, recipe, points, held = trial.config, trial.recipe, trial.evaluation, trial.held
    contexts = {head: nc.context(points) for head, nc in (ncs or {}).items()}
    seen: dict[str, list[Tensor]] = {}

    def visit(step: int, h: BatchedLearner) -> None:
        H_tr, H_te = _predict(h, points.X_tr), _predict(h, points.X_te)
        snapshot = Snapshot(points.X_tr, points.Y_tr, H_tr, points.X_te, H_te)
        found = {
            "step": torch.tensor(step),
            "loss_tr": cross_entropy(H_tr, points.Y_tr).mean(dim=1),
            "loss_te": cross_entropy(H_te, points.Y_te).mean(dim=1),
            "error": zero_one(H_te, points.Y_te).mean(dim=1),
            "gap": gap(cross_entropy, snapshot, points.Y_te),
        }
        if held is not None:
            found["error on held"] = zero_one(_predict(h, held.X_te), held.Y_te).mean(dim=1)
        if keep:
            found |= {"H_tr": H_tr, "H_te": H_te}
        for head, nc in (ncs or {}).items():
            found[f"predicted/{head}"] = nc.gaps(contexts[head], snapshot)
        for name, values in found.items():
            seen.setdefault(name, []).append(values)

    order = stream(trial.seed, "order").initial_seed()
    recipe.train(
        Minibatches(trial.task, M=config.batch, N=config.unlabelled_batch, seed=order),
        stream(trial.seed, "learners"),
        regularizer=trial.regularizer,
        schedule=partial(_ramp, config.ramp) if config.ramp else None,
        visit=visit,
        visits={*trial.times, recipe.steps},
    )
    return {name: torch.stack(values) for name, values in seen.items()}


@torch.no_grad()
def _predict(h: BatchedLearner, X: Tensor) -> Tensor:
    """Returns predictions on many points, (B, n, C)."""
    return torch.cat([h(part) for part in X.split(PART, dim=1)], dim=1)


def _ramp(ramp: float, progress: float) -> float:
    return min(1.0, progress / ramp)


def whole_dataset(
    data: ImageData,
    method: Method,
    runs: Runs,
    ncs: Mapping[Head, EmbeddedNC],
    recipe: Recipe | None = None,
) -> Trial:
    """Returns learners of the whole dataset, evaluated on the test images.

    Args:
        data: The dataset.
        method: One of `NC_METHODS`, or any other without a regularizer.
        runs: Which of the learners.
        ncs: NCs by head.
        recipe: How they learn, if not as the config says.
    """
    config, recipe = data.config, recipe or data.recipe()
    inductive = method.inputs == "inductive"
    train, test = (data.pool, data.held) if inductive else (data.train, data.test)
    task = data.task(train, test, runs.count)
    return Trial(
        config,
        recipe,
        task,
        # The training loss is that of images that the learner learns from, not of held-out ones.
        data.task(train[: config.judged], data.test, runs.count),
        run_seed(config, runs),
        None if method.head is None else ncs[method.head].penalty(task),
        log_steps(recipe.steps, config.looks),
    )


def run_seed(config: ImageConfig, runs: Runs) -> int:
    """Returns the seed of learners of the whole dataset, the same for every method."""
    return stream(config.seed, "runs", runs.first).initial_seed()


def draw_subsets(
    data: ImageData, source: Tensor, test: Tensor, size: int, runs: int, generator: torch.Generator
) -> tuple[Task, Task]:
    """Draws tasks with random training sets: what learners learn from, and are evaluated on.

    Args:
        data: The dataset.
        source: Indices of the images to draw from.
        test: Indices of the test images.
        size: Training images of each.
        runs: How many tasks.
        generator: The source of randomness, on the CPU.
    """
    if size > len(source):
        raise ValueError(f"sizes must be at most the {len(source)} images there are, got {size}")
    keys = torch.rand(runs, len(source), generator=generator)
    chosen = source[keys.topk(size, dim=1).indices.to(source.device)]
    judged = chosen[:, : data.config.judged]
    return data.task(chosen, test, runs), data.task(judged, test, runs)


def chunks(config: ImageConfig, runs: int) -> list[Runs]:
    """Returns which learners are trained together.

    Convolutions of several learners are faster one by one, products of matrices at once.
    """
    if config.learner == "MLP":
        return [Runs(0, runs)]
    return [Runs(run, 1) for run in range(runs)]


def in_chunks(
    config: ImageConfig, parts: Parts, name: str, train: Callable[[Runs], Results]
) -> Results:
    """Trains `config.runs` learners, in one part of the run or in several, and joins the results."""
    together = chunks(config, config.runs)
    return join(
        [
            parts.do(f"{name}, run {runs.first}" if len(together) > 1 else name, partial(train, runs))
            for runs in together
        ]
    )


def join(results: Sequence[Results]) -> Results:
    """Joins the results of trials of the same snapshot times."""
    return {
        key: torch.cat([r[key] for r in results], dim=1) if key != "step" else results[0][key]
        for key in results[0]
    }


def fit_rows(
    make: Callable[..., Row],
    head: Head,
    results: Sequence[Results],
    *,
    independent: bool = True,
    **keys: Key,
) -> list[Row]:
    """Returns how well an NC predicts the gap, at the end of training and all the way.

    Args:
        make: Makes a row, see `make_row`.
        head: Which NC.
        results: Of trials.
        independent: Whether the learners are: else there is no interval.
        keys: Further keys of the rows.
    """
    rows = []
    for snapshots, times in (("endpoints", slice(-1, None)), ("all the way", slice(1, None))):
        predicted, true = (
            torch.cat([result[key][times].flatten() for result in results])
            for key in (f"predicted/{head}", "gap")
        )
        for metric, score in SCORES.items():
            value = estimate(score, predicted, true)
            if snapshots != "endpoints" or not independent:  # a learner's snapshots never are
                value = Estimate(value.value, None, value.n)
            rows.append(make(metric, value, method="NC", head=head, **keys, snapshots=snapshots))
    return rows
