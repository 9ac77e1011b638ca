"""NC as a regularizer, Eq. (4), and how far it can be trusted with a task."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import softmax

from neural_complexity.learners.fit import Learner, Regularizer
from neural_complexity.model.cached import Encoder
from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.model.table_network import fill_missing
from neural_complexity.points import values
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task

__all__ = ["minibatch_penalty", "nc_penalty", "proof", "reliance", "safeguard_factor", "trust"]
__all__ += ["weigh_gap"]

FOLDS = 10
Proof = TypeVar("Proof", float, Tensor)
BANDWIDTHS = (0.3, 1.0)  # of the smoothers, in standard deviations of the inputs


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
        safeguard: Whether to multiply each task's weight by its `safeguard_factor`.
        X_unlabelled: Inputs to judge h on, (B, N, D), instead of the tasks' own test inputs. With
            them regularizing is inductive, without them transductive.
        classes: How many classes labels are of, if not as many as NC was made for.
        context: What `nc.encode` returned for these tasks, if it is at hand.

    Returns:
        A regularizer for `fit`.

    Raises:
        ValueError: If the tasks do not fit NC or are not finite, or the weight does not fit them.
    """
    X = task.X_te if X_unlabelled is None else X_unlabelled
    nc.check(classes=classes, X_tr=task.X_tr, Y_tr=task.Y_tr, X_te=X)
    if isinstance(weight, Tensor) and weight.shape not in ((), (len(task),)):
        got = f"shape {tuple(weight.shape)} for {len(task)} tasks"
        raise ValueError(f"weight must be one number or one per task, got {got}")
    if safeguard:
        weight = weight * safeguard_factor(nc, proof(nc, task.X_tr, task.Y_tr, classes=classes))
    with torch.no_grad():
        known = context or nc.encode(task.X_tr, task.Y_tr, X, classes=classes)
    return minibatch_penalty(
        nc, lambda _: known, weight=weight, floor=floor, X_unlabelled=X_unlabelled
    )


def minibatch_penalty(
    nc: NeuralComplexity,
    encode: Encoder,
    *,
    weight: float | Tensor = 1.0,
    floor: float | None = -0.1,
    X_unlabelled: Tensor | None = None,
) -> Regularizer:
    """Returns the penalty weight * NC(h) for learners that see minibatches, encoded one by one."""

    def penalty(h: Learner, snapshot: Snapshot) -> Tensor:
        H_te = snapshot.H_te if X_unlabelled is None else h(X_unlabelled)
        context = encode(snapshot)
        H_tr = snapshot.H_tr if context.X_tr is None else h(context.X_tr)
        return weigh_gap(nc, nc.losses(context, H_tr, H_te).mean(dim=1), snapshot, weight, floor)

    return penalty


def weigh_gap(
    nc: NeuralComplexity,
    expected: Tensor,
    snapshot: Snapshot,
    weight: float | Tensor,
    floor: float | None,
) -> Tensor:
    """Returns the penalty of test losses that NC expects, (B,): their gap, not below the floor."""
    gap = expected - nc.loss(snapshot.H_tr, snapshot.Y_tr).mean(dim=1)
    return weight * (gap if floor is None else gap.clamp(min=floor))


def trust(
    nc: NeuralComplexity, X_tr: Tensor, Y_tr: Tensor, *, classes: int | None = None
) -> Tensor:
    """Tests NC on held-out training points, whose targets are known.

    The training points are held out in turn, and NC is asked about simple hypotheses made from the
    others (their mean, and two kernel smoothers). As a regularizer NC acts through its gradient
    in h, so that is what is compared with the truth, the gradient of the loss itself:

        trust = 1 - sum |NC's gradient - true gradient|^2 / sum |true gradient|^2, at least 0.

    It is 1 where NC pulls every prediction exactly where the loss would pull it, and 0 where
    following NC is no better than ignoring it, as on tasks unlike those that it was trained on.

    Args:
        nc: The gap predictor.
        X_tr: Training inputs, (B, M, D) or (B, M, channels, height, width).
        Y_tr: Training targets, (B, M, C), or labels, (B, M).
        classes: How many classes labels are of, if not as many as NC was made for.

    Returns:
        One value from 0 to 1 per task, (B,). Tasks that cannot be tested, of a single point or of
        one point of each class, get 0.

    Raises:
        ValueError: Also if no class of any task has two points, so that none can be held out.
    """
    pulls = _compare_pulls(nc, X_tr, Y_tr, classes)
    # Where all hypotheses are right there is nothing to get wrong by more than rounding. That
    # targets are too large for their squares is no reason to trust.
    share = 1 - pulls.error / pulls.true.clamp(min=torch.finfo(pulls.true.dtype).tiny)
    return torch.where(pulls.testable, share.nan_to_num(nan=0.0).clamp(0, 1), 0.0)


def reliance(
    nc: NeuralComplexity, X_tr: Tensor, Y_tr: Tensor, *, classes: int | None = None
) -> Tensor:
    """Returns how much of NC's pull is right on average, on held-out training points; see `trust`.

        reliance = sum NC's gradient * true gradient / sum |NC's gradient|^2, from 0 to 1.

    It is about 1 where NC's beliefs are as sure as they should be, however noisy targets are; trust
    is then small where they are. It is below 1 where NC is too sure, and 0 where it is wrong.
    """
    pulls = _compare_pulls(nc, X_tr, Y_tr, classes)
    share = pulls.both / pulls.own.clamp(min=torch.finfo(pulls.own.dtype).tiny)
    return torch.where(pulls.testable & share.isfinite(), share.clamp(0, 1), 0.0)


