"""NC as a regularizer, Eq. (4)."""

from collections.abc import Callable

import torch
from torch import Tensor

from neural_complexity.learners.fit import Learner, Regularizer
from neural_complexity.model.heads import PosteriorHead
from neural_complexity.model.indexed import Known
from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.regularizers.trust import trust
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task

__all__ = ["nc_penalty", "nc_penalty_by_number", "nc_penalty_by_points"]


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
    """Makes the penalty weight * NC(h) for learners of the given tasks.

    The paper's regularizer is this without the safeguard.

    Whatever of NC does not depend on h is computed here, once, and not at every step of the
    learners.

    Args:
        nc: The gap predictor; stays as it is.
        task: The tasks that the learners are trained on; the test targets are not looked at.
        weight: The lambda of Eq. (4), one for all tasks or one per task, (B,).
        floor: Predictions below it count as the floor (appendix C: -0.1), which ignores NC where
            it is overconfident about generalization.
        safeguard: Whether the weight of each task is multiplied by the square of `trust`, which
            tests NC on the task's training points: an NC that does not understand a task then
            keeps quiet.
        X_unlabelled: Inputs to judge h on, (B, N, D), instead of the tasks' own test inputs. With
            them regularizing is inductive, without them transductive.
        classes: How many classes labels are of, if not as many as NC was made for.
        context: What `nc.encode` makes of these tasks, if it is at hand; made here if `None`.

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
        H = snapshot.H_te if X_unlabelled is None else h(X_unlabelled)
        return weight * _predicted_gap(nc, known, snapshot.H_tr, H, floor)

    return penalty


def nc_penalty_by_number(
    nc: NeuralComplexity,
    known: Known,
    *,
    weight: float | Tensor = 1.0,
    floor: float | None = -0.1,
) -> Regularizer:
    """Makes the penalty weight * NC(h) for learners that see minibatches of numbered inputs.

    Args:
        nc: The gap predictor; stays as it is.
        known: What it makes of points, from `model.large`: beliefs, or embeddings. Which inputs
            these are decides whether regularizing is transductive or inductive.
        weight: As in `nc_penalty`.
        floor: As in `nc_penalty`; the paper's by default.

    Returns:
        A regularizer for `fit`.
    """

    def penalty(_: Learner, snapshot: Snapshot) -> Tensor:
        return weight * _predicted_gap(nc, known(snapshot), snapshot.H_tr, snapshot.H_te, floor)

    return penalty


def nc_penalty_by_points(
    nc: NeuralComplexity,
    X_tr: Tensor,
    Y_tr: Tensor,
    *,
    embed: Callable[[Tensor], Tensor] | None = None,
    weight: float | Tensor = 1.0,
    floor: float | None = -0.1,
) -> Regularizer:
    """Makes the penalty weight * NC(h) for learners that see minibatches, of any points.

    What NC knows of the tasks are some training points that stay the same; the minibatch gives no
    more than the training loss.

    Args:
        nc: The gap predictor; stays as it is.
        X_tr: These training inputs, (B, M, ...), or their numbers, (B, M).
        Y_tr: Their targets, (B, M, C), or labels, (B, M).
        embed: Gives the embeddings of inputs, or of numbers; NC itself if `None`.
        weight: As in `nc_penalty`.
        floor: As in `nc_penalty`; the paper's by default.

    Returns:
        A regularizer for `fit`.
    """
    look = nc.embed if embed is None else embed
    with torch.no_grad():
        E_tr = look(X_tr)  # (B, M, features)

    def penalty(h: Learner, snapshot: Snapshot) -> Tensor:
        classes = snapshot.H_te.shape[-1] if nc.labels else None
        with torch.no_grad():
            context = nc.context(E_tr, Y_tr, look(snapshot.X_te), classes=classes)
        if isinstance(nc.head, PosteriorHead):  # has a belief, whatever h is at the points it knows
            context = Context(snapshot.Y_tr, context.known)
            return weight * _predicted_gap(nc, context, snapshot.H_tr, snapshot.H_te, floor)
        loss_tr = nc.loss(snapshot.H_tr, snapshot.Y_tr).mean(dim=1)  # (B,)
        return weight * _predicted_gap(nc, context, h(X_tr), snapshot.H_te, floor, loss_tr)

    return penalty


def _predicted_gap(
    nc: NeuralComplexity,
    context: Context,
    H_tr: Tensor,
    H_te: Tensor,
    floor: float | None,
    loss_tr: Tensor | None = None,
) -> Tensor:
    """Predicts the gap, (B,), to a training loss that need not be that of the context's points."""
    predicted = nc.points(context, H_tr, H_te).mean(dim=1)  # (B,)
    if loss_tr is not None:
        predicted = predicted + nc.loss(H_tr, context.Y_tr).mean(dim=1) - loss_tr
    return predicted if floor is None else predicted.clamp(min=floor)
