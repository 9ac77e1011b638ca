"""Section 4.4, "Single Image Classification Tasks": one dataset, NC against other regularizers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD

from neural_complexity.baselines.distillation import Classifier, train_classifier
from neural_complexity.experiments.base.networks import HEADS
from neural_complexity.experiments.base.one_dataset import (
    LargeConfig,
    SplitTraining,
    World,
    called,
    describe,
    large_direct,
    large_posterior,
    make_recipe,
    make_splits,
    make_world,
    train_large,
)
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.pieces import Pieces
from neural_complexity.experiments.base.rows import Row, score_row
from neural_complexity.experiments.base.training import Head
from neural_complexity.experiments.base.trajectories import (
    NC_METHODS,
    PLAIN,
    Judge,
    arrange,
    by_size,
    chunks,
    fit_rows,
    in_chunks,
    join,
    learn,
    run_seed,
)
from neural_complexity.learners.mixup import mixup
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import Categorical, SmoothedCrossEntropy, cross_entropy, zero_one
from neural_complexity.meta.collect_splits import log_steps
from neural_complexity.meta.scores import (
    Estimate,
    estimate,
    estimate_mean,
    estimate_over_seeds,
    mean_absolute_error,
    r_squared,
)
from neural_complexity.meta.training_loop import Moment
from neural_complexity.model.encoders import make_image_encoder
from neural_complexity.model.indexed import Beliefs, Embeddings
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import Tell
from neural_complexity.regularizers.nc import nc_penalty_by_number
from neural_complexity.seeding import seeded, stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.tasks.augment import moved

__all__ = [
    "BELIEFS",
    "CNN",
    "DISTILLED",
    "EARLY",
    "NAME",
    "NO_LEARNER",
    "PAPER",
    "PLAIN",
    "PRESETS",
    "Config",
    "cifar",
    "cpu",
    "paper",
    "paper_resnet",
    "run",
    "small",
    "smoke",
    "svhn",
    "svhn_mlp",
]

NAME = "single"
EARLY = "early stopping"
DISTILLED = "distilled from the CNN, transductive"
BELIEFS, CNN = "NC posterior, its beliefs", "the same CNN, trained directly"
NO_LEARNER = "no learner"
# Table 5: accuracies of 5 runs.
PAPER = {
    "mnist": (98.31, 98.36, 98.57, 97.80, 99.03),
    "fashion-mnist": (88.21, 88.46, 89.15, 89.50, 89.74),
    "kmnist": (91.12, 91.31, 91.40, 91.10, 96.30),
    "svhn": (93.23, 94.06, 94.70, 94.88, 93.83),
    "cifar-10": (79.76, 79.84, 80.45, 80.92, 81.15),
}
PAPER_METHODS = (PLAIN, "L2", "label smoothing", "mixup", "NC direct, transductive")


@dataclass(frozen=True, kw_only=True)
class Config(LargeConfig):
    """NC against other regularizers, each of which is tuned on held-out images."""

    l2: tuple[float, ...] = (0.0001, 0.001, 0.003)
    """Strengths of weight decay to choose from."""
    smoothing: tuple[float, ...] = (0.05, 0.1, 0.2)
    """Strengths of label smoothing to choose from."""
    mixup: tuple[float, ...] = (0.1, 0.2, 0.5)
    """Strengths of mixup to choose from."""
    dropout: tuple[float, ...] = (0.2, 0.35, 0.5)
    """Strengths of dropout to choose from."""
    sam: tuple[float, ...] = (0.05, 0.1, 0.2)
    """Radii of sharpness-aware minimization to choose from."""
    sizes: tuple[int, ...] = (1000, 4000, 16_000, 40_000)
    """Training points of the held-out splits that NC is scored on."""
    split_steps: int = 1000
    """Updates of the learners of those."""
    cnn_updates: int = 20_000
    """Updates of the CNN that is trained directly; the presets show it as many labels as NC."""
    cnn_batch: int = 256
    """Images of each of these."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in OPPONENTS.values():
            if not all(strength > 0 for strength in getattr(self, name)) or not getattr(self, name):
                raise ValueError(f"{name} must be positive strengths, got {getattr(self, name)}")
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"sizes must be positive numbers, got {self.sizes}")


