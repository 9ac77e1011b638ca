"""NC asked at a few steps only: lazy regularization (Karras et al., 2020), for what it costs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from neural_complexity.learners.fit import Learner, Regularizer
from neural_complexity.losses import Loss
from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.regularizers.nc import weigh_gap
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task

__all__ = ["every", "lazy_penalty"]


def every(steps: int, weight: float = 1.0) -> Callable[[int], float]:
    """Returns the weight of a penalty that is asked for at every so-many-th step, and counts more.

    For minibatches: `NCRegularizer(nc, weight=every(4, 0.1))`, or `fit(..., schedule=every(4))`. A
    step without the penalty costs what a plain one does; the others have it so many times, so that
    it pulls as hard in all.

    Raises:
        ValueError: If there are no steps.
    """
    _check(steps)
    return partial(_every, steps, weight)


def _every(steps: int, weight: float, done: int) -> float:
    """Returns the weight after so many steps: a function of a module, which can be pickled."""
    return 0.0 if done % steps else steps * weight


def lazy_penalty(
    nc: NeuralComplexity,
    task: Task,
    *,
    steps: int,
    weight: float | Tensor = 1.0,
    floor: float | None = None,
) -> Regularizer:
    """Returns `nc_penalty` without its safeguard that asks NC at every so-many-th step only.

    For learners that see the same points at each step. In between, NC's last answer is carried on
    along the shape of the loss, which for squared errors and cross-entropies does not depend on the
    target: as if the targets that NC had in mind stayed the same. The posterior head's do, so that
    its penalty is always exact; that of the direct head is at the steps at which it is asked.

    Args:
        nc: The gap predictor; stays as it is.
        task: The tasks that the learners are trained on.
        steps: From one question to the next; the first step asks.
        weight: As in `nc_penalty`, as is `floor`.
        floor: Predictions below it count as the floor.

    Returns:
        A regularizer for one call of `fit`: it counts its steps.

    Raises:
        ValueError: If there are no steps, or the tasks do not fit NC.
    """
    _check(steps)
    nc.check(X_tr=task.X_tr, Y_tr=task.Y_tr, X_te=task.X_te)
    with torch.no_grad():
        context = nc.encode(task.X_tr, task.Y_tr, task.X_te)
    done, known = 0, list[_Answer]()

    def penalty(_: Learner, snapshot: Snapshot) -> Tensor:
        nonlocal done
        if done % steps == 0:
            known[:] = [_ask(nc, context, snapshot)]
        done += 1
        return weigh_gap(nc, known[0].carried_on(snapshot), snapshot, weight, floor)

    return penalty


def _check(steps: int) -> None:
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")


@dataclass(frozen=True)
class _Answer:
    """The expected test losses of B learners where NC was asked, as functions of predictions."""

    loss: Loss
    constant: Tensor  # (B,)
    slope_tr: Tensor  # in predictions at training points, (B, M, C)
    slope_te: Tensor  # in those at test points, beyond the shape of the loss, (B, N, C)

    def carried_on(self, snapshot: Snapshot) -> Tensor:
        """Returns what the answer amounts to elsewhere, (B,)."""
        linear = _sum(snapshot.H_tr * self.slope_tr) + _sum(snapshot.H_te * self.slope_te)
        return self.constant + _shape(self.loss, snapshot.H_te) + linear


def _ask(nc: NeuralComplexity, context: Context, snapshot: Snapshot) -> _Answer:
    """Asks NC for the expected test losses of learners, and for their slopes."""
    with torch.enable_grad():
        H_tr, H_te = (H.detach().requires_grad_() for H in (snapshot.H_tr, snapshot.H_te))
        # What is left of the answer is linear.
        rest = nc.losses(context, H_tr, H_te).mean(dim=1) - _shape(nc.loss, H_te)
        slope_tr, slope_te = torch.autograd.grad(rest.sum(), [H_tr, H_te], allow_unused=True)
        slope_tr = torch.zeros_like(H_tr) if slope_tr is None else slope_tr
    with torch.no_grad():
        constant = rest - _sum(H_tr * slope_tr) - _sum(H_te * slope_te)
    return _Answer(nc.loss, constant.detach(), slope_tr, slope_te)


def _sum(values: Tensor) -> Tensor:
    return values.flatten(1).sum(dim=1)


def _shape(loss: Loss, H: Tensor) -> Tensor:
    """Returns the mean loss of predictions, (B, N, C), for targets that are all the same, (B,)."""
    Y = torch.zeros_like(H[..., 0], dtype=torch.int64) if loss.labels else torch.zeros_like(H)
    return loss(H, Y).mean(dim=1)
