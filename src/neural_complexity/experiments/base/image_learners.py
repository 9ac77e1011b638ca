"""Learners of one image dataset: their methods and training, on all of it and on splits of it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from neural_complexity import ledger
from neural_complexity.beliefs import Categorical
from neural_complexity.experiments.base import one_dataset
from neural_complexity.experiments.base.config import config_from_dict
from neural_complexity.experiments.base.experiment import Parts
from neural_complexity.experiments.base.one_dataset import PART, EmbeddedNC, ImageConfig, ImageData
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.run_folder import HEADS, RunFolder, load_network
from neural_complexity.experiments.base.training import Head, Setup, train_network
from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.learners.fit import Recipe, Regularizer
from neural_complexity.losses import cross_entropy, zero_one
from neural_complexity.meta.collect import log_steps
from neural_complexity.meta.executor import CollectionQueue
from neural_complexity.meta.optimize import Status
from neural_complexity.meta.scores import r_squared
from neural_complexity.model.cached import CachedStates
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import Embeddings
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap, take_snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.images import moved
from neural_complexity.tasks.splits import Minibatches
from neural_complexity.workspace import Workspace

__all__ = ["BASELINES", "BELIEFS", "CNN", "DISTILLED", "EARLY", "LONG", "METHODS", "NC_METHODS"]
__all__ += ["PLAIN", "TUNED", "TWICE", "BySize", "HeldOutSplits", "ImageMethod", "Results"]
__all__ += ["Trial", "WholeDataset", "load_ncs", "run_trial", "train_all"]

SNAPSHOTS = 5  # of learners on held-out splits
# What must be as it was when the networks were trained: which images those have seen.
SAME = ("dataset", "train_images", "test_images", "held", "seed")
# Of a trial: `step`, (times,), and at each `loss_tr`, `loss_te`, `error`, `gap`, `error on held`,
# `predicted/HEAD`, (times, B); if kept, also `H_tr` and `H_te`, (times, B, points, C).
Results = dict[str, Tensor]
BySize = dict[int, Results]
K = TypeVar("K")


class ImageMethod(NamedTuple):
    """What learners are trained with, or what predicts without one."""

    method: str
    head: Head | None = None
    mode: Literal["transductive", "inductive"] | None = None  # that NC judges learners on
    times: int | None = None  # the learner's capacity, where it differs between methods

    @property
    def keys(self) -> dict[str, Any]:
        """The method as keys of rows."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    @property
    def label(self) -> str:
        """Its name in tables."""
        name = self.method if self.head is None else f"{self.method} {self.head}"
        name += f" ({self.times}x capacity)" if self.times not in (None, 1) else ""
        return name if self.mode is None else f"{name}, {self.mode}"

    @classmethod
    def of(cls, row: Row) -> "ImageMethod":
        """Returns the method of a row."""
        keys: Any = (row.keys.get(name) for name in cls._fields)
        return cls(*keys)


PLAIN = ImageMethod("cross-entropy")
TUNED = ImageMethod("cross-entropy, tuned")  # learning rate and augmentation
TWICE = ImageMethod("cross-entropy, tuned, twice the updates")  # NC's steps see twice the images
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
METHODS = (PLAIN, TUNED, TWICE, *BASELINES.values(), EARLY, *NC_METHODS, DISTILLED)


