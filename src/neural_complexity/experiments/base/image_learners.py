"""Learners of one image dataset: their methods, NC's view of them, and their training."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import SGD

from neural_complexity import ledger
from neural_complexity.experiments.base import one_dataset
from neural_complexity.experiments.base.config import config_from_dict
from neural_complexity.experiments.base.experiment import Parts
from neural_complexity.experiments.base.one_dataset import ImageConfig, ImageData
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.run_folder import RunFolder
from neural_complexity.experiments.base.saved_networks import HEADS, load_network
from neural_complexity.experiments.base.training import Head
from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.learners.fit import Recipe, Regularizer, mixup
from neural_complexity.losses import Categorical, SmoothedCrossEntropy, cross_entropy, zero_one
from neural_complexity.meta.collect import log_steps
from neural_complexity.model.cached import CachedStates, Encoder, cache, embed_store, subsample
from neural_complexity.model.judgement import judge_minibatches
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import Embeddings, raw
from neural_complexity.regularizers.nc import minibatch_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap
from neural_complexity.task import Task
from neural_complexity.tasks.splits import Minibatches

__all__ = ["BASELINES", "BELIEFS", "CNN", "DISTILLED", "EARLY", "LONG", "METHODS", "NC_METHODS"]
__all__ += ["PLAIN", "EmbeddedNC", "ImageMethod", "Results", "Trial", "WholeDataset", "chunks"]
__all__ += ["baseline_recipe", "draw_subsets", "in_chunks", "load_ncs", "run_trial", "tune"]

PART = 2000  # points that all learners predict, or that NC sees, at a time: bounds memory
# What must be as it was when the networks were trained: which images those have seen.
SAME = ("dataset", "train_images", "test_images", "held", "seed")
# Of a trial: `step`, (times,), and at each `loss_tr`, `loss_te`, `error`, `gap`, `error on held`,
# `predicted/HEAD`, (times, B); if kept, also `H_tr` and `H_te`, (times, B, points, C).
Results = dict[str, Tensor]


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
        keys: dict[str, Any] = {field.name: row.keys.get(field.name) for field in fields(cls)}
        return cls(**keys)


PLAIN = ImageMethod("cross-entropy")
LONG = ImageMethod("cross-entropy, after convergence")
EARLY = ImageMethod("early stopping")
NC_METHODS = tuple(ImageMethod("NC", h, m) for h in HEADS for m in ("transductive", "inductive"))
DISTILLED = ImageMethod("distilled from the CNN", mode="transductive")
BELIEFS = ImageMethod("NC posterior, its beliefs")  # without a learner, like the next
CNN = ImageMethod("the same CNN, trained directly")
# Other regularizers, by the field of the config that holds their strengths.
BASELINES = {"l2": ImageMethod("L2"), "smoothing": ImageMethod("label smoothing")}
BASELINES |= {name: ImageMethod(name) for name in ("mixup", "dropout")}
BASELINES["sam"] = ImageMethod("SAM")
METHODS = (PLAIN, *BASELINES.values(), EARLY, *NC_METHODS, DISTILLED)


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
    assert name == "sam"
    return replace(recipe, sharpness=strength)


class EmbeddedNC:
    """An NC and its embeddings: those known, or of what it will see of tasks, or of all images."""

    def __init__(
        self, nc: NeuralComplexity, data: ImageData, known: Embeddings | None = None, *tasks: Task
    ) -> None:
        self.nc, self.config = nc, data.config
        if known is None:
            seen = [X for task in map(self._seen, tasks) for X in (task.X_tr, task.X_te)]
            indices = torch.cat([raw(X).flatten() for X in seen] or [data.train, data.test])
            known = embed_store(nc, data.dataset, indices)
        self.embeddings = known

    def _seen(self, task: Task) -> Task:
        """Returns what NC sees at once: some training points, unless it sees minibatches."""
        if self.nc.head.sees_predictions:
            return task
        return subsample(task, self.config.shown, stream(self.config.seed, "shown"))

    def encoder(self, task: Task) -> Encoder:
        """Returns what NC knows of the points of tasks, whatever h is."""
        return cache(self.nc, self._seen(task), self.embeddings)

    def penalty(self, encoder: Encoder) -> Regularizer:
        """Returns NC as a regularizer of learners."""
        config = self.config
        return minibatch_penalty(self.nc, encoder, weight=config.weight, floor=config.floor)

    def gaps(self, encoder: Encoder, snapshot: Snapshot) -> Tensor:
        """Predicts the gap of learners from their predictions on all points, (B,)."""
        M, N = snapshot.H_tr.shape[1], PART
        if self.nc.head.sees_predictions:  # of as many points as when it was trained
            training = getattr(self.config, self.nc.head.name)
            M, N = training.M, training.N
        return judge_minibatches(self.nc, encoder, snapshot, M=M, N=N)


def load_ncs(config: one_dataset.SingleNetworksConfig, data: ImageData) -> dict[Head, EmbeddedNC]:
    """Loads the NCs that a config names, trained on the same images, and embeds all images."""
    if not config.networks or not Path(config.networks).is_dir():
        raise ValueError(
            f"networks must be the folder of a finished run of single on {config.dataset}, "
            f"got {config.networks or 'none'}"
        )
    started = RunFolder(Path(config.networks)).read_config()
    if started["experiment"] != "single":
        raise ValueError(f"networks must be a run of single, got one of {started['experiment']}")
    theirs = started["config"]
    for name in SAME:
        if theirs.get(name) != getattr(config, name):
            raise ValueError(
                f"networks must be a run with the same {', '.join(SAME)}, got one with "
                f"{name} {theirs.get(name)} in the place of {getattr(config, name)}"
            )
    # How NCs were trained decides how many points they should see at a time.
    kind = one_dataset.SplitTraining
    own: dict[str, Any] = {head: config_from_dict(kind, theirs[head]) for head in HEADS}
    trained, ncs = replace(data, config=replace(config, **own)), {}
    for head in HEADS:
        nc = load_network(config.networks, head, "single", config.device)
        ncs[head] = EmbeddedNC(nc, trained)
    return ncs


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


def run_trial(trial: Trial, ncs: Mapping[Head, EmbeddedNC] = {}, *, keep: bool = False) -> Results:
    """Trains learners by minibatches, while NCs predict their gaps; may keep their predictions."""
    config, recipe, points, held = trial.config, trial.recipe, trial.evaluation, trial.held
    ledger.record("report", points.X_te, points.Y_te)
    if held is not None:
        ledger.record("choose", held.X_te, held.Y_te)
    encoders = {head: nc.encoder(points) for head, nc in ncs.items()}
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
        found |= {"H_tr": H_tr, "H_te": H_te} if keep else {}
        found |= {f"predicted/{k}": nc.gaps(encoders[k], snapshot) for k, nc in ncs.items()}
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
    starts = range(0, X.shape[1], PART)
    return torch.cat([h(X[:, start : start + PART]) for start in starts], dim=1)  # (B, n, C)


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


def chunks(config: ImageConfig, runs: int) -> list[range]:
    """Returns which learners are trained together: convolutions are faster one by one."""
    return [range(runs)] if config.learner == "MLP" else [range(i, i + 1) for i in range(runs)]


def in_chunks(
    parts: Parts, name: str, together: Sequence[range], train: Callable[[range], Results]
) -> Results:
    """Trains learners, each chunk of them as a part of the run, and joins their results."""
    names = [name if len(together) == 1 else f"{name}, run {runs.start}" for runs in together]
    found = [parts.do(n, partial(train, r)) for n, r in zip(names, together, strict=True)]
    joined = {k: torch.cat([f[k] for f in found], dim=1) for k in found[0] if k != "step"}
    return {"step": found[0]["step"], **joined}


@dataclass(frozen=True)
class WholeDataset:
    """Learners of all training images, by method, evaluated on the test images."""

    data: ImageData
    ncs: Mapping[Head, EmbeddedNC]
    recipes: Mapping[ImageMethod, Recipe]  # how learners learn, if not as the config says
    logits: Tensor | None = None  # what the CNN says of the test images, (n, C)

    def train(
        self, parts: Parts, methods: Iterable[ImageMethod], *, predict: bool = False
    ) -> dict[ImageMethod, Results]:
        """Trains the learners of some methods, whose gaps the NCs may predict."""
        together = chunks(self.data.config, self.data.config.runs)

        def train(method: ImageMethod, runs: range) -> Results:
            return run_trial(self.trial(method, runs), self.ncs if predict else {})

        return {m: in_chunks(parts, m.label, together, partial(train, m)) for m in methods}

    def trial(self, method: ImageMethod, runs: range) -> Trial:
        """Returns some of the learners of one method, which start alike for every method."""
        data, config, copies = self.data, self.data.config, len(runs)
        recipe = self.recipes.get(method) or data.recipe()
        inductive = method.mode == "inductive" or method == EARLY
        train, test = (data.pool, data.held) if inductive else (data.train, data.test)
        task = data.task(train, test, copies)
        # The training loss is that of images that the learner learns from, not of held-out ones.
        evaluation = data.task(train[: config.judged], data.test, copies)
        seed = stream(config.seed, "runs", runs.start).initial_seed()
        times = log_steps(recipe.steps, config.looks)
        trial = Trial(config, recipe, task, evaluation, seed, times=times)
        if method == EARLY:
            often = range(0, config.steps + 1, max(1, config.steps // 10))
            return replace(trial, held=task, times=often)
        if method == DISTILLED:  # the CNN's answers in the place of the posterior head's beliefs
            assert self.logits is not None
            nc, order = self.ncs["posterior"], test.argsort()
            belief = Categorical(self.logits.to(test.device)[order].expand(copies, -1, -1))
            indices = test[order].expand(copies, -1).contiguous()
            return replace(trial, regularizer=nc.penalty(CachedStates(indices, belief)))
        if method.head is None:
            return trial
        nc = self.ncs[method.head]
        return replace(trial, regularizer=nc.penalty(nc.encoder(task)))


def tune(data: ImageData, name: str, strength: float) -> Results:
    """Trains one learner with a baseline without the held-out images, evaluated on them."""
    config = data.config
    task = data.task(data.pool, data.held)
    evaluation = data.task(data.pool[: config.judged], data.held)
    seed = stream(config.seed, "tuning").initial_seed()
    recipe = baseline_recipe(data, name, strength)
    with ledger.choosing():
        return run_trial(Trial(config, recipe, task, evaluation, seed))
