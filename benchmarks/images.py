"""NC on images: its encoder against the machine's convolution peak, and what caching saves."""

from collections.abc import Callable
from functools import partial

import torch
from torch.func import functional_call
from torch.nn.functional import conv2d

from neural_complexity.cores import hold_memory
from neural_complexity.experiments.base.few_shot_images import LabelTraining, direct, posterior
from neural_complexity.experiments.base.training import Head
from neural_complexity.learners.batched import stack
from neural_complexity.learners.fit import fit
from neural_complexity.learners.networks import image_cnn, image_mlp
from neural_complexity.losses import cross_entropy
from neural_complexity.model.encoders import ImageEncoder
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.regularizers.nc import nc_penalty
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from timing import Ratio, operations, seconds_each, show

SHAPE, WAYS, QUERIES, TASKS = (1, 28, 28), 10, 5, 16


def make_task() -> Task:
    """Makes few-shot tasks of noise: what is in an image costs nothing."""
    generator = stream(0, "benchmark")
    X_tr = torch.rand(TASKS, WAYS, *SHAPE, generator=generator)
    X_te = torch.rand(TASKS, WAYS * QUERIES, *SHAPE, generator=generator)
    labels = torch.arange(WAYS).repeat(TASKS, 1)
    return Task(X_tr, labels, X_te, labels.repeat(1, QUERIES))


def conv_peak() -> tuple[Callable[[], object], float]:
    """Returns a convolution that this machine does well and its number of operations."""
    X = torch.randn(256, 128, 14, 14).to(memory_format=torch.channels_last)
    W = torch.randn(128, 128, 3, 3).to(memory_format=torch.channels_last)
    return lambda: conv2d(X, W, padding=1), 2.0 * 256 * 14 * 14 * 128 * 128 * 9


def encoder_ratios() -> list[Ratio]:
    """Measures images a second, forward and with gradients."""
    encoder = ImageEncoder(SHAPE, channels=64, layers=4)
    X = torch.rand(512, *SHAPE)
    peak, peak_operations = conv_peak()

    def forward() -> None:
        with torch.no_grad():
            encoder(X)

    def train() -> None:
        encoder(X).square().mean().backward()

    ratios = []
    for name, work, bar in (("forward", forward, 0.35), ("with gradients", train, 0.35)):
        seconds, at_peak = seconds_each(work, peak)
        rate, best = operations(work) / seconds, peak_operations / at_peak
        note = f"{len(X) / seconds:.0f} images/s, {rate / 1e9:.0f} of {best / 1e9:.0f} GFLOP/s"
        ratio = rate / best
        ratios.append(
            Ratio(
                f"image encoder, {name}: share of conv peak", ratio, f">= {bar}", ratio >= bar, note
            )
        )
    return ratios


def cache_ratio(head: Head, training: LabelTraining) -> Ratio:
    """Measures a regularized learner step with embeddings at hand and with images encoded anew."""
    task = make_task()
    nc = NeuralComplexity.for_tasks(task, loss="cross_entropy", **training.architecture(head))
    h = stack(partial(image_mlp, SHAPE, [64], WAYS), TASKS, stream(0, "learners"))
    step = partial(fit, h, task, loss=cross_entropy, steps=1, lr=1e-6)
    cached = partial(step, regularizer=nc_penalty(nc, task, safeguard=False))

    def anew() -> None:
        step(regularizer=nc_penalty(nc, task, safeguard=False))

    plain, kept, encoded = seconds_each(step, cached, anew)
    note = f"{kept * 1e3:.1f} against {encoded * 1e3:.1f} ms; plain step {plain * 1e3:.1f} ms"
    name = f"regularized step, {head}: encoded anew over cached embeddings"
    return Ratio(name, encoded / kept, ">= 5", encoded / kept >= 5, note)


def batched_ratio(name: str, make: Callable[[], torch.nn.Module], bar: float) -> Ratio:
    """Measures learners in one call against one by one."""
    task = make_task()
    h = stack(make, TASKS, stream(0, "learners"))
    module, state = make(), h.state()

    def together() -> None:
        loss = cross_entropy(h(task.X_tr), task.Y_tr).mean(dim=1).sum()
        torch.autograd.grad(loss, list(h.parameters()))

    def one_by_one() -> None:
        for b in range(TASKS):
            own = {n: t[b].detach().requires_grad_() for n, t in state.items()}
            logits = functional_call(module, own, (task.X_tr[b],)).unsqueeze(0)
            loss = cross_entropy(logits, task.Y_tr[b : b + 1]).mean()
            torch.autograd.grad(loss, list(own.values()))

    batched, single = seconds_each(together, one_by_one)
    note = f"{batched * 1e3:.1f} against {single * 1e3:.1f} ms"
    ratio = single / batched
    return Ratio(
        f"{TASKS} {name} learners: one by one over batched", ratio, f">= {bar}", ratio >= bar, note
    )


def main() -> None:
    hold_memory()
    mlp, cnn = partial(image_mlp, SHAPE, [64], WAYS), partial(image_cnn, SHAPE, [8, 8], WAYS)
    show(
        [
            *encoder_ratios(),
            cache_ratio("posterior", posterior()),
            cache_ratio("direct", direct()),
            batched_ratio("MLP", mlp, 2),
            batched_ratio("CNN", cnn, 1),
        ]
    )


if __name__ == "__main__":
    main()