def load_ncs(config: one_dataset.SingleNetworksConfig) -> tuple[ImageData, dict[Head, EmbeddedNC]]:
    """Loads the data and the NCs of a config, trained on the same images, and embeds all images."""
    if not config.networks or not Path(config.networks).is_dir():
        wanted = f"the folder of a finished run of single on {config.dataset}"
        raise ValueError(f"networks must be {wanted}, got {config.networks or 'none'}")
    started = RunFolder(Path(config.networks)).read_config()
    if started["experiment"] != "single":
        raise ValueError(f"networks must be a run of single, got one of {started['experiment']}")
    theirs = started["config"]
    for name in SAME:
        if theirs.get(name) != getattr(config, name):
            got = f"{name} {theirs.get(name)} in the place of {getattr(config, name)}"
            same = ", ".join(SAME)
            raise ValueError(f"networks must be a run with the same {same}, got one with {got}")
    # How NCs were trained decides how many points they should see at a time.
    own: dict[str, Any] = {h: config_from_dict(one_dataset.SplitTraining, theirs[h]) for h in HEADS}
    data = one_dataset.load_data(replace(config, **own))
    ncs = {head: load_network(config.networks, head, "single", config.device) for head in HEADS}
    return data, {head: EmbeddedNC(nc, data) for head, nc in ncs.items()}


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
        snapshot = take_snapshot(partial(_predict, h), points)
        found = {
            "step": torch.tensor(step),
            "loss_tr": cross_entropy(snapshot.H_tr, points.Y_tr).mean(dim=1),
            "loss_te": cross_entropy(snapshot.H_te, points.Y_te).mean(dim=1),
            "error": zero_one(snapshot.H_te, points.Y_te).mean(dim=1),
            "gap": gap(cross_entropy, snapshot, points.Y_te),
        }
        if held is not None:
            found["error on held"] = zero_one(_predict(h, held.X_te), held.Y_te).mean(dim=1)
        found |= {"H_tr": snapshot.H_tr, "H_te": snapshot.H_te} if keep else {}
        found |= {f"predicted/{k}": nc.gaps(encoders[k], snapshot) for k, nc in ncs.items()}
        for name, values in found.items():
            seen.setdefault(name, []).append(values)

    order = stream(trial.seed, "order").initial_seed()
    recipe.train(
        Minibatches(trial.task, M=config.batch, N=config.unlabelled_batch, seed=order),
        stream(trial.seed, "learners"),
        regularizer=trial.regularizer,
        schedule=partial(_ramp, config.ramp * recipe.steps) if config.ramp else None,
        visit=visit,
        visits={*trial.times, recipe.steps},
    )
    return {name: torch.stack(values) for name, values in seen.items()}


def _ramp(steps: float, done: int) -> float:
    return min(1.0, done / steps)


def _predict(h: BatchedLearner, X: Tensor) -> Tensor:
    starts = range(0, X.shape[1], PART)
    return torch.cat([h(X[:, start : start + PART]) for start in starts], dim=1)  # (B, n, C)


def train_all(
    parts: Parts, names: Mapping[K, str], chunks: list[range], train: Callable[[K, range], Results]
) -> dict[K, Results]:
    """Trains learners of each kind, chunk by chunk as parts of the run, and joins their results."""
    results = {}
    for kind, name in names.items():
        runs = {name if len(chunks) == 1 else f"{name}, run {c.start}": c for c in chunks}
        found = [parts.do(part, partial(train, kind, chunk)) for part, chunk in runs.items()]
        joined = {k: torch.cat([f[k] for f in found], dim=1) for k in found[0] if k != "step"}
        results[kind] = {"step": found[0]["step"], **joined}
    return results


