"""Complexity measures of flatness: how far parameters can move before the training error rises.

Training error and loss under perturbation are those of at most 256 training points.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from neural_complexity.baselines.measures.chosen_points import few
from neural_complexity.baselines.measures.layers import (
    TINY,
    displacement,
    evaluated,
    logits,
    squared_norm,
    weights,
)
from neural_complexity.baselines.measures.perturbation import (
    Scale,
    gradients,
    random_radius,
    shifted,
    times,
    worst_radius,
)
from neural_complexity.learners.batched import BatchedLearner, State
from neural_complexity.losses import cross_entropy
from neural_complexity.task import Task

__all__ = [
    "adaptive_sharpness",
    "pac_bayes",
    "pac_bayes_magnitude",
    "random_sharpness",
    "sam_sharpness",
    "shared_radii",
    "worst_sharpness",
]

DELTA = 0.05  # the probability with which a bound may fail
EPSILON = 1e-3  # the least standard deviation of a parameter where it is in proportion to it
RHO, ADAPTIVE_RHO = 0.05, 0.5  # of SAM and of adaptive SAM, as in their papers

_radii: ContextVar[dict[object, Tensor] | None] = ContextVar("radii", default=None)


@contextmanager
def shared_radii() -> Iterator[None]:
    """Lets measures of the same learners share the search for a radius, which takes most of them.

    Learners and tasks must stay as they are until the end of the `with` statement.
    """
    token = _radii.set({})
    try:
        yield
    finally:
        _radii.reset(token)


def _radius(h: BatchedLearner, task: Task, scale: Scale, worst: bool) -> Tensor:
    """Returns the `worst_radius` or the `random_radius` of each learner, (B,)."""
    kept, key = _radii.get(), (id(h), id(task), scale, worst)
    if kept is not None and key in kept:
        return kept[key]
    found = (worst_radius if worst else random_radius)(evaluated(h), few(task), scale)
    if kept is not None:
        kept[key] = found
    return found


def random_sharpness(
    h: BatchedLearner, initial: BatchedLearner, task: Task, *, scale: Scale = torch.ones_like
) -> Tensor:
    """Returns 1 / sigma^2 of the `random_radius`, "pac-bayes flatness" of Jiang et al. (2020).

    With `scale=torch.abs` each weight moves in proportion to itself: 1 / sigma'^2,
    magnitude-aware.
    """
    return _radius(h, task, scale, worst=False).pow(-2)


def worst_sharpness(
    h: BatchedLearner, initial: BatchedLearner, task: Task, *, scale: Scale = torch.ones_like
) -> Tensor:
    """Returns 1 / alpha^2 of the `worst_radius`, "sharpness flatness" of Jiang et al. (2020).

    After Keskar et al. (2017). With `scale=torch.abs` it is 1 / alpha'^2, magnitude-aware.
    """
    return _radius(h, task, scale, worst=True).pow(-2)


def pac_bayes(
    h: BatchedLearner,
    initial: BatchedLearner,
    task: Task,
    *,
    origin: bool = False,
    worst: bool = False,
) -> Tensor:
    """Returns McAllester's bound of the gap, sqrt((KL + log(2 sqrt(M) / delta)) / 2M).

    KL = |w - w0|^2 / 2 sigma^2, of Gaussians of variance sigma^2 around the trained parameters and
    the initial ones w0; around zero instead of w0 if `origin`. sigma is the `random_radius`; if
    `worst`, it is alpha / sqrt(2 log 2n), by which noise of n parameters is likely to stay within
    the `worst_radius` alpha (Dziugaite and Roy, 2017; Jiang et al., 2020). sigma is chosen by the
    training points and delta not corrected for it, so that the bound itself is not proven.
    """
    sigma, _ = _sigma(h, task, torch.ones_like, worst)
    return _mcallester(squared_norm(_from(h, initial, origin)) / (2 * sigma.square()), task)


def pac_bayes_magnitude(
    h: BatchedLearner,
    initial: BatchedLearner,
    task: Task,
    *,
    origin: bool = False,
    worst: bool = False,
) -> Tensor:
    """Returns the bound of `pac_bayes` for noise in proportion to each of the n parameters.

    KL = sum_i log(s^2 / v_i) / 2, with v_i = sigma'^2 w_i^2 + epsilon^2 the variance of a parameter
    and s^2 = sum_i (v_i + (w_i - w0_i)^2) / n that of a prior around w0 which makes KL smallest;
    epsilon = 0.001 (Jiang et al., 2020, whose formula it is for `origin`).
    """
    sigma, n = _sigma(h, task, torch.abs, worst)
    v = {k: times(sigma, w).square() + EPSILON**2 for k, w in weights(h).items()}
    prior = _total(v) + squared_norm(_from(h, initial, origin))
    KL = (n * (prior / n).log() - _total({k: each.log() for k, each in v.items()})) / 2
    return _mcallester(KL, task)


def _sigma(h: BatchedLearner, task: Task, scale: Scale, worst: bool) -> tuple[Tensor, int]:
    """Returns the standard deviation of the noise that h endures, (B,), and its parameters, n."""
    n = sum(p[0].numel() for p in weights(h).values())
    return _radius(h, task, scale, worst) / (math.sqrt(2 * math.log(2 * n)) if worst else 1.0), n


def _from(h: BatchedLearner, initial: BatchedLearner, origin: bool) -> State:
    return weights(h) if origin else displacement(h, initial)


def _mcallester(KL: Tensor, task: Task) -> Tensor:
    M = task.Y_tr.shape[1]
    return ((KL + math.log(2 * math.sqrt(M) / DELTA)) / (2 * M)).sqrt()


def _total(state: State) -> Tensor:
    return torch.stack([v.flatten(1).sum(dim=1) for v in state.values()]).sum(dim=0)


def sam_sharpness(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns L(w + u) - L(w), with u = rho g / |g|, g the gradient of the cross-entropy L.

    rho = 0.05 (sharpness-aware minimization, Foret et al., 2021).
    """
    return _rise(h, task, RHO, torch.ones_like)


def adaptive_sharpness(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns L(w + u) - L(w), with u = rho w^2 g / | |w| g |, element by element.

    rho = 0.5 (adaptive SAM, Kwon et al., 2021).
    """
    return _rise(h, task, ADAPTIVE_RHO, torch.abs)


def _rise(h: BatchedLearner, task: Task, rho: float, scale: Scale) -> Tensor:
    learner, points = evaluated(h), few(task)
    uphill = gradients(learner, points)
    units = {n: scale(learner.values[n]) for n in uphill}
    length = squared_norm({n: units[n] * g for n, g in uphill.items()}).sqrt()
    factor = rho / length.clamp(min=TINY)  # (B,)
    u = {n: times(factor, units[n].square() * g) for n, g in uphill.items()}
    after, before = (
        cross_entropy(logits(each, points), points.Y_tr).mean(dim=1)
        for each in (shifted(learner, u), learner)
    )
    return after - before