OPPONENTS = {
    "L2": "l2",
    "label smoothing": "smoothing",
    "mixup": "mixup",
    "dropout": "dropout",
    "SAM": "sam",
}


# Two strengths of each opponent: tuning takes as long as everything else otherwise.
STRENGTHS: dict[str, Any] = {
    "l2": (0.0003, 0.003),
    "smoothing": (0.1, 0.2),
    "mixup": (0.1, 0.3),
    "dropout": (0.2, 0.5),
    "sam": (0.05, 0.2),
}


def paper() -> Config:
    """The paper's wiring and sizes for MLP learners, for a GPU; `--dataset` says which."""
    return Config(dataset="mnist", steps=100_000)


def paper_resnet() -> Config:
    """The same for ResNet-18 on CIFAR-10 and SVHN.

    CIFAR-10 has 50,000 training images: those that are held out are missing in the splits.
    """
    deep: dict[str, Any] = {"width": 400, "heads": 8, "self_layers": 3, "batch": 4}
    deep |= {"image_encoder": "resnet", "channels": 64, "image_layers": 4, "unlabelled": 5000}
    return Config(
        dataset="cifar-10",
        split_test=5000,
        learner="ResNet",
        learner_width=64,
        lr=0.0001,
        steps=100_000,
        posterior=SplitTraining(**deep),
        direct=SplitTraining(**deep),
    )


def cpu() -> Config:
    """An MLP of 500 units on MNIST or one of its kin, an hour or two on two cores."""
    return Config(
        dataset="mnist",
        steps=5000,
        momentum=0.9,
        looks=7,
        judged=5000,
        eval_tasks=8,
        split_steps=500,
        posterior=large_posterior(iterations=30, updates=120),
        direct=large_direct(iterations=30, updates=120),
        share_images=True,
        cnn_updates=2700,
        **STRENGTHS,
    )


def small() -> Config:
    """The same for ten thousand images, such as KMNIST's test images alone."""
    return replace(
        cpu(),
        dataset="kmnist-10k",
        held=1000,
        split_train=5000,
        split_test=2000,
        steps=3000,
        judged=2000,
        sizes=(500, 1500, 5000),
        posterior=large_posterior(iterations=30, updates=80, smallest=500),
        direct=large_direct(iterations=30, updates=80, smallest=500),
        cnn_updates=1800,
    )


def cifar() -> Config:
    """A narrow, shallow residual network on a part of CIFAR-10, on two cores.

    8 filters instead of 64 at first, 3 blocks instead of 8, 10,000 images, 300 steps.
    """
    learners: dict[str, Any] = {"tasks": 1, "learner_steps": 60, "smallest": 500}
    return Config(
        dataset="cifar-10",
        train_images=10_000,
        test_images=2000,
        held=1000,
        split_train=7000,
        split_test=2000,
        learner="ResNet",
        learner_width=8,
        learner_blocks=(1, 1, 1),
        steps=300,
        lr=0.05,
        momentum=0.9,
        batch=32,
        unlabelled_batch=32,
        looks=3,
        judged=500,
        eval_tasks=6,
        sizes=(500, 2000, 7000),
        split_steps=100,
        posterior=large_posterior(iterations=30, updates=60, flip=True, **learners),
        direct=large_direct(iterations=30, updates=60, **learners),
        share_images=True,
        cnn_updates=1350,
        **STRENGTHS,
    )


def svhn() -> Config:
    """The same on SVHN, whose digits must not be turned around, and a little less of it."""
    config = cifar()
    return replace(
        config,
        dataset="svhn",
        posterior=replace(config.posterior, flip=False, iterations=20),
        direct=replace(config.direct, iterations=15),
        steps=200,
        cnn_updates=900,
    )


