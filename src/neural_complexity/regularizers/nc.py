"""NC as a regularizer, Eq. (4)."""

import torch
from torch import Tensor

from neural_complexity.learners.fit import Learner, Regularizer
from neural_complexity.model.cached import Encoder
from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.regularizers.trust import trust
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task

__all__ = ["minibatch_penalty", "nc_penalty"]


def nc_penalty(
    nc: NeuralComplexity,
    task: Task,
    *,
    weight: float | Tensor = 1.0,
    floor: float | None = None,
    safeguard: bool = True,
    X_unlabelled: Tensor | None = None,
    classes: int | None = None,
    context: Context | None = None,
) -> Regularizer:
    """Returns the penalty weight * NC(h) for learners of the given tasks.

    The paper's regularizer is this without the safeguard. Whatever of NC does not depend on h is
    computed here, once, and not at every step of the learners.

    Args:
        nc: The gap predictor; stays as it is.
        task: The tasks that the learners are trained on; the test targets are not looked at.
        weight: The lambda of Eq. (4), one for all tasks or one per task, (B,).
        floor: Predictions below it count as the floor (appendix C: -0.1), which ignores NC where
            it is overconfident about generalization.
        safeguard: Whether the weight of each task is multiplied by the square of `trust`, which
            tests NC on the task's training points: an NC that does not understand a task is then
            ignored.
        X_unlabelled: Inputs to judge h on, (B, N, D), instead of the tasks' own test inputs. With
            them regularizing is inductive, without them transductive.
        classes: How many classes labels are of, if not as many as NC was made for.
        context: What `nc.encode` returned for these tasks, if it is at hand.

    Returns:
        A regularizer for `fit`.

    Raises:
        TypeError: If the tasks are not of NC's own type.
        ValueError: If they do not fit NC or are not finite, or the weight does not fit them.
    """
    X = task.X_te if X_unlabelled is None else X_unlabelled
    nc.check(classes=classes, X_tr=task.X_tr, Y_tr=task.Y_tr, X_te=X)
    if isinstance(weight, Tensor) and weight.shape not in ((), (len(task),)):
        raise ValueError(
            f"weight must be one number or one per task, got shape {tuple(weight.shape)} for "
            f"{len(task)} tasks"
        )
    if safeguard:
        # Squared, because trust comes from few points: a task that passes by luck passes narrowly.
        weight = weight * trust(nc, task.X_tr, task.Y_tr, classes=classes).square()
    if context is None:
        with torch.no_grad():
            context = nc.encode(task.X_tr, task.Y_tr, X, classes=classes)
    known = context

    def penalty(h: Learner, snapshot: Snapshot) -> Tensor:
        H_te = snapshot.H_te if X_unlabelled is None else h(X_unlabelled)
        return weight * _predicted_gap(nc, known, h, snapshot, H_te, floor)

    return penalty


def minibatch_penalty(
    nc: NeuralComplexity,
    encode: Encoder,
    *,
    weight: float | Tensor = 1.0,
    floor: float | None = -0.1,
) -> Regularizer:
    """Returns the penalty weight * NC(h) for learners that see minibatches.

    Args:
        nc: The gap predictor; stays as it is.
        encode: Returns the context of a minibatch; see `model.cached`. The test inputs of the
            minibatches decide whether regularizing is transductive or inductive.
        weight: As in `nc_penalty`.
        floor: As in `nc_penalty`; the paper's by default.

    Returns:
        A regularizer for `fit`.
    """

    def penalty(h: Learner, snapshot: Snapshot) -> Tensor:
        return weight * _predicted_gap(nc, encode(snapshot), h, snapshot, snapshot.H_te, floor)

    return penalty


def _predicted_gap(
    nc: NeuralComplexity,
    context: Context,
    h: Learner,
    snapshot: Snapshot,
    H_te: Tensor,
    floor: float | None,
) -> Tensor:
    """Predicts the gap, (B,), to the training loss of the snapshot."""
    H_tr = snapshot.H_tr if context.X_tr is None else h(context.X_tr)
    loss_tr = nc.loss(snapshot.H_tr, snapshot.Y_tr).mean(dim=1)  # (B,)
    predicted = nc.losses(context, H_tr, H_te).mean(dim=1) - loss_tr
    return predicted if floor is None else predicted.clamp(min=floor)
