"""NC on one large dataset: what a regularized step of a learner costs, and what caching saves."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.optim import SGD

from neural_complexity.cores import hold_memory
from neural_complexity.experiments.base.one_dataset import SplitTraining, split_training
from neural_complexity.experiments.base.training import Head
from neural_complexity.experiments.base.unseen_digits import unseen_digits
from neural_complexity.learners.batched import stack
from neural_complexity.learners.fit import Recipe, Regularizer, fit
from neural_complexity.learners.networks import image_mlp
from neural_complexity.losses import cross_entropy, zero_one
from neural_complexity.model.cached import (
    CachedEmbeddings,
    Encoder,
    cache,
    embed_store,
    subsample,
)
from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.points import raw
from neural_complexity.regularizers.lazy import every
from neural_complexity.regularizers.nc import minibatch_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.images import Images, SingleDataset
from neural_complexity.tasks.splits import Minibatches, Splits
from timing import Ratio, operations, seconds_each
from timing import show as show_ratios

SHAPE, CLASSES, TRAIN, TEST = (1, 28, 28), 10, 8000, 2000
STEPS, SELDOM = 12, 4  # and those from one question to NC to the next


def make_dataset() -> SingleDataset:
    """Makes images of noise: what is in an image costs nothing."""
    generator = stream(0, "benchmark")
    pixels = torch.randint(256, (TRAIN + TEST, *SHAPE), generator=generator).to(torch.uint8)
    labels = torch.arange(TRAIN + TEST) % CLASSES
    return SingleDataset("noise", Images(pixels, labels), TRAIN)


def make_nc(splits: Splits, training: SplitTraining, head: Head) -> NeuralComplexity:
    """Makes an untrained NC, which costs as much as a trained one."""
    example = splits.sample(2, stream(0, "units"))
    return NeuralComplexity.for_tasks(example, loss="cross_entropy", **training.architecture(head))


def step_ratio(head: Head, training: SplitTraining, runs: int) -> list[Ratio]:
    """Measures steps of MLP-500 learners, plain, regularized, and with images encoded anew."""
    dataset = make_dataset()
    indices = torch.arange(TRAIN + TEST)
    splits = Splits(dataset, indices, train=TRAIN, test=TEST, M=training.M, N=training.N)
    task = splits.split(runs, stream(0, "task"))
    nc = make_nc(splits, training, head)
    embeddings = embed_store(nc, dataset, indices)
    seen = subsample(task, 1000, stream(0, "shown")) if head == "posterior" else task
    encode: Encoder = cache(nc, seen, embeddings)
    # Made once: making learners takes as long as several steps, and would hide what a step costs.
    make = partial(image_mlp, SHAPE, [500], CLASSES)
    h = stack(make, runs, stream(0, "learners"))
    batches = Minibatches(task, M=128, N=128, seed=0)

    def steps(
        regularizer: Regularizer | None = None, schedule: Callable[[int], float] | None = None
    ) -> None:
        fit(
            h,
            batches,
            loss=cross_entropy,
            steps=STEPS,
            lr=1e-6,
            optimizer=partial(SGD, momentum=0.9, foreach=True),
            regularizer=regularizer,
            schedule=schedule,
        )

    def anew(points: Task | Snapshot) -> Context:
        few = torch.cat([raw(points.X_tr), raw(points.X_te)], dim=1)
        return CachedEmbeddings(nc, embed_store(nc, dataset, few))(points)

    penalty = minibatch_penalty(nc, encode)
    encoded = minibatch_penalty(nc, anew)
    plain, cached, seldom, slow = seconds_each(
        steps,
        partial(steps, penalty),
        partial(steps, penalty, every(SELDOM)),
        partial(steps, encoded),
        rounds=7,
    )
    learners = f"{runs} learner" + ("s" if runs > 1 else "")
    more = operations(partial(steps, penalty)) / operations(steps)
    each = f"{cached / STEPS * 1e3:.1f} against {plain / STEPS * 1e3:.1f} ms"
    each += f"; {more:.1f} times the products"
    kept = f"{slow / STEPS * 1e3:.1f} against {cached / STEPS * 1e3:.1f} ms"
    cost, lazy, saved = cached / plain, seldom / plain, slow / cached
    bar = 2.0 if head == "posterior" else None
    return [
        Ratio(
            f"MLP-500, {learners}, {head}: regularized over plain step",
            cost,
            f"<= {bar}" if bar else "none",
            bar is None or cost <= bar,
            each,
        ),
        Ratio(
            f"MLP-500, {learners}, {head}: at every {SELDOM}th step, over plain step",
            lazy,
            "<= 2.0",
            lazy <= 2.0,
            f"{seldom / STEPS * 1e3:.1f} against {plain / STEPS * 1e3:.1f} ms",
        ),
        Ratio(
            f"MLP-500, {learners}, {head}: encoded anew over cached",
            saved,
            ">= 2",
            saved >= 2,
            kept,
        ),
    ]


def lazy_errors() -> Ratio:
    """Measures what asking NC seldom costs, by 32 learners with 50 labels of digits new to NC."""
    nc = NeuralComplexity.pretrained("digits")
    X, y = unseen_digits(nc)
    order = torch.rand(32, len(X), generator=stream(0, "lazy digits")).argsort(dim=1)
    tr, te = order[:, :50], order[:, 50:450]
    task = Task(X[tr], y[tr], X[te], y[te])
    how: dict[str, Any] = {"optimizer": partial(SGD, momentum=0.9, foreach=True), "lr": 0.05}
    how |= {"loss": cross_entropy, "steps": 300, "warmup": 0.1, "decay": True}
    recipe = Recipe(make=partial(image_mlp, X.shape[1:], [64], CLASSES), **how)

    def errors(weight: float, schedule: Callable[[int], float] | None = None) -> float:
        penalty = minibatch_penalty(nc, CachedEmbeddings(nc), weight=weight)
        batches, learners = Minibatches(task, M=32, N=64, seed=0), stream(0, "learners")
        h = recipe.train(batches, learners, regularizer=penalty, schedule=schedule)
        with torch.no_grad():
            return zero_one(h(task.X_te), task.Y_te).mean().item()

    plain, always, seldom = errors(0.0), errors(1.0), errors(1.0, every(SELDOM))
    kept = (plain - seldom) / (plain - always)
    note = f"errors {plain:.3f} without NC, {always:.3f} with NC at each step, {seldom:.3f}"
    return Ratio(f"gain kept at every {SELDOM}th step, digits", kept, ">= 0.9", kept >= 0.9, note)


def main() -> None:
    hold_memory()
    show_ratios(
        [
            *step_ratio("posterior", split_training("posterior"), 1),
            *step_ratio("posterior", split_training("posterior"), 5),
            *step_ratio("direct", split_training("direct"), 1),
            lazy_errors(),
        ]
    )


if __name__ == "__main__":
    main()