def svhn_mlp() -> Config:
    """MLP learners on the same part of SVHN: these learn something in the time there is."""
    config = svhn()
    learners: dict[str, Any] = {"tasks": 2, "learner_steps": 300}
    return replace(
        config,
        posterior=replace(config.posterior, **learners),
        direct=replace(config.direct, **learners),
        learner="MLP",
        learner_width=500,
        steps=1500,
        lr=0.01,
        batch=64,
        unlabelled_batch=64,
        split_steps=500,
        runs=3,
    )


def smoke() -> Config:
    """Seconds, on scikit-learn's digits; what CI runs."""
    tiny = {"width": 16, "heads": 2, "channels": 8, "M": 16, "N": 16, "iterations": 3}
    tiny |= {"updates": 4, "tasks": 2, "learner_steps": 8, "looks": 4, "smallest": 100}
    return Config(
        test_images=120,
        held=200,
        split_train=900,
        split_test=300,
        eval_tasks=6,
        runs=2,
        learner_width=16,
        steps=20,
        lr=0.05,
        momentum=0.9,
        batch=32,
        unlabelled_batch=32,
        shown=64,
        looks=3,
        judged=200,
        posterior=large_posterior(**tiny, unlabelled=64, shift=1),
        direct=large_direct(**(tiny | {"N": 60}), unlabelled=64),
        share_images=True,
        workers=0,
        l2=(0.001, 0.01),
        smoothing=(0.1,),
        mixup=(0.2,),
        dropout=(0.2,),
        sam=(0.05,),
        sizes=(100, 400, 900),
        split_steps=10,
        cnn_updates=10,
        cnn_batch=32,
    )


PRESETS: dict[str, Callable[[], Config]] = {
    "smoke": smoke,
    "cpu": cpu,
    "small": small,
    "cifar": cifar,
    "svhn": svhn,
    "svhn-mlp": svhn_mlp,
    "paper": paper,
    "paper-resnet": paper_resnet,
}


def run(config: Config, *, folder: Path | None = None, tell: Tell | None = None) -> Outcome:
    """Trains both NCs on splits, tunes the opponents, and compares all on the test images.

    Args:
        config: The settings.
        folder: Where unfinished work is kept, so that the same call goes on after an interruption.
        tell: Told about the progress.
    """
    world = make_world(config)
    # What does not fit the dataset is said now, and not when hours have gone.
    by_size(config, world, config.sizes)
    for training in (config.posterior, config.direct):
        make_splits(config, training, world)
    recipe = make_recipe(config, world)
    pieces = Pieces(_count(config), config, folder, tell)
    plain = {
        size: pieces.do(f"splits of {size}, plain", partial(_split, config, world, recipe, size))
        for size in config.sizes
    }
    judges: dict[str, Judge] = {}
    history: dict[str, list[Moment]] = {}
    for head in HEADS:
        first = judges.get("posterior") if config.share_images else None
        embeddings = None if first is None else first.embeddings
        nc, history[head] = train_large(
            config,
            head,
            world,
            validate=partial(_validate, config, head, world, plain, embeddings),
            images_from=None if first is None else first.nc,
            folder=folder,
            tell=tell,
        )
        judges[head] = Judge.of(nc, head, config, world, embeddings=embeddings)
    regularized = {
        size: pieces.do(
            f"splits of {size}, with NC",
            partial(_split, config, world, recipe, size, judges["posterior"]),
        )
        for size in config.sizes
    }
    logits = pieces.do(CNN, partial(_train_cnn, config, world, tell))
    tried = {
        (method, strength): pieces.do(
            f"{method} {strength:g}, tuning", partial(_tune, config, world, method, strength)
        )["error"][-1].mean()
        for method, name in OPPONENTS.items()
        for strength in getattr(config, name)
    }
    chosen = {
        method: min((tried[method, s].item(), s) for s in getattr(config, name))[1]
        for method, name in OPPONENTS.items()
    }
    results = {
        method: in_chunks(
            config,
            pieces,
            method,
            partial(_learn, config, world, judges, chosen, logits, method),
        )
        for method in methods()
    }
    rows = _accuracy_rows(config, world, judges, results, logits["test"])
    rows += _tuning_rows(config, tried, chosen)
    tensors = {f"{m}/{k}": t for m, result in results.items() for k, t in result.items()}
    for learners, found in (("plain", plain), ("with NC posterior", regularized)):
        seen = {
            size: {
                **{name: t for name, t in result.items() if not name.startswith("H_")},
                **_predictions(config, world, judges, size, result),
            }
            for size, result in found.items()
        }
        rows += _split_rows(config, seen, learners)
        short = learners.removesuffix(" posterior")
        tensors |= {f"splits/{z}/{short}/{k}": t for z, r in seen.items() for k, t in r.items()}
    rows += _test_rows(config, results)
    facts = {
        "seconds": {name: round(s, 1) for name, s in pieces.seconds.items()},
        "strengths": chosen,
        "images": {name: len(getattr(world, name)) for name in ("train", "held", "pool", "test")},
    }
    return Outcome(rows, tensors, {h: j.nc for h, j in judges.items()}, history, facts)