@dataclass(frozen=True)
class WholeDataset:
    """Learners of all training images, by method, evaluated on the test images."""

    data: ImageData
    ncs: Mapping[Head, EmbeddedNC]
    recipes: Mapping[ImageMethod, Recipe]  # how learners learn, if not as the config says
    logits: Tensor | None = None  # what the CNN says of the test images, (n, C)
    suffix: str = ""  # of the names of its parts

    def train(
        self, parts: Parts, methods: Iterable[ImageMethod], *, predict: bool = False
    ) -> dict[ImageMethod, Results]:
        """Trains the learners of some methods, whose gaps the NCs may predict."""

        def train(method: ImageMethod, runs: range) -> Results:
            return run_trial(self.trial(method, runs), self.ncs if predict else {})

        chunks = self.data.config.chunks(self.data.config.runs)
        names = {method: method.label + self.suffix for method in methods}
        return train_all(parts, names, chunks, train)

    def trial(self, method: ImageMethod, runs: range) -> Trial:
        """Returns some of the learners of one method, which start alike for every method."""
        data, config, copies = self.data, self.data.config, len(runs)
        plain = self.recipes.get(TUNED) if method == EARLY else None
        recipe = self.recipes.get(method) or plain or data.recipe()
        inductive = method.mode == "inductive" or method == EARLY
        train, test = (data.pool, data.held) if inductive else (data.train, data.test)
        task = data.task(train, test, copies)
        # The training loss is that of images that the learner learns from, not of held-out ones.
        evaluation = data.task(train[: config.judged], data.test, copies)
        seed = stream(config.seed, "runs", runs.start).initial_seed()
        times = log_steps(recipe.steps, config.looks)
        trial = Trial(config, recipe, task, evaluation, seed, times=times)
        if method == EARLY:
            often = range(0, recipe.steps + 1, max(1, recipe.steps // 10))
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


class HeldOutSplits:
    """Splits by the size of their training set, whose validation images no NC is trained on."""

    def __init__(self, data: ImageData, sizes: Iterable[int], steps: int) -> None:
        self.data, self.steps, config = data, steps, data.config
        draw, n = partial(data.subsets, data.pool, data.held), config.eval_tasks
        # By size, the tasks to learn from and those to be evaluated on.
        self.tasks = {size: draw(size, n, stream(config.seed, "sizes", size)) for size in sizes}

    def train(self, parts: Parts, name: str, nc: EmbeddedNC | None = None) -> BySize:
        """Trains learners by size, plain or regularized by an NC, and keeps their predictions."""
        config, recipe = self.data.config, replace(self.data.recipe(), steps=self.steps)
        together = config.chunks(config.eval_tasks)

        def train(size: int, runs: range) -> Results:
            task, evaluation = (tasks[runs.start : runs.stop] for tasks in self.tasks[size])
            first = [runs.start] if len(together) > 1 else []
            seed = stream(config.seed, "splits", size, *first).initial_seed()
            penalty = None if nc is None else nc.penalty(nc.encoder(task))
            times = log_steps(self.steps, SNAPSHOTS)
            with ledger.choosing():  # NC and strengths are chosen on these images
                trial = Trial(config, recipe, task, evaluation, seed, penalty, times)
                return run_trial(trial, keep=True)

        names = {size: f"splits of {size}, {name}" for size in self.tasks}
        return train_all(parts, names, together, train)

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
        self, plain: BySize, work: Workspace, callback: ProgressCallback | None, seed: int
    ) -> tuple[dict[Head, EmbeddedNC], dict[str, list[Status]]]:
        """Meta-trains an NC with each head, scored on plain learners; they may share an encoder."""
        data, config = self.data, self.data.config
        work = work if seed == config.seed else work.sub(f"networks of seed {seed}")
        ncs: dict[Head, EmbeddedNC] = {}
        history: dict[str, list[Status]] = {}
        for head in HEADS:
            training = getattr(config, head)
            how: dict[str, Any] = {"units": max(1, 2048 // training.M)}  # from about as many images
            if config.share_images and ncs:
                first = ncs["posterior"]
                how |= {"images_from": first.nc, "embeddings": first.embeddings}
            if training.shift or training.flip:
                how["augment"] = partial(moved, pixels=training.shift, flip=training.flip)
            setup = Setup(data.splits(head), data.recipe(), seed, config.device, **how)
            known = setup.embeddings
            jobs = partial(one_dataset.collect, config, head, seed)
            with config.open_executor() as executor:
                own = replace(setup, collections=CollectionQueue(jobs, executor))
                score = partial(self.score, plain, known)
                nc, way = train_network(training, head, own, work, callback, validate=score)
            ncs[head], history[head] = EmbeddedNC(nc, data, known), way
        return ncs, history
