"""Section 4.4, "Single Image Classification Tasks": one dataset, NC against other regularizers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from neural_complexity import ledger
from neural_complexity.assessment.report import Table
from neural_complexity.baselines.trained import Classifier, train_classifier
from neural_complexity.experiments.base import image_learners as images
from neural_complexity.experiments.base import image_report as report
from neural_complexity.experiments.base import one_dataset, tuning
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.one_dataset import EmbeddedNC, ImageData, Size, Sizes
from neural_complexity.experiments.base.rows import Row, show
from neural_complexity.experiments.base.run_folder import HEADS
from neural_complexity.experiments.base.training import Head
from neural_complexity.experiments.base.tuning import TuningConfig
from neural_complexity.learners.fit import Recipe
from neural_complexity.losses import cross_entropy, zero_one
from neural_complexity.meta.optimize import Optimization, Status
from neural_complexity.meta.scores import estimate_over_seeds
from neural_complexity.model.encoders import make_image_encoder
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import Points
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import seeded
from neural_complexity.tasks.images import moved
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT", "PRESETS", "Config"]

NAME, TITLE = "single", "One image dataset"
# Table 5: accuracies of 5 runs.
COMPARED = [images.BASELINES[name] for name in ("l2", "smoothing", "mixup")]
PAPER_METHODS = (images.PLAIN, *COMPARED, images.ImageMethod("NC", "direct", "transductive"))
PAPER = {
    "mnist": (98.31, 98.36, 98.57, 97.80, 99.03),
    "fashion-mnist": (88.21, 88.46, 89.15, 89.50, 89.74),
    "kmnist": (91.12, 91.31, 91.40, 91.10, 96.30),
    "svhn": (93.23, 94.06, 94.70, 94.88, 93.83),
    "cifar-10": (79.76, 79.84, 80.45, 80.92, 81.15),
}
Fields = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Config(TuningConfig):
    """NC against other regularizers, each of which is tuned on held-out images."""

    meta_seeds: Size = 3  # Meta-trainings of each NC, from seeds `seed`, `seed + 1`, ...
    sizes: Sizes = (1000, 4000, 16_000, 40_000)  # Training points of the held-out splits.
    split_steps: Size = 1000  # Updates of the learners of those.
    cnn_updates: Size = 20_000  # Updates of a CNN trained directly (presets: as many labels as NC).
    cnn_batch: Size = 256  # Images of each of these.


# An MLP of 500 units on MNIST or one of its kin, which learns by one cycle of the learning rate;
# hours on two cores.
CPU: Fields = {"dataset": "mnist", "steps": 2000, "looks": 7, "judged": 5000, "eval_tasks": 8}
CPU |= {"runs": 4, "lr": 0.1, "momentum": 0.9, "warmup": 0.1, "decay": True, "share_images": True}
CPU |= {"split_steps": 500, "cnn_updates": 2700}
# The direct head learns from learners that run as long as those that are judged.
LONG = {"iterations": 10, "updates": 960, "learner_steps": 2000, "looks": 32, "width": 128}
LONG |= {"M": 32, "N": 128, "batch": 16}
# The same for ten thousand images, such as KMNIST's test images alone.
SMALL = CPU | {"dataset": "kmnist-10k", "held": 1000, "split_train": 5000, "split_test": 2000}
SMALL |= {"judged": 2000, "sizes": (500, 1500, 5000), "cnn_updates": 1800}
SMALL_NC = {"iterations": 30, "updates": 80, "smallest": 500}
# A narrow, shallow residual network on a part of CIFAR-10, on two cores: 8 filters instead of 64 at
# first, 3 blocks instead of 8, 10,000 images, 300 steps. Two strengths of each baseline: tuning
# takes as long as everything else otherwise.
FEWER: Fields = {"l2": (0.0003, 0.003), "smoothing": (0.1, 0.2), "mixup": (0.1, 0.3)}
FEWER |= {"dropout": (0.2, 0.5), "sam": (0.05, 0.2), "share_images": True, "momentum": 0.9}
FEWER |= {"rates": (0.5,), "widen": 0, "tuning_learners": 1, "meta_seeds": 1}
CIFAR = FEWER | {"dataset": "cifar-10", "train_images": 10_000, "test_images": 2000, "held": 1000}
CIFAR |= {"split_train": 7000, "split_test": 2000, "sizes": (500, 2000, 7000), "steps": 300}
CIFAR |= {"learner": "ResNet", "learner_width": 8, "learner_blocks": (1, 1, 1), "lr": 0.05}
CIFAR |= {"batch": 32, "unlabelled_batch": 32, "looks": 3, "judged": 500, "eval_tasks": 6}
CIFAR |= {"split_steps": 100, "cnn_updates": 1350}
CIFAR_NC = {"iterations": 30, "updates": 60, "tasks": 1, "learner_steps": 60, "smallest": 500}
# The same on SVHN, whose digits must not be turned around, and a little less of it.
SVHN = CIFAR | {"dataset": "svhn", "steps": 200, "cnn_updates": 900}
# MLP learners on the same part of SVHN: these learn something in the time there is.
SVHN_MLP = SVHN | {"learner": "MLP", "learner_width": 500, "lr": 0.01, "runs": 3, "steps": 1500}
SVHN_MLP |= {"batch": 64, "unlabelled_batch": 64, "split_steps": 500}
SVHN_NCS = ({"iterations": 20}, {"iterations": 15})
LONGER = {"tasks": 2, "learner_steps": 300}
# Seconds, on scikit-learn's digits; what CI runs.
SMOKE: Fields = {"test_images": 120, "held": 200, "split_train": 900, "split_test": 300, "looks": 3}
SMOKE |= {"eval_tasks": 6, "runs": 2, "learner_width": 16, "steps": 20, "lr": 0.05, "workers": 0}
SMOKE |= {"batch": 32, "unlabelled_batch": 32, "shown": 64, "judged": 200, "cnn_batch": 32}
SMOKE |= {"l2": (0.001, 0.01), "smoothing": (0.1,), "mixup": (0.2,), "dropout": (0.2,)}
SMOKE |= {"sam": (0.05,), "sizes": (100, 400, 900), "split_steps": 10, "cnn_updates": 10}
SMOKE |= {"share_images": True, "momentum": 0.9, "rates": (2.0,), "widen": 1, "warmup": 0.1}
SMOKE |= {"tuning_learners": 2, "meta_seeds": 2, "decay": True}
SMOKE |= {"floor": -10.0}  # an NC of seconds is wrong by more than the usual floor: it would idle
TINY = {"width": 16, "heads": 2, "channels": 8, "M": 16, "N": 16, "iterations": 3, "updates": 4}
TINY |= {"tasks": 2, "learner_steps": 8, "looks": 4, "smallest": 100, "unlabelled": 64}
# The paper's wiring and sizes for ResNet-18 on CIFAR-10 and SVHN, for a GPU. CIFAR-10 has 50,000
# training images: those that are held out are missing in the splits.
DEEP = one_dataset.SplitTraining(
    width=400, heads=8, self_layers=3, batch=4, image_encoder="resnet", channels=64, unlabelled=5000
)
RESNET: Fields = {"dataset": "cifar-10", "posterior": DEEP, "direct": DEEP, "split_test": 5000}
RESNET |= {"learner": "ResNet", "learner_width": 64, "lr": 0.0001, "steps": 100_000}


def _reduced(sizes: Fields, both: Fields, posterior: Fields, direct: Fields) -> Config:
    """Returns settings for a CPU: `both`, and one each, say how the NCs are trained."""
    own = {"posterior": both | posterior, "direct": both | direct}
    ncs: Fields = {head: one_dataset.split_training(head, **own[head]) for head in HEADS}
    return Config(**(sizes | ncs))


PRESETS: dict[str, Callable[[], Config]] = {
    "smoke": lambda: _reduced(SMOKE, TINY, {"shift": 1}, {"N": 60}),
    "cpu": lambda: _reduced(CPU, {"iterations": 30, "updates": 80}, {}, LONG),
    "small": lambda: _reduced(SMALL, SMALL_NC, {}, LONG),
    "cifar": lambda: _reduced(CIFAR, CIFAR_NC, {"flip": True}, {}),
    "svhn": lambda: _reduced(SVHN, CIFAR_NC, *SVHN_NCS),
    "svhn-mlp": lambda: _reduced(SVHN_MLP, CIFAR_NC | LONGER, *SVHN_NCS),
    "paper": lambda: Config(dataset="mnist", steps=100_000),
    "paper-resnet": lambda: Config(**RESNET),
}


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Trains NCs on splits, tunes the baselines, and compares all on the test images."""
    data = one_dataset.load_data(config)
    # What does not fit the dataset is said now, and not when hours have gone.
    splits = images.HeldOutSplits(data, config.sizes, config.split_steps)
    for head in HEADS:
        data.splits(head)
    total = tuning.least_parts(config) + 1
    total += 2 * len(config.sizes) * len(config.chunks(config.eval_tasks))
    trained = len(images.METHODS) + (config.meta_seeds - 1) * len(images.NC_METHODS)
    parts = Parts(work, total + trained * len(config.chunks(config.runs)), callback)
    plain = splits.train(parts, "plain")
    ncs, history = list[dict[Head, EmbeddedNC]](), dict[str, list[Status]]()
    for seed in range(config.seed, config.seed + config.meta_seeds):
        own, way = splits.train_ncs(plain, work, callback, seed)
        ncs.append(own)
        history |= {_name(head, seed - config.seed): told for head, told in way.items()}
    regularized = splits.train(parts, "with NC", ncs[0]["posterior"])
    train = partial(train_cnn, data, ncs[0]["posterior"].nc, callback)
    logits = parts.do(images.CNN.label, train)["test"]
    make = partial(Row.of, NAME, config.seed)
    recipes, rows, chosen = _tune(data, parts, make)
    results = _train(data, ncs, recipes, logits, parts)
    found = _learner_rows(config, results) + _classifier_rows(make, data, ncs, logits)
    rows = found + rows
    tensors = {f"{m.label}/{k}": t for m, result in results.items() for k, t in result.items()}
    for name, learners in (("plain", plain), ("with NC posterior", regularized)):
        judged = [splits.with_gaps(learners, *own.values()) for own in ncs]
        rows += report.over_seeds([report.split_rows(make, each, name) for each in judged])
        kept = judged[0].items()
        tensors |= {f"splits/{z}/{name}/{k}": t for z, r in kept for k, t in r.items()}
    for head in HEADS:  # learners that started alike depend on each other
        rows += report.fit_rows(make, head, results.values(), False, images="test images")
    facts = {
        "seconds": {name: round(s, 1) for name, s in parts.seconds.items()},
        "strengths": chosen,
        "images": {name: len(getattr(data, name)) for name in ("train", "held", "pool", "test")},
    }
    networks = {_name(head, k): nc.nc for k, own in enumerate(ncs) for head, nc in own.items()}
    return Outcome(rows, tensors, networks, history, facts)