def methods() -> list[str]:
    """Gives what learners are trained with, in the order of the table."""
    return [PLAIN, *OPPONENTS, EARLY, *NC_METHODS, DISTILLED]


def _count(config: Config) -> int:
    """Counts the pieces of a run."""
    tuned = sum(len(getattr(config, name)) for name in OPPONENTS.values())
    return 2 * len(config.sizes) + 1 + tuned + len(methods()) * len(chunks(config))


def _variant(config: Config, world: World, method: str, strength: float) -> Recipe:
    """Gives the recipe of an opponent at a strength."""
    recipe = make_recipe(config, world)
    match method:
        case "L2":
            sgd = partial(SGD, momentum=config.momentum, weight_decay=strength, foreach=True)
            return replace(recipe, optimizer=sgd)
        case "label smoothing":
            return replace(recipe, loss=SmoothedCrossEntropy(strength))
        case "mixup":
            return replace(recipe, objective=mixup(cross_entropy, strength))
        case "dropout":
            return make_recipe(config, world, dropout=strength)
        case "SAM":
            return replace(recipe, sharpness=strength)
    raise ValueError(f"method must be one of {', '.join(OPPONENTS)}, got {method}")


def _split(
    config: Config, world: World, recipe: Recipe, size: int, judge: Judge | None = None
) -> dict[str, Tensor]:
    """Trains learners on held-out splits of one size, and keeps their predictions."""
    task, judged = by_size(config, world, [size])[size]
    parts = []
    for first, count in chunks(replace(config, runs=len(task))):
        rows = slice(first, first + count)
        penalty = None
        if judge is not None:
            penalty = judge.penalty(task[rows], weight=config.weight, floor=config.floor)
        names = ("splits", size) if count == len(task) else ("splits", size, first)
        parts.append(
            learn(
                replace(recipe, steps=config.split_steps),
                config,
                task[rows],
                judged[rows],
                seed=stream(config.seed, *names).initial_seed(),
                regularizer=penalty,
                visits=log_steps(config.split_steps, 5),
                keep=True,
            )
        )
    return join(parts)


def _predictions(
    config: Config,
    world: World,
    judges: dict[str, Judge],
    size: int,
    result: dict[str, Tensor],
) -> dict[str, Tensor]:
    """Lets NCs predict the gaps of learners on held-out splits, (looks, B) each."""
    _, judged = by_size(config, world, [size])[size]
    found = {}
    for head, judge in judges.items():
        known = judge.known(judged)
        columns = (result["H_tr"], result["H_te"])
        found[f"predicted/{head}"] = torch.stack(
            [
                judge.gaps(known, Snapshot(judged.X_tr, judged.Y_tr, H_tr, judged.X_te, H_te))
                for H_tr, H_te in zip(*(c.to(config.device) for c in columns), strict=True)
            ]
        ).cpu()
    return found