def proof(
    nc: NeuralComplexity, X_tr: Tensor, Y_tr: Tensor, *, classes: int | None = None
) -> Tensor:
    """Returns how far NC proves itself, (B,): by `reliance` if it is for tables, or by `trust`.

    An NC for tables is at home in any of them, and only too sure or not; of another one it must be
    shown that it understands the task at all.
    """
    measure = reliance if nc.architecture.for_tables else trust
    return measure(nc, X_tr, Y_tr, classes=classes)


def safeguard_factor(nc: NeuralComplexity, proven: Proof) -> Proof:
    """Returns what NC's weight is multiplied by, given its `proof`.

    Trust is squared because it comes from few points: a task that passes by luck passes narrowly.
    """
    return proven if nc.architecture.for_tables else proven * proven


@dataclass(frozen=True)
class _Pulls:
    """Sums over hypotheses at held-out points of products of gradients, (B,) each."""

    error: Tensor  # |NC's - true|^2
    true: Tensor  # |true|^2
    own: Tensor  # |NC's|^2
    both: Tensor  # NC's * true
    testable: Tensor  # whether there is a point


def _compare_pulls(nc: NeuralComplexity, X_tr: Tensor, Y_tr: Tensor, classes: int | None) -> _Pulls:
    """Asks NC about simple hypotheses at held-out training points; see `trust`."""
    nc.check(classes=classes, X_tr=X_tr, Y_tr=Y_tr)
    X_tr, (B, M) = values(X_tr), Y_tr.shape[:2]
    if nc.labels:
        X_tr, Y_tr = _spread(X_tr, Y_tr)
    elif M == 1:
        none = X_tr.new_zeros(B)
        return _Pulls(none, none, none, none, none.bool())
    # Folds of one size, held out in turn; a rest is never held out. Indices, (folds, points) each.
    folds, everything = min(M, FOLDS), torch.arange(M, device=X_tr.device)
    held = everything[: M // folds * folds].view(folds, -1)
    hidden = (everything[:, None] == held[:, None, :]).any(dim=-1)  # (folds, M)
    kept = everything.expand(folds, -1)[~hidden].view(folds, -1)
    E_tr = nc.embed(X_tr).detach()  # (B, M, features)
    E, Y = (t[:, kept].flatten(0, 1) for t in (E_tr, Y_tr))  # (B folds, M - size, ...)
    E_out, Y_out = (t[:, held].flatten(0, 1) for t in (E_tr, Y_tr))  # (B folds, size, ...)
    counted = torch.ones_like(E_out[..., :1])  # (B folds, size, 1)
    if nc.labels:  # nobody could know the label of a class without training points
        counted *= (Y_out[:, :, None] == Y[:, None, :]).any(dim=2, keepdim=True)
    with torch.no_grad():
        context = nc.context(E, Y, E_out, classes=classes)
    sums = X_tr.new_zeros(4, B)
    for made in _hypotheses(X_tr, kept, held, nc.targets(Y, classes=classes)):
        H, guess = (nc.loss.constant(prediction, 0.01) for prediction in made)
        with torch.enable_grad():
            H_out = guess.detach().requires_grad_()
            (true,) = torch.autograd.grad(nc.loss(H_out, Y_out).sum(), H_out)
            (own,) = torch.autograd.grad(nc.points(context, H, H_out).sum(), H_out)
        pairs = torch.stack([(own - true).square(), true.square(), own.square(), own * true])
        sums += (pairs * counted).reshape(4, B, -1).sum(dim=2)
    testable = counted.reshape(B, -1).any(dim=1)  # (B,)
    error, size, ours, both = sums
    return _Pulls(error, size, ours, both, testable)


def _spread(X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    """Orders points so that a fold takes few of each class."""
    same = Y[:, :, None] == Y[:, None, :]  # (B, M, M)
    if not (same.sum(dim=2) > 1).any():
        wanted = "two training points of some class to test NC on"
        got = "one of each; without it: safeguard=False"
        raise ValueError(f"the safeguard must have {wanted}, got {got}")
    order = same.tril(diagonal=-1).sum(dim=2).argsort(dim=1, stable=True)  # by rank in its class
    row = torch.arange(len(Y), device=Y.device)[:, None]
    return X[row, order], Y[row, order]


def _hypotheses(X_tr: Tensor, kept: Tensor, held: Tensor, T: Tensor) -> Iterator[list[Tensor]]:
    """Predicts at kept and held-out points of folds from the kept targets T, (B folds, m, C)."""
    X_tr = fill_missing(X_tr) if X_tr.ndim == 3 else X_tr
    X, X_out = (X_tr.flatten(2)[:, part].flatten(0, 1) for part in (kept, held))
    mean = T.mean(dim=1, keepdim=True)
    yield [mean.expand(-1, points.shape[1], -1) for points in (X, X_out)]
    # One point, or equal ones, have no spread: then any two inputs are far apart. The pixels of an
    # image share one, as most of them never change.
    over, pixels = ((1, 2), X.shape[-1]) if X_tr.ndim > 3 else ((1,), 1)
    scale = X.std(dim=over, keepdim=True, correction=0).clamp(min=torch.finfo(X.dtype).eps)
    near = [-0.5 * torch.cdist(P / scale, X / scale).square() / pixels for P in (X, X_out)]
    for width in BANDWIDTHS:
        yield [softmax(some / width**2, dim=-1) @ T for some in near]