def _name(head: str, k: int) -> str:
    return f"{head}-{k}" if k else head


def _tune(
    data: ImageData, parts: Parts, make: report.Make
) -> tuple[dict[images.ImageMethod, Recipe], list[Row], dict[str, str]]:
    """Tunes the baselines; returns how they learn, how good what they tried was, and the choice."""
    recipes, rows, chosen = {}, list[Row](), {}
    for name, method in {"": images.TUNED, **images.BASELINES}.items():
        tried = tuning.choose(data, parts, name, method.label)
        own = tuning.best(tried)
        recipes[method], chosen[method.label] = data.recipe(name, own), own.label
        rows += tuning.tuning_rows(make, method, tried)
    recipe = recipes[images.TUNED]
    recipes[images.TWICE] = replace(recipe, steps=2 * recipe.steps)
    return recipes, rows, chosen


def _train(
    data: ImageData,
    ncs: list[dict[Head, EmbeddedNC]],
    recipes: dict[images.ImageMethod, Recipe],
    logits: Tensor,
    parts: Parts,
) -> dict[images.ImageMethod, images.Results]:
    """Trains learners of all images by method, with NC's of each meta-training side by side."""
    results: dict[images.ImageMethod, images.Results] = {}
    for k, own in enumerate(ncs):
        learners = images.WholeDataset(data, own, recipes, logits, f", NC {k}" if k else "")
        methods = images.NC_METHODS if k else images.METHODS
        for method, found in learners.train(parts, methods, predict=True).items():
            if method in results:  # beside those of the NCs before it
                both = {n: (results[method][n], t) for n, t in found.items() if n != "step"}
                found |= {name: torch.cat(pair, dim=1) for name, pair in both.items()}
            results[method] = found
    return results


