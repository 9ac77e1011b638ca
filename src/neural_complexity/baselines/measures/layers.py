"""What complexity measures see of learners: weights, layers, and predictions without noise."""

from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from neural_complexity.learners.batched import BatchedLearner, PlacedLearner, State
from neural_complexity.losses import zero_one
from neural_complexity.points import values
from neural_complexity.task import Task

__all__ = [
    "TINY",
    "displacement",
    "evaluated",
    "inputs_of",
    "labels",
    "logits",
    "logits_at",
    "matrices",
    "safe_log",
    "squared_norm",
    "weights",
]

TINY = 1e-12  # stands for zero where there would be a division by it


def safe_log(values: Tensor) -> Tensor:
    """Returns logarithms that are finite, also of zero."""
    return values.clamp(min=TINY).log()


def evaluated(h: BatchedLearner) -> PlacedLearner:
    """Returns the learners with noise layers off and without gradients; h stays as it is."""
    state = {name: value.detach() for name, value in h.state().items()}
    return PlacedLearner(deepcopy(h.template).eval(), state, h.placed().trained)


def weights(h: BatchedLearner) -> State:
    """Returns all parameters, (B, ...), by name, in order and without gradients."""
    state = h.state()
    return {name: state[name].detach() for name, _ in h.template.named_parameters()}


def matrices(h: BatchedLearner) -> State:
    """Returns the weights of the layers as matrices, (B, outputs, inputs), by name and in order.

    The matrix of a convolution has one row for each filter. Biases and scales are no layers.
    """
    found = {name: p.flatten(2) for name, p in weights(h).items() if p.ndim > 2}
    if not found:
        raise ValueError("h must have a layer with a matrix of weights, got none")
    return found


def displacement(h: BatchedLearner, initial: BatchedLearner) -> State:
    """Returns trained minus initial parameters, (B, ...), by name."""
    end, start = weights(h), weights(initial)
    shapes = [{name: p.shape for name, p in state.items()} for state in (end, start)]
    if shapes[0] != shapes[1]:
        raise ValueError("initial must have parameters of the shapes of those of h, got others")
    return {name: p - start[name] for name, p in end.items()}


def squared_norm(state: State) -> Tensor:
    """Returns the sum of squares of all values of each learner, (B,)."""
    return torch.stack([v.square().flatten(1).sum(dim=1) for v in state.values()]).sum(dim=0)


def logits(h: PlacedLearner, task: Task) -> Tensor:
    """Returns the logits of the training points, (B, M, C), after a look at the labels."""
    return logits_at(h, task.X_tr, task.Y_tr)


def logits_at(h: PlacedLearner, X: Tensor, Y: Tensor) -> Tensor:
    """Returns the logits of inputs, (B, points, C), after a look at their labels."""
    H = h(X)
    if H.shape[-1] < 2:
        raise ValueError(f"h must have a logit for each of 2 classes or more, got {H.shape[-1]}")
    zero_one(H, Y)  # refuses what are no labels
    return H


def labels(task: Task) -> Tensor:
    """Returns the labels of the training points, (B, M), after a look at whether they are any."""
    Y = task.Y_tr
    if Y.dtype != torch.int64 or Y.ndim != 2 or Y.min() < 0:
        wanted = "labels 0, 1, ... of type torch.int64, (tasks, points)"
        raise ValueError(f"training targets must be {wanted}, got {tuple(Y.shape)} {Y.dtype}")
    return Y


def inputs_of(h: PlacedLearner, name: str, X: Tensor) -> Tensor:
    """Returns what enters the layer of a weight, (B, points, features), for inputs (B, points, D).

    Of a network of one layer, these are the inputs themselves.
    """
    module = h.template.get_submodule(name.rpartition(".")[0])
    return vmap(partial(_seen, h.template, module))(h.values, values(X))


def _seen(template: nn.Module, module: nn.Module, state: State, x: Tensor) -> Tensor:
    seen: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        functional_call(template, state, (x,))
    finally:
        handle.remove()
    if not seen:
        raise ValueError(f"layers must be called as modules, got {module}, which is not")
    return seen[-1].flatten(1)
