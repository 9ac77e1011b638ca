"""NC against other regularizers on one image dataset: how all are trained, and their table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from neural_complexity import ledger
from neural_complexity.assessment.tables import Table
from neural_complexity.baselines.image_classifier import Classifier, train_classifier
from neural_complexity.baselines.optimize import Optimization
from neural_complexity.experiments.base.experiment import Parts
from neural_complexity.experiments.base.image_learners import (
    BASELINES,
    BELIEFS,
    CNN,
    DISTILLED,
    EARLY,
    NC_METHODS,
    PLAIN,
    EmbeddedNC,
    ImageMethod,
    Results,
    Runs,
    Trial,
    baseline_recipe,
    chunks,
    in_chunks,
    learner_rows,
    run_trial,
)
from neural_complexity.experiments.base.image_report import (
    accuracies,
    accuracy_cells,
    compare,
    describe,
    verdict,
)
from neural_complexity.experiments.base.one_dataset import ImageData
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.table_views import select, show
from neural_complexity.experiments.base.training import Head
from neural_complexity.learners.fit import Recipe, Regularizer
from neural_complexity.losses import Categorical, cross_entropy, zero_one
from neural_complexity.meta.collect import log_steps
from neural_complexity.meta.scores import Estimate
from neural_complexity.model.architecture import Architecture
from neural_complexity.model.cached import CachedStates
from neural_complexity.model.encoders import make_image_encoder
from neural_complexity.points import Points
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import seeded, stream
from neural_complexity.tasks.images import moved

__all__ = [
    "METHODS",
    "WholeDataset",
    "accuracy_rows",
    "accuracy_table",
    "classifier_rows",
    "joint_table",
    "train_cnn",
    "tune",
    "tuning_rows",
    "tuning_table",
]

METHODS = (PLAIN, *BASELINES.values(), EARLY, *NC_METHODS, DISTILLED)
TUNING = "accuracy on held-out training images"
Errors = dict[tuple[str, float], Tensor]  # by name and strength of a baseline


@dataclass(frozen=True)
class WholeDataset:
    """Learners of all training images, by method, evaluated on the test images."""

    data: ImageData
    ncs: Mapping[Head, EmbeddedNC]
    recipes: Mapping[ImageMethod, Recipe]  # how learners learn, if not as the config says
    logits: Tensor | None = None  # what the CNN says of the test images, (n, C)

    def train(self, parts: Parts, method: ImageMethod, *, predict: bool = False) -> Results:
        """Trains the learners of one method, whose gaps the NCs may predict."""

        def train(runs: Runs) -> Results:
            return run_trial(self.trial(method, runs), self.ncs if predict else {})

        config = self.data.config
        return in_chunks(parts, method.label, chunks(config, config.runs), train)

    def trial(self, method: ImageMethod, runs: Runs) -> Trial:
        """Returns some of the learners of one method."""
        data, config = self.data, self.data.config
        recipe = self.recipes.get(method) or data.recipe()
        inductive = method.mode == "inductive" or method == EARLY
        train, test = (data.pool, data.held) if inductive else (data.train, data.test)
        task = data.task(train, test, runs.size)
        # The training loss is that of images that the learner learns from, not of held-out ones.
        evaluation = data.task(train[: config.judged], data.test, runs.size)
        times = log_steps(recipe.steps, config.looks)
        trial = Trial(config, recipe, task, evaluation, runs.seed(config), times=times)
        if method == EARLY:
            often = range(0, config.steps + 1, max(1, config.steps // 10))
            return replace(trial, held=task, times=often)
        if method == DISTILLED:
            return replace(trial, regularizer=self._distilled(runs.size))
        if method.head is None:
            return trial
        nc = self.ncs[method.head]
        return replace(trial, regularizer=nc.penalty(nc.encoder(task)))

    def _distilled(self, copies: int) -> Regularizer:
        """The posterior head's regularizer with the CNN's answers in the place of beliefs."""
        assert self.logits is not None
        test, nc = self.data.test, self.ncs["posterior"]
        order = test.argsort()
        belief = Categorical(self.logits.to(test.device)[order].expand(copies, -1, -1))
        indices = test[order].expand(copies, -1).contiguous()
        return nc.penalty(CachedStates(nc.nc, indices, belief))


def tune(data: ImageData, name: str, strength: float) -> Results:
    """Trains one learner with a baseline without the held-out images, evaluated on them."""
    config = data.config
    task = data.task(data.pool, data.held)
    evaluation = data.task(data.pool[: config.judged], data.held)
    seed = stream(config.seed, "tuning").initial_seed()
    trial = Trial(config, baseline_recipe(data, name, strength), task, evaluation, seed)
    with ledger.choosing():
        return run_trial(trial)


def train_cnn(
    data: ImageData,
    architecture: Architecture,
    updates: int,
    batch: int,
    callback: ProgressCallback | None,
) -> Tensor:
    """Trains an NC's image encoder as a classifier; returns logits of the test images, (n, C)."""
    config, dataset, training = data.config, data.dataset, data.config.posterior
    with seeded(config.seed, "classifier"):
        encoder = make_image_encoder(architecture)
        model = Classifier(encoder, dataset.images.classes, width=training.width)
    model = model.to(config.device)
    train_classifier(
        model,
        Points(data.train, dataset),
        dataset.labels.to(config.device)[data.train],
        Optimization(updates=updates, lr=training.lr, warmup=training.warmup),
        batch=batch,
        seed=config.seed,
        augment=partial(moved, pixels=training.shift, flip=training.flip),
        callback=callback,
    )
    return model.classify(Points(data.test, dataset))


