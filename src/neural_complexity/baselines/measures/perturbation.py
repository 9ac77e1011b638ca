"""Perturbed parameters: random ones, worst ones, and how large they may be."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from neural_complexity.baselines.measures.layers import logits
from neural_complexity.learners.batched import PlacedLearner, State
from neural_complexity.losses import cross_entropy, zero_one
from neural_complexity.seeding import stream
from neural_complexity.task import Task

__all__ = ["Scale", "draw", "gradients", "random_radius", "shifted", "times", "worst_radius"]

Scale = Callable[[Tensor], Tensor]  # parameters to how far each moves at radius 1: one, or itself

DROP = 0.1  # the accuracy that perturbed networks may lose (Jiang et al., 2020)
SMALLEST, LARGEST = 1e-5, 10.0  # radii that are looked for
BISECTIONS = 10  # which leaves 1.4 %
DRAWS = 64  # perturbations that are averaged: with 4, the order of networks was mostly luck
ASCENT = 3  # steps uphill


def times(factor: Tensor, values: Tensor) -> Tensor:
    """Returns values of B learners, (B, ...), times a factor of each, (B,)."""
    return factor.view(-1, *[1] * (values.ndim - 1)) * values


def shifted(h: PlacedLearner, by: State) -> PlacedLearner:
    """Returns the learners with something added to what was trained."""
    return h.moved([h.values[name] + by[name] for name in h.trained])


def draw(h: PlacedLearner, i: int) -> State:
    """Draws Gaussian numbers for what was trained, (1, ...): the same ones for all learners."""
    # Common random numbers: learners differ by what they are, not by luck.
    generator, drawn = stream(0, "perturbation", i), State()
    for name in h.trained:
        p = h.values[name]
        shape = (1, *p.shape[1:])
        drawn[name] = torch.randn(shape, generator=generator, dtype=p.dtype).to(p.device)
    return drawn


def gradients(h: PlacedLearner, task: Task) -> State:
    """Returns the gradient of each learner's mean cross-entropy at its training points."""
    with torch.enable_grad():
        placed = h.moved([h.values[name].detach().requires_grad_() for name in h.trained])
        total = cross_entropy(logits(placed, task), task.Y_tr).mean(dim=1).sum()
        found = torch.autograd.grad(total, list(placed.parameters()))
    return dict(zip(h.trained, found, strict=True))


def random_radius(h: PlacedLearner, task: Task, scale: Scale) -> Tensor:
    """Returns the largest sigma, (B,), with E[error(w + sigma scale(w) z)] <= error(w) + 0.1.

    z is standard Gaussian; the expectation is over 64 draws, so that the order of units matters as
    much as another 64 would.
    """
    drawn = [draw(h, i) for i in range(DRAWS)]

    def error(sigma: Tensor) -> Tensor:
        errors = []
        for z in drawn:
            by = {n: times(sigma, scale(h.values[n]) * z[n]) for n in h.trained}
            errors.append(_error(shifted(h, by), task))
        return torch.stack(errors).mean(dim=0)

    return _largest(error, _error(h, task) + DROP)


def worst_radius(h: PlacedLearner, task: Task, scale: Scale) -> Tensor:
    """Returns the largest alpha, (B,), with max_u error(w + u) <= error(w) + 0.1.

    The maximum is over |u_i| <= alpha scale(w)_i, by 3 steps of projected ascent of the
    cross-entropy along the sign of its gradient. They start at w: Jiang et al. (2020) start at
    random.
    """

    def error(alpha: Tensor) -> Tensor:
        box = {n: times(alpha, scale(h.values[n])) for n in h.trained}
        u = {n: torch.zeros_like(v) for n, v in box.items()}
        for _ in range(ASCENT):
            uphill = gradients(shifted(h, u), task)
            # Two thirds of the box at a time: the first step alone does not decide.
            u = {n: u[n] + 2 / 3 * box[n] * uphill[n].sign() for n in u}
            u = {n: v.clamp(-box[n], box[n]) for n, v in u.items()}
        return _error(shifted(h, u), task)

    return _largest(error, _error(h, task) + DROP)


def _error(h: PlacedLearner, task: Task) -> Tensor:
    return zero_one(logits(h, task), task.Y_tr).mean(dim=1)


def _largest(error: Callable[[Tensor], Tensor], most: Tensor) -> Tensor:
    """Returns the largest radius, (B,), at which errors are not above `most`, by bisection."""
    low, high = (torch.full_like(most, math.log(r)) for r in (SMALLEST, LARGEST))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        held = error(middle.exp()) <= most
        low, high = torch.where(held, middle, low), torch.where(held, high, middle)
    return low.exp()
