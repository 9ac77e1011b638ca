"""NC on one large dataset: what a regularized step of a learner costs, and what caching saves."""

from functools import partial

import torch
from torch.optim import SGD

from neural_complexity.cores import hold_memory
from neural_complexity.experiments.base.one_dataset import SplitTraining, split_training
from neural_complexity.experiments.base.training import Head
from neural_complexity.learners.batched import stack
from neural_complexity.learners.fit import Regularizer, fit
from neural_complexity.learners.networks import image_mlp
from neural_complexity.losses import cross_entropy
from neural_complexity.model.cached import (
    CachedEmbeddings,
    Encoder,
    cache,
    embed_store,
    subsample,
)
from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.points import raw
from neural_complexity.regularizers.nc import minibatch_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.images import Images, SingleDataset
from neural_complexity.tasks.splits import Minibatches, Splits
from timing import Ratio, operations, seconds_each
from timing import show as show_ratios

SHAPE, CLASSES, TRAIN, TEST, STEPS = (1, 28, 28), 10, 8000, 2000, 10


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

    def steps(regularizer: Regularizer | None = None) -> None:
        fit(
            h,
            batches,
            loss=cross_entropy,
            steps=STEPS,
            lr=1e-6,
            optimizer=partial(SGD, momentum=0.9, foreach=True),
            regularizer=regularizer,
        )

    def anew(points: Task | Snapshot) -> Context:
        few = torch.cat([raw(points.X_tr), raw(points.X_te)], dim=1)
        return CachedEmbeddings(nc, embed_store(nc, dataset, few))(points)

    penalty = minibatch_penalty(nc, encode)
    encoded = minibatch_penalty(nc, anew)
    plain, cached, slow = seconds_each(
        steps, partial(steps, penalty), partial(steps, encoded), rounds=7
    )
    learners = f"{runs} learner" + ("s" if runs > 1 else "")
    more = operations(partial(steps, penalty)) / operations(steps)
    each = f"{cached / STEPS * 1e3:.1f} against {plain / STEPS * 1e3:.1f} ms"
    each += f"; {more:.1f} times the products"
    kept = f"{slow / STEPS * 1e3:.1f} against {cached / STEPS * 1e3:.1f} ms"
    cost, saved = cached / plain, slow / cached
    bar = 2.0
    return [
        Ratio(
            f"MLP-500, {learners}, {head}: regularized over plain step",
            cost,
            f"<= {bar}",
            cost <= bar,
            each,
        ),
        Ratio(
            f"MLP-500, {learners}, {head}: encoded anew over cached",
            saved,
            ">= 2",
            saved >= 2,
            kept,
        ),
    ]


def main() -> None:
    hold_memory()
    show_ratios(
        [
            *step_ratio("posterior", split_training("posterior"), 1),
            *step_ratio("posterior", split_training("posterior"), 5),
            *step_ratio("direct", split_training("direct"), 1),
        ]
    )


if __name__ == "__main__":
    main()