def _validate(
    config: Config,
    head: Head,
    world: World,
    plain: dict[int, dict[str, Tensor]],
    embeddings: Embeddings | None,
    nc: NeuralComplexity,
) -> float:
    """Scores NC on its way by R2 on the endpoints of plain learners of held-out splits."""
    tasks = [by_size(config, world, [size])[size][1] for size in plain]
    judge: dict[str, Judge] = {
        head: Judge.of(nc, head, config, world, embeddings=embeddings, tasks=tasks)
    }
    predicted, true = [], []
    for size, result in plain.items():
        last = {name: t[-1:] for name, t in result.items()}
        predicted.append(_predictions(config, world, judge, size, last)[f"predicted/{head}"][0])
        true.append(last["gap"][0])
    return r_squared(torch.cat(predicted), torch.cat(true)).item()


def _train_cnn(config: Config, world: World, tell: Tell | None) -> dict[str, Tensor]:
    """Trains NC's image encoder as a classifier; gives its logits of the test images."""
    training, images = config.posterior, world.dataset.images
    with seeded(config.seed, "classifier"):
        encoder = make_image_encoder(
            training.image_encoder,
            world.shape,
            channels=training.channels,
            layers=training.image_layers,
        )
        model = Classifier(encoder, images.classes, width=training.width).to(config.device)
    start = perf_counter()

    def watch(done: int, loss: float) -> None:
        if tell is not None:
            tell(CNN, done, config.cnn_updates, perf_counter() - start, {"loss": loss})

    train_classifier(
        model,
        world.dataset.look_up,
        world.train,
        images.labels.to(config.device)[world.train],
        updates=config.cnn_updates,
        batch=config.cnn_batch,
        lr=training.lr,
        warmup=training.warmup,
        augment=partial(moved, pixels=training.shift, flip=training.flip),
        seed=config.seed,
        watch=watch,
    )
    return {"test": model.classify(world.dataset.look_up, world.test)}


def _tune(config: Config, world: World, method: str, strength: float) -> dict[str, Tensor]:
    """Trains one learner without the held-out images, and judges it on them."""
    task = world.task(world.pool, world.held, 1)
    judged = world.task(world.pool[: config.judged], world.held, 1)
    seed = stream(config.seed, "tuning").initial_seed()
    return learn(_variant(config, world, method, strength), config, task, judged, seed=seed)


