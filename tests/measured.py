"""Small classifiers, and what complexity measures must not notice: order of units and points."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from neural_complexity.learners.batched import BatchedLearner, State, stack
from neural_complexity.learners.fit import fit
from neural_complexity.learners.networks import mlp
from neural_complexity.losses import cross_entropy
from neural_complexity.seeding import stream
from neural_complexity.task import Task


def classes_of_points(
    B: int = 3, M: int = 20, N: int = 8, D: int = 4, C: int = 3, seed: int = 0
) -> Task:
    """Draws points with labels that a network can learn, most of them."""
    generator = stream(seed, "points")
    X = torch.randn(B, M + N, D, generator=generator)
    noise = torch.randn(B, M + N, C, generator=generator)
    Y = (X @ torch.randn(D, C, generator=generator) + 0.3 * noise).argmax(dim=-1)
    return Task(X[:, :M], Y[:, :M], X[:, M:], Y[:, M:])


def classifiers(
    task: Task,
    hidden: Sequence[int] = (6, 5),
    steps: int = 60,
    make: Callable[[], nn.Module] | None = None,
) -> tuple[BatchedLearner, BatchedLearner]:
    """Returns trained classifiers, and those that they began as."""
    C = int(max(task.Y_tr.max(), task.Y_te.max())) + 1
    make = make or partial(mlp, task.X_tr.shape[-1], hidden, C)
    h, initial = (stack(make, len(task), stream(0, "classifiers")) for _ in range(2))
    fit(h, task, loss=cross_entropy, steps=steps, lr=0.3)
    return h, initial


def linear(W: Tensor, b: Tensor | None = None) -> BatchedLearner:
    """Returns networks of one layer with given weights, (B, C, D), and biases, (B, C) or zero."""
    B, C, D = W.shape
    state = {"weight": W, "bias": torch.zeros(B, C) if b is None else b}
    return BatchedLearner(nn.Linear(D, C), {name: value.clone() for name, value in state.items()})


def changed(h: BatchedLearner, change: Callable[[State], State]) -> BatchedLearner:
    """Returns the same learners with other parameters, by name."""
    state = {name: value.detach().clone() for name, value in h.state().items()}
    return BatchedLearner(h.template, change(state))


def layers(state: State) -> list[str]:
    """Returns the names of the layers of an MLP."""
    return [name.removesuffix(".weight") for name in state if name.endswith(".weight")]


def permuted(state: State) -> State:
    """Reverses the units of each hidden layer of an MLP; a leading axis of any length."""
    state = dict(state)
    for first, second in pairwise(layers(state)):
        for name, axis in ((f"{first}.weight", 1), (f"{first}.bias", 1), (f"{second}.weight", 2)):
            state[name] = state[name].flip(axis)
    return state


def rescaled(state: State, c: float) -> State:
    """Multiplies the first layer of an MLP by c and divides the second by it."""
    first, second = layers(state)[:2]
    factors = {f"{first}.weight": c, f"{first}.bias": c, f"{second}.weight": 1 / c}
    return {name: value * factors.get(name, 1.0) for name, value in state.items()}