def accuracy_rows(
    make: Callable[..., Row],
    data: ImageData,
    results: Mapping[ImageMethod, Results],
    published: Mapping[ImageMethod, float],
) -> list[Row]:
    """Returns how good learners are at their end under each method, and the paper's numbers."""
    rows = []
    for method, result in results.items():
        at: tuple[Tensor | int, ...] = (-1,)
        if method == EARLY:
            held = result["error on held"]
            at = (held.argmin(dim=0), torch.arange(held.shape[1]))
        row = partial(make, **method.keys, **data.config.keys)
        rows += learner_rows(row, result, at, published.get(method))
    return rows


def classifier_rows(
    make: Callable[..., Row], data: ImageData, nc: EmbeddedNC, cnn: Tensor
) -> list[Row]:
    """Returns how good NC's beliefs and the CNN are without a learner."""
    rows = []
    task = data.task(data.train, data.test)
    ledger.record("report", task.X_te, task.Y_te)
    for method, H in ((BELIEFS, nc.beliefs(task)), (CNN, cnn[None].to(task.Y_te.device))):
        row = partial(make, **method.keys, dataset=data.config.dataset_name)
        rows.append(row("accuracy", _single(100 * (1 - zero_one(H, task.Y_te).mean()))))
        rows.append(row("test loss", _single(cross_entropy(H, task.Y_te).mean())))
        rows.append(row("predicted accuracy", _single(100 * H.softmax(-1).amax(-1).mean())))
    return rows


def tuning_rows(make: Callable[..., Row], errors: Errors, chosen: dict[str, float]) -> list[Row]:
    """Returns how good each strength was on the held-out images."""
    return [
        make(
            TUNING,
            _single(100 * (1 - error)),
            **BASELINES[name].keys,
            strength=strength,
            chosen=chosen[name] == strength,
        )
        for (name, strength), error in errors.items()
    ]


def _single(value: Tensor) -> Estimate:
    """One network, so there is no interval."""
    return Estimate(value.item(), None, 1)


def accuracy_table(rows: list[Row]) -> Table:
    """Returns the paper's table."""
    found = accuracies(rows)
    baselines = [PLAIN, *BASELINES.values(), EARLY]
    notes = [
        "Value ± 95 % interval over runs; what needs no learner is one network and has none. "
        "Test images are the same in all runs.",
        *(verdict(found, method, baselines) for method in NC_METHODS),
        *(_against_distilled(found, m) for m in NC_METHODS if m.mode == DISTILLED.mode),
    ]
    return Table(
        f"Accuracy in % on the test images: {describe(found[PLAIN])}, {found[PLAIN].n} runs",
        ("method", "accuracy", "test loss", "train loss", "paper's accuracy"),
        tuple((method.label, *accuracy_cells(rows, row)) for method, row in found.items()),
        " ".join(notes),
    )


def joint_table(runs: list[list[Row]]) -> Table:
    """Returns the paper's table: methods against datasets, one run of each.

    Raises:
        ValueError: If two runs are of one dataset.
    """
    columns = [accuracies(rows) for rows in runs]
    names = [describe(column[PLAIN]) for column in columns]
    if len(set(names)) < len(names):
        raise ValueError(f"runs must be of different datasets, got {', '.join(names)}")
    lines = []
    for method in columns[0]:
        lines.append((method.label, *(show(column[method]) for column in columns)))
        papers = [column[method].paper for column in columns]
        if any(papers):
            shown = ("" if paper is None else f"{paper:.2f}" for paper in papers)
            lines.append((f"the paper's {method.label}", *shown))
    return Table(
        "Accuracy in % on the test images, by dataset and learner",
        ("method", *names),
        tuple(lines),
        "Value ± 95 % interval over runs. The paper's numbers are of full datasets and its own "
        "learners; each run's page says how far it is from that.",
    )


def _against_distilled(found: dict[ImageMethod, Row], method: ImageMethod) -> str:
    """Says whether NC beats what is distilled from the same CNN."""
    said = {
        "better": "beats the learner distilled from the CNN",
        "worse": "does not beat the learner distilled from the CNN, but is worse",
        "neither": "does not beat the learner distilled from the CNN: the intervals overlap",
    }
    ours, theirs = found[method], found[DISTILLED]
    numbers = f"({show(ours)} against {show(theirs)})"
    return f"{method.label}, {said[compare(ours, theirs)]} {numbers}."


def tuning_table(rows: list[Row]) -> Table:
    """Returns the table of the baselines' strengths."""
    lines = [
        (
            ImageMethod.of(row).label,
            f"{row.keys['strength']:g}",
            show(row),
            "chosen" if row.keys["chosen"] else "",
        )
        for row in select(rows, TUNING)
    ]
    return Table(
        "Choice of the baselines' strengths",
        ("method", "strength", "accuracy in %", "choice"),
        tuple(lines),
        "Of one learner each, trained without the held-out training images and judged on them.",
    )
