"""How far NC can be trusted on a task, tested on the task's own training points."""

import torch
from torch import Tensor
from torch.nn.functional import softmax

from neural_complexity.losses import Loss
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import values

__all__ = ["trust"]

FOLDS = 10
BANDWIDTHS = (0.3, 1.0)  # of the smoothers, in standard deviations of the inputs


def trust(
    nc: NeuralComplexity, X_tr: Tensor, Y_tr: Tensor, *, classes: int | None = None
) -> Tensor:
    """Tests NC on held-out training points, whose targets are known.

    The training points are held out in turn, and NC is asked about simple hypotheses made from the
    others (their mean, and two kernel smoothers). As a regularizer NC acts through its gradient
    in h, so that is what is compared with the truth, the gradient of the loss itself:

        trust = 1 - sum |NC's gradient - true gradient|^2 / sum |true gradient|^2, at least 0.

    It is 1 where NC pulls every prediction exactly where the loss would pull it, and 0 where
    following NC is no better than ignoring it. An NC that meets tasks unlike those it was trained
    on fails this test before it does harm.

    Args:
        nc: The gap predictor.
        X_tr: Training inputs, (B, M, D) or (B, M, channels, height, width).
        Y_tr: Training targets, (B, M, C), or labels, (B, M).
        classes: How many classes labels are of, if not as many as NC was made for.

    Returns:
        One value from 0 to 1 per task, (B,). Tasks that cannot be tested, of a single point or of
        one point of each class, get 0.

    Raises:
        ValueError: Also if targets are labels and no class of any task has two points: then none
            can be held out.
    """
    nc.check(classes=classes, X_tr=X_tr, Y_tr=Y_tr)
    X_tr, (B, M) = values(X_tr), Y_tr.shape[:2]
    if nc.labels:
        X_tr, Y_tr = _spread(X_tr, Y_tr)
    elif M == 1:
        return X_tr.new_zeros(B)
    kept, held = _folds(M, X_tr.device)  # (folds, points) each
    E_tr = nc.embed(X_tr).detach()  # (B, M, features)
    E, Y = (t[:, kept].flatten(0, 1) for t in (E_tr, Y_tr))  # (B folds, M - size, ...)
    E_out, Y_out = (t[:, held].flatten(0, 1) for t in (E_tr, Y_tr))  # (B folds, size, ...)
    counted = torch.ones_like(E_out[..., :1])  # (B folds, size, 1)
    if nc.labels:  # nobody could know the label of a class without training points
        counted *= (Y_out[:, :, None] == Y[:, None, :]).any(dim=2, keepdim=True)
    with torch.no_grad():
        context = nc.context(E, Y, E_out, classes=classes)
    error, size = X_tr.new_zeros(B), X_tr.new_zeros(B)
    for H, guess in _hypotheses(X_tr, kept, held, nc.targets(Y, classes=classes), nc.loss):
        with torch.enable_grad():
            H_out = guess.detach().requires_grad_()
            loss = nc.loss(H_out, Y_out)  # (B folds, size)
            predicted = nc.points(context, H, H_out)
            (true,) = torch.autograd.grad(loss.sum(), H_out)
            (own,) = torch.autograd.grad(predicted.sum(), H_out)
        error += ((own - true).square() * counted).unflatten(0, (B, -1)).flatten(1).sum(dim=1)
        size += (true.square() * counted).unflatten(0, (B, -1)).flatten(1).sum(dim=1)
    testable = counted.unflatten(0, (B, -1)).flatten(1).any(dim=1)  # (B,)
    # Where all hypotheses are right there is nothing to get wrong by more than rounding.
    least = torch.finfo(size.dtype).tiny
    # Targets too large for their squares are no reason to trust.
    share = (1 - error / size.clamp(min=least)).nan_to_num(nan=0.0).clamp(0, 1)
    return torch.where(testable, share, 0.0)


def _folds(points: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cuts indices into folds of one size, held out in turn; a rest is never held out."""
    folds = min(points, FOLDS)
    size = points // folds
    held = torch.arange(folds * size, device=device).view(folds, size)
    everything = torch.arange(points, device=device).expand(folds, -1)
    hidden = (everything[:, :, None] == held[:, None, :]).any(dim=-1)  # (folds, points)
    return everything[~hidden].view(folds, -1), held


def _spread(X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    """Orders points so that a fold takes few of each class."""
    same = Y[:, :, None] == Y[:, None, :]  # (B, M, M)
    if not (same.sum(dim=2) > 1).any():
        raise ValueError(
            "the safeguard must have two training points of some class to test NC on, got one of "
            "each; without it: safeguard=False"
        )
    order = same.tril(diagonal=-1).sum(dim=2).argsort(dim=1, stable=True)  # by rank in its class
    row = torch.arange(len(Y), device=Y.device)[:, None]
    return X[row, order], Y[row, order]


def _hypotheses(
    X_tr: Tensor, kept: Tensor, held: Tensor, T: Tensor, loss: Loss
) -> list[tuple[Tensor, Tensor]]:
    """Predicts at training and held-out points of each fold, from the training points alone.

    Args:
        X_tr: All points, (B, M, ...).
        kept: Indices of the training points of each fold, (folds, M - size).
        held: Indices of the others, (folds, size).
        T: Encoded targets of the training points, (B folds, M - size, C).
        loss: Of the predictions.
    """
    X, X_out = (X_tr.flatten(2)[:, part].flatten(0, 1) for part in (kept, held))
    mean = T.mean(dim=1, keepdim=True)
    made = [(mean.expand_as(T), mean.expand(-1, X_out.shape[1], -1))]
    # One point, or equal ones, have no spread: then any two inputs are far apart. The pixels of an
    # image share one, as most of them never change.
    images = X_tr.ndim > 3
    over = (1, 2) if images else (1,)
    scale = X.std(dim=over, keepdim=True, correction=0).clamp(min=torch.finfo(X.dtype).eps)
    A, A_out = X / scale, X_out / scale
    near, near_out = (-0.5 * torch.cdist(P, A).square() for P in (A, A_out))
    if images:
        near, near_out = near / X.shape[-1], near_out / X.shape[-1]
    for width in BANDWIDTHS:
        smooth, smooth_out = (softmax(n / width**2, dim=-1) @ T for n in (near, near_out))
        made.append((smooth, smooth_out))
    return [(loss.constant(H, 0.01), loss.constant(guess, 0.01)) for H, guess in made]