def _learn(
    config: Config,
    world: World,
    judges: dict[str, Judge],
    chosen: dict[str, float],
    logits: dict[str, Tensor],
    method: str,
    first: int,
    runs: int,
) -> dict[str, Tensor]:
    """Trains learners with one method, and looks at them on the test images."""
    recipe = make_recipe(config, world)
    task, judged, regularizer = arrange(config, world, judges, method, runs)
    held = None
    if method in OPPONENTS:
        recipe = _variant(config, world, method, chosen[method])
    elif method == EARLY:
        task = held = world.task(world.pool, world.held, runs)
        judged = world.task(world.pool[: config.judged], world.test, runs)
    elif method == DISTILLED:
        order = world.test.argsort()
        known = Beliefs(
            world.test[order].expand(runs, -1).contiguous(),
            Categorical(logits["test"].to(config.device)[order].expand(runs, -1, -1)),
        )
        regularizer = nc_penalty_by_number(
            judges["posterior"].nc, known, weight=config.weight, floor=config.floor
        )
    visits = (
        range(0, config.steps + 1, max(1, config.steps // 10))
        if method == EARLY
        else log_steps(config.steps, config.looks)
    )
    return learn(
        recipe,
        config,
        task,
        judged,
        seed=run_seed(config, first),
        regularizer=regularizer,
        judges=judges,
        visits=visits,
        held=held,
    )


def _row(
    config: Config,
    method: str,
    setting: str,
    metric: str,
    score: Estimate,
    paper: float | None = None,
) -> Row:
    return score_row(NAME, config.seed, method, setting, metric, score, paper)


def _accuracy_rows(
    config: Config,
    world: World,
    judges: dict[str, Judge],
    results: dict[str, dict[str, Tensor]],
    cnn: Tensor,
) -> list[Row]:
    """How good learners are at their end under each method, and what classifies without one."""
    rows = []
    published = dict(zip(PAPER_METHODS, PAPER.get(config.dataset, ()), strict=False))
    setting = describe(config)
    for method, result in results.items():
        add = partial(_row, config, method, setting)
        last = torch.full((result["error"].shape[1],), -1)
        if method == EARLY:
            last = result["error on held"].argmin(dim=0)
        own = {
            name: result[name].gather(0, (last % len(result[name]))[None])[0]
            for name in ("error", "loss_te", "loss_tr")
        }
        accuracy = estimate_over_seeds(100 * (1 - own["error"]))
        rows.append(add("accuracy", accuracy, published.get(method)))
        rows.append(add("test loss", estimate_over_seeds(own["loss_te"])))
        rows.append(add("train loss", estimate_over_seeds(own["loss_tr"])))
    task = world.task(world.train, world.test, 1)
    context = judges["posterior"].known(task)(task)
    assert isinstance(context.known, Categorical)
    for method, logits in ((BELIEFS, context.known.logits[0]), (CNN, cnn)):
        H, Y = logits[None].to(config.device), task.Y_te
        add = partial(_row, config, method, f"{called(config)}, {NO_LEARNER}")
        rows.append(add("accuracy", _single(100 * (1 - zero_one(H, Y).mean()))))
        rows.append(add("test loss", _single(cross_entropy(H, Y).mean())))
        rows.append(add("predicted accuracy", _single(100 * H.softmax(-1).amax(-1).mean())))
    return rows


def _single(value: Tensor) -> Estimate:
    """One network, so there is no interval."""
    return Estimate(value.item(), None, 1)


def _tuning_rows(
    config: Config, tried: dict[tuple[str, float], Tensor], chosen: dict[str, float]
) -> list[Row]:
    """How good each strength was on the held-out images."""
    return [
        _row(
            config,
            method,
            f"strength {strength:g}" + (", chosen" if chosen[method] == strength else ""),
            "accuracy on held-out training images",
            _single(100 * (1 - error)),
        )
        for (method, strength), error in tried.items()
    ]


def _split_rows(config: Config, found: dict[int, dict[str, Tensor]], learners: str) -> list[Row]:
    """How well NC foretells the gap on splits whose validation images it was not trained on."""
    rows = []
    for head in HEADS:
        where = f"held-out splits, {learners}, "
        rows += fit_rows(NAME, config, head, where, list(found.values()))
        for size, result in found.items():
            own, true = result[f"predicted/{head}"][-1], result["gap"][-1]
            where = f"held-out splits of {size}, {learners}, endpoints"
            for metric, value in (
                ("gap", estimate_mean(true)),
                ("predicted gap", estimate_mean(own)),
                ("MAE within a size", estimate(mean_absolute_error, own, true)),
            ):
                rows.append(_row(config, f"NC {head}", where, metric, value))
    return rows


def _test_rows(config: Config, results: dict[str, dict[str, Tensor]]) -> list[Row]:
    """How well NC foretells the gap on the test images, over all methods and looks."""
    found = list(results.values())
    return [
        row
        for head in HEADS  # learners that started alike depend on each other
        for row in fit_rows(NAME, config, head, "test images, ", found, independent=False)
    ]
