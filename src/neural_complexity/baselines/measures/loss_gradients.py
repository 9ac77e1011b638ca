"""Complexity measures of the training loss and its gradients, in parameters and in inputs.

What takes much memory is of at most 1,024 training points.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from neural_complexity.baselines.measures.chosen_points import MANY, few
from neural_complexity.baselines.measures.layers import (
    evaluated,
    logits,
    logits_at,
    squared_norm,
)
from neural_complexity.baselines.measures.perturbation import gradients, shifted
from neural_complexity.learners.batched import BatchedLearner, PlacedLearner, State
from neural_complexity.losses import cross_entropy, zero_one
from neural_complexity.points import values
from neural_complexity.task import Task

__all__ = [
    "fisher_rao_norm",
    "gradient_noise",
    "gradient_noise_at_initialization",
    "gradient_norm",
    "input_gradient",
    "loss_decrease",
    "training_error",
    "training_loss",
]

GRADIENT_POINTS = 128  # training points whose gradients are taken one by one
NUMBERS = 2**24  # parameters times learners times points at a time: bounds memory
STEP = 0.01  # the learning rate of one more step


def training_loss(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the mean cross-entropy of the training points, L (Jiang et al., 2020)."""
    return _loss(evaluated(h), task)


def training_error(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the share of training points that are classified wrongly (Jiang et al., 2020)."""
    return zero_one(logits(evaluated(h), task), task.Y_tr).mean(dim=1)


def loss_decrease(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns L(w) - L(w - 0.01 grad L): how much one more gradient step would lower the loss.

    It stands for the slope of the training curve, of which (h, initial, task) know nothing (the
    sum of training losses of Ru et al., 2021). Learners that still fall are not in a flat place. To
    first order it is 0.01 times the squared norm of the gradient, and ranks alike.
    """
    learner, points = evaluated(h), few(task, MANY)
    downhill = {name: -STEP * g for name, g in gradients(learner, points).items()}
    return _loss(learner, points) - _loss(shifted(learner, downhill), points)


def gradient_norm(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns |grad L|^2 of the training loss (Zhao, Zhang and Hu, 2022)."""
    return squared_norm(gradients(evaluated(h), few(task, MANY)))


def gradient_noise(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the total variance over training points of the gradients of their losses.

    That is mean_i |g_i|^2 - |mean_i g_i|^2, "grad-noise-final" of Jiang et al. (2020); over at most
    128 points.
    """
    learner, points = evaluated(h), few(task, GRADIENT_POINTS)
    logits(learner, points)  # refuses what are no labels
    P = sum(learner.values[name][0].numel() for name in learner.trained)
    size = max(1, NUMBERS // (P * len(points)))
    parts = zip(values(points.X_tr).split(size, 1), points.Y_tr.split(size, 1), strict=True)
    total = sum(_squared_gradients(learner, X, Y).sum(dim=1) for X, Y in parts)
    mean = total / points.Y_tr.shape[1]  # (B,)
    return (mean - squared_norm(gradients(learner, points))).clamp(min=0)


def gradient_noise_at_initialization(
    h: BatchedLearner, initial: BatchedLearner, task: Task
) -> Tensor:
    """Returns the `gradient_noise` of the initial learners (Jiang et al., 2020: of the start)."""
    return gradient_noise(initial, initial, task)


def fisher_rao_norm(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns w' F w, with F = mean_i g_i g_i' of the gradients of the training points' losses.

    The norm of Liang, Poggio, Rakhlin and Stokes (2019). g_i' w is the derivative of a point's loss
    where all parameters are multiplied by t, at t = 1.
    """
    learner, points = evaluated(h), few(task, MANY)
    with torch.enable_grad():
        t = next(iter(learner.parameters())).new_ones(()).requires_grad_()
        scaled = learner.moved(t * p for p in learner.parameters())
        losses = cross_entropy(logits(scaled, points), points.Y_tr)  # (B, M)
        # Backwards twice: what is linear in the weights of a sum of losses has their slopes as its
        # gradient. Going forwards needs parts of PyTorch that it calls deprecated.
        v = torch.zeros_like(losses, requires_grad=True)
        (along,) = torch.autograd.grad((v * losses).sum(), t, create_graph=True)
        (slopes,) = torch.autograd.grad(along, v)
    return slopes.square().mean(dim=1)


def input_gradient(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the mean over training points of |grad_x L(h, (x, y))|^2.

    The penalty of double backpropagation (Drucker and LeCun, 1992).
    """
    points = few(task, MANY)
    X = values(points.X_tr).detach().clone().requires_grad_()
    with torch.enable_grad():
        total = cross_entropy(logits_at(evaluated(h), X, points.Y_tr), points.Y_tr).sum()
        (slope,) = torch.autograd.grad(total, X)
    return slope.flatten(2).square().sum(dim=2).mean(dim=1)


def _loss(h: PlacedLearner, task: Task) -> Tensor:
    return cross_entropy(logits(h, task), task.Y_tr).mean(dim=1)


def _squared_gradients(h: PlacedLearner, X: Tensor, Y: Tensor) -> Tensor:
    """Returns |grad L(h, z)|^2 of each point, (B, points)."""
    trained = {name: h.values[name] for name in h.trained}
    fixed = {name: value for name, value in h.values.items() if name not in trained}
    each = partial(_squared_gradient, h.template)
    found: Tensor = vmap(vmap(each, in_dims=(None, None, 0, 0)))(trained, fixed, X, Y)
    return found


def _squared_gradient(net: nn.Module, own: State, fixed: State, x: Tensor, y: Tensor) -> Tensor:
    def loss(trained: State) -> Tensor:
        H: Tensor = functional_call(net, {**fixed, **trained}, (x.unsqueeze(0),))
        return nn.functional.cross_entropy(H, y.unsqueeze(0))

    return torch.stack([g.square().sum() for g in grad(loss)(own).values()]).sum()
