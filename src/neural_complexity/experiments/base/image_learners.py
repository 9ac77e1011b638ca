"""Learners of one image dataset: their methods, NC's view of them, and their training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import SGD

from neural_complexity import ledger
from neural_complexity.experiments.base.experiment import Parts
from neural_complexity.experiments.base.one_dataset import ImageConfig, ImageData
from neural_complexity.experiments.base.rows import Key, Row
from neural_complexity.experiments.base.saved_networks import HEADS
from neural_complexity.experiments.base.training import Head
from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.learners.fit import Recipe, Regularizer, mixup
from neural_complexity.losses import SmoothedCrossEntropy, cross_entropy, zero_one
from neural_complexity.meta import scores
from neural_complexity.meta.scores import Estimate, estimate, estimate_over_seeds
from neural_complexity.model.cached import Encoder, cache, embed_store, subsample
from neural_complexity.model.judgement import judge_minibatches
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import Embeddings, raw
from neural_complexity.regularizers.nc import minibatch_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap
from neural_complexity.task import Task
from neural_complexity.tasks.splits import Minibatches

__all__ = [
    "BASELINES",
    "BELIEFS",
    "CNN",
    "DISTILLED",
    "EARLY",
    "FITS",
    "NC_METHODS",
    "PLAIN",
    "EmbeddedNC",
    "ImageMethod",
    "Results",
    "Runs",
    "Trial",
    "baseline_recipe",
    "chunks",
    "draw_subsets",
    "fit_rows",
    "in_chunks",
    "learner_rows",
    "run_trial",
]

PART = 2000  # points that all learners predict, or that NC sees, at a time: bounds memory
FITS = {
    "R2": scores.r_squared,
    "correlation": scores.correlation,
    "MAE": scores.mean_absolute_error,
}
Results = dict[str, Tensor]  # of a trial, by what was measured


@dataclass(frozen=True)
class ImageMethod:
    """What learners are trained with, or what predicts without one."""

    method: str
    head: Head | None = None
    mode: Literal["transductive", "inductive"] | None = None  # that NC judges learners on
    times: int | None = None  # the learner's capacity, where it differs between methods

    @property
    def keys(self) -> dict[str, Any]:
        """The method as keys of rows."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def label(self) -> str:
        """Its name in tables."""
        name = self.method if self.head is None else f"{self.method} {self.head}"
        name += f" ({self.times}x capacity)" if self.times not in (None, 1) else ""
        return name if self.mode is None else f"{name}, {self.mode}"

    @classmethod
    def of(cls, row: Row) -> "ImageMethod":
        """Returns the method of a row."""
        names = [field.name for field in fields(cls)]
        keys: dict[str, Any] = {name: row.keys[name] for name in names if name in row.keys}
        return cls(**keys)


PLAIN = ImageMethod("cross-entropy")
EARLY = ImageMethod("early stopping")
NC_METHODS = tuple(
    ImageMethod("NC", head, mode) for head in HEADS for mode in ("transductive", "inductive")
)
DISTILLED = ImageMethod("distilled from the CNN", mode="transductive")
BELIEFS = ImageMethod("NC posterior, its beliefs")  # without a learner, like the next
CNN = ImageMethod("the same CNN, trained directly")
# Other regularizers, by the field of the config that holds their strengths.
BASELINES = {
    "l2": ImageMethod("L2"),
    "smoothing": ImageMethod("label smoothing"),
    "mixup": ImageMethod("mixup"),
    "dropout": ImageMethod("dropout"),
    "sam": ImageMethod("SAM"),
}


def baseline_recipe(data: ImageData, name: str, strength: float) -> Recipe:
    """Returns how learners learn with one of `BASELINES` at a strength."""
    recipe = data.recipe()
    match name:
        case "l2":
            sgd = partial(SGD, momentum=data.config.momentum, weight_decay=strength, foreach=True)
            return replace(recipe, optimizer=sgd)
        case "smoothing":
            return replace(recipe, loss=SmoothedCrossEntropy(strength))
        case "mixup":
            return replace(recipe, objective=mixup(cross_entropy, strength))
        case "dropout":
            return data.recipe(dropout=strength)
        case "sam":
            return replace(recipe, sharpness=strength)
    raise ValueError(f"name must be one of {', '.join(BASELINES)}, got {name}")


@dataclass(frozen=True)
class EmbeddedNC:
    """An NC and its embeddings of a dataset's images."""

    nc: NeuralComplexity
    config: ImageConfig
    embeddings: Embeddings

    @classmethod
    def of(
        cls,
        nc: NeuralComplexity,
        data: ImageData,
        *,
        tasks: Sequence[Task] = (),
        embeddings: Embeddings | None = None,
    ) -> "EmbeddedNC":
        """Embeds what NC will see of tasks, or all images, unless embeddings are at hand."""
        if embeddings is None:
            seen = [_context_points(nc, data.config, task) for task in tasks]
            sets = [raw(X).flatten() for task in seen for X in (task.X_tr, task.X_te)]
            indices = torch.cat(sets or [data.train, data.test])
            embeddings = embed_store(nc, data.dataset, indices)
        return cls(nc, data.config, embeddings)

    def encoder(self, task: Task) -> Encoder:
        """Returns what NC knows of the points of tasks, whatever h is."""
        return cache(self.nc, _context_points(self.nc, self.config, task), self.embeddings)

    def beliefs(self, task: Task) -> Tensor:
        """Returns the posterior head's beliefs about test labels as logits, (B, n, C)."""
        return self.nc.believe(self.encoder(task)(task)).prediction

    def penalty(self, encoder: Encoder) -> Regularizer:
        """Returns NC as a regularizer of learners."""
        config = self.config
        return minibatch_penalty(self.nc, encoder, weight=config.weight, floor=config.floor)

    def gaps(self, encoder: Encoder, snapshot: Snapshot) -> Tensor:
        """Predicts the gap of learners from their predictions on all points, (B,)."""
        M, N = snapshot.H_tr.shape[1], PART
        if self.nc.head.sees_predictions:  # of as many points as when it was trained
            training = self.config.training(self.nc.head.name)
            M, N = training.M, training.N
        return judge_minibatches(self.nc, encoder, snapshot, M=M, N=N)