def _learner_rows(config: Config, results: dict[images.ImageMethod, images.Results]) -> list[Row]:
    """Returns accuracies and losses of learners by method."""
    published = dict(zip(PAPER_METHODS, PAPER.get(config.dataset, ()), strict=False))
    rows = []
    for method, result in results.items():
        at: Any = -1
        if method == images.EARLY:
            held = result["error on held"]
            at = (held.argmin(dim=0), torch.arange(held.shape[1]))
        row = partial(Row.of, NAME, config.seed, **method.keys, **config.keys)
        ncs = 1 if method.head is None else config.meta_seeds
        rows += report.learner_rows(row, result, at, published.get(method), ncs)
    return rows


def train_cnn(
    data: ImageData, nc: NeuralComplexity, callback: ProgressCallback | None
) -> dict[str, Tensor]:
    """Trains an NC's image encoder as a classifier; returns logits of the test images, (n, C)."""
    config, dataset, training = data.config, data.dataset, data.config.posterior
    assert isinstance(config, Config)
    with seeded(config.seed, "classifier"):
        encoder = make_image_encoder(nc.architecture)
        model = Classifier(encoder, dataset.images.classes, width=training.width).to(config.device)
    train_classifier(
        model,
        Points(data.train, dataset),
        dataset.labels.to(config.device)[data.train],
        Optimization(updates=config.cnn_updates, lr=training.lr, warmup=training.warmup),
        batch=config.cnn_batch,
        seed=config.seed,
        augment=partial(moved, pixels=training.shift, flip=training.flip),
        callback=callback,
    )
    return {"test": model.classify(Points(data.test, dataset))}


def _classifier_rows(
    make: report.Make, data: ImageData, ncs: list[dict[Head, EmbeddedNC]], cnn: Tensor
) -> list[Row]:
    """Returns how good NC's beliefs and the CNN are without a learner; of one, no interval."""
    rows = []
    task = data.task(data.train, data.test)
    ledger.record("report", task.X_te, task.Y_te)
    heads = [own["posterior"] for own in ncs]
    beliefs = [nc.nc.believe(nc.encoder(task)(task)).prediction for nc in heads]  # as logits
    for method, answers in ((images.BELIEFS, beliefs), (images.CNN, [cnn[None]])):
        row = partial(make, **method.keys, dataset=data.config.keys["dataset"])
        H, Y = torch.cat([each.to(task.Y_te.device) for each in answers]), task.Y_te  # (K, n, C)
        Y = Y.expand(len(H), -1)
        found = {"accuracy": 100 * (1 - zero_one(H, Y).mean(dim=1))}
        found["test loss"] = cross_entropy(H, Y).mean(dim=1)
        found["predicted accuracy"] = 100 * H.softmax(-1).amax(-1).mean(dim=1)
        rows += [row(metric, estimate_over_seeds(value)) for metric, value in found.items()]
    return rows


FITS_NOTE = (
    "Value ± 95 % interval over learners, for these images: all of a kind are judged on the same "
    "ones. Held-out splits: learners of training sets of all sizes, plain or regularized by the "
    "posterior head on the images that they are judged on, which no NC was trained on. Test "
    "images: the learners of the table above, all methods together, transductive ones among them. "
    "Endpoints: after the last step; all the way: at every snapshot but that before the first "
    "step. Snapshots of one learner, and learners that started alike, depend on each other: no "
    "interval. R2 is the coefficient of determination."
)
SIZES_NOTE = (
    "Value ± 95 % interval over learners, for these images. Learners of one size have nearly one "
    "gap, so that R2 over all sizes says how well NC tells sizes apart, and the mean absolute "
    "error how far it is off."
)


def tables(rows: list[Row]) -> list[Table]:
    """Returns the paper's table, the fits to the gap, and the choice of strengths."""
    fits = report.fit_table(rows, "Predicted against true gap", FITS_NOTE, "learners")
    title = "Predicted and true gap by the size of the training set"
    sizes = report.fit_table(rows, title, SIZES_NOTE, "learners", report.BY_SIZE)
    return [report.accuracy_table(rows), fits, sizes, tuning.tuning_table(rows)]


def joint_table(runs: list[list[Row]]) -> Table:
    """Returns the paper's table: methods against datasets, one run of each."""
    columns = [report.accuracies(rows) for rows in runs]
    names = [report.describe(column[images.PLAIN]) for column in columns]
    if len(set(names)) < len(names):
        raise ValueError(f"runs must be of different datasets, got {', '.join(names)}")
    lines = []
    known = (*images.METHODS, images.BELIEFS, images.CNN)
    for method in (each for each in known if any(each in column for column in columns)):
        found = [column.get(method) for column in columns]  # earlier runs lack some methods
        lines.append((method.label, *map(show, found)))
        papers = [None if row is None else row.paper for row in found]
        if any(papers):
            shown = ("" if paper is None else f"{paper:.2f}" for paper in papers)
            lines.append((f"the paper's {method.label}", *shown))
    title = "Accuracy in % on the test images, by dataset and learner"
    note = (
        "Value ± 95 % interval over runs. The paper's numbers are of full datasets and its own "
        "learners; each run's page says how far it is from that."
    )
    return Table(title, ("method", *names), tuple(lines), note)


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws accuracies, learning curves, and predicted against true gaps."""
    drawn = report.draw_accuracies(outcome) + report.draw_curves(outcome)
    return drawn + report.draw_gap_fits(outcome)


LEAD = (
    "NC is meta-trained on random splits of a dataset's training images, and then regularizes "
    f"learners of all of them, which are evaluated on the test images. {report.MODES}Those "
    "held-out images decide the baselines' strengths, learning rates and augmentation, and where "
    "early stopping, which learns without them, stops. All learners start from the same weights "
    "and take the same number of steps, but for a plain one with twice as many: a step with NC "
    "sees twice the images. Three lines say where NC's help comes from: NC's beliefs used as a "
    "classifier, a network of NC's image encoder trained directly on the same labels, and learners "
    "that are regularized with that network's answers in the place of NC's beliefs (distilled)."
)
EXPERIMENT = Experiment(NAME, TITLE, LEAD, Config, PRESETS, run, tables, figures, joint_table)