def _context_points(nc: NeuralComplexity, config: ImageConfig, task: Task) -> Task:
    """Returns what NC sees at once: some training points, unless it sees minibatches of them."""
    if nc.head.sees_predictions:
        return task
    return subsample(task, config.shown, stream(config.seed, "shown"))


@dataclass(frozen=True)
class Runs:
    """Some of the learners that differ only by their seed."""

    first: int
    size: int

    def seed(self, config: ImageConfig) -> int:
        """Returns the seed of learners of the whole dataset, the same for every method."""
        return stream(config.seed, "runs", self.first).initial_seed()


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
    """Trains the learners of a trial by minibatches, while NCs predict their gaps.

    Returns:
        The snapshot times, `step`, and at each of them `loss_tr`, `loss_te`, `error`, `gap`,
        `error on held` and `predicted/HEAD`, (times, B) each; to keep, also the predictions
        `H_tr` and `H_te`, (times, B, points, C).
    """
    config, recipe, points, held = trial.config, trial.recipe, trial.evaluation, trial.held
    ledger.record("report", points.X_te, points.Y_te)
    if held is not None:
        ledger.record("choose", held.X_te, held.Y_te)
    encoders = {head: nc.encoder(points) for head, nc in (ncs or {}).items()}
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
            found[f"predicted/{head}"] = nc.gaps(encoders[head], snapshot)
        for name, values in found.items():
            seen.setdefault(name, []).append(values)

    order = stream(trial.seed, "order").initial_seed()
    recipe.train(
        Minibatches(trial.task, M=config.batch, N=config.unlabelled_batch, seed=order),
        stream(trial.seed, "learners"),
        regularizer=trial.regularizer,
        schedule=(lambda done: min(1.0, done / config.ramp)) if config.ramp else None,
        visit=visit,
        visits={*trial.times, recipe.steps},
    )
    return {name: torch.stack(values) for name, values in seen.items()}


@torch.no_grad()
def _predict(h: BatchedLearner, X: Tensor) -> Tensor:
    """Returns predictions on many points, (B, n, C)."""
    starts = range(0, X.shape[1], PART)
    return torch.cat([h(X[:, start : start + PART]) for start in starts], dim=1)


def draw_subsets(
    data: ImageData, source: Tensor, test: Tensor, size: int, runs: int, generator: torch.Generator
) -> tuple[Task, Task]:
    """Draws tasks with random training sets of `source`: to learn from, and to be evaluated on."""
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
    parts: Parts, name: str, together: Sequence[Runs], train: Callable[[Runs], Results]
) -> Results:
    """Trains learners, each chunk of them as a part of the run, and joins their results."""
    names = [name if len(together) == 1 else f"{name}, run {runs.first}" for runs in together]
    found = [parts.do(n, partial(train, r)) for n, r in zip(names, together, strict=True)]
    return {
        key: torch.cat([f[key] for f in found], dim=1) if key != "step" else found[0][key]
        for key in found[0]
    }


def learner_rows(
    make: Callable[..., Row],
    results: Results,
    at: tuple[Tensor | int, ...] = (-1,),
    paper: float | None = None,
) -> list[Row]:
    """Returns accuracy and losses of learners `at` a snapshot, or each at one of its own."""
    error, test, train = (results[name][at] for name in ("error", "loss_te", "loss_tr"))
    return [
        make("accuracy", estimate_over_seeds(100 * (1 - error)), paper),
        make("test loss", estimate_over_seeds(test)),
        make("train loss", estimate_over_seeds(train)),
    ]


def fit_rows(
    make: Callable[..., Row],
    head: Head,
    results: Sequence[Results],
    *,
    independent: bool = True,
    **keys: Key,
) -> list[Row]:
    """Returns how well an NC predicts the gap, at the end of training and all the way.

    Only where learners are independent, there is an interval.
    """
    rows = []
    for snapshots, times in (("endpoints", slice(-1, None)), ("all the way", slice(1, None))):
        predicted, true = (
            torch.cat([result[key][times].flatten() for result in results])
            for key in (f"predicted/{head}", "gap")
        )
        for metric, score in FITS.items():
            value = estimate(score, predicted, true)
            if snapshots != "endpoints" or not independent:  # a learner's snapshots never are
                value = Estimate(value.value, None, value.n)
            rows.append(make(metric, value, method="NC", head=head, **keys, snapshots=snapshots))
    return rows
