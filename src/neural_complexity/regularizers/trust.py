"""How far NC can be trusted on a task, found out on the task's own training points."""

import torch
from torch import Tensor
from torch.nn.functional import softmax

from neural_complexity.model.complexity import NeuralComplexity

__all__ = ["trust"]

FOLDS = 10
BANDWIDTHS = (0.3, 1.0)  # of the smoothers, in standard deviations of the inputs


def trust(nc: NeuralComplexity, X_tr: Tensor, Y_tr: Tensor) -> Tensor:
    """Tests NC on training points that it is not shown, whose targets are known.

    The training points are held out in turn, and NC is asked about simple hypotheses made from the
    others (their mean, and two kernel smoothers). As a regularizer NC acts through its gradient
    in h, so that is what is compared with the truth, the gradient of the loss itself:

        trust = 1 - sum |NC's gradient - true gradient|^2 / sum |true gradient|^2, at least 0.

    It is 1 where NC pulls every prediction exactly where the loss would pull it, and 0 where
    following NC is no better than ignoring it. An NC that meets tasks unlike those it was trained
    on gives itself away here, before it does harm.

    Args:
        nc: The gap predictor.
        X_tr: Training inputs, (B, M, D).
        Y_tr: Training targets, (B, M, C).

    Returns:
        One value from 0 to 1 per task, (B,). Tasks of a single point cannot be tested and get 0.
    """
    nc.check(X_tr=X_tr, Y_tr=Y_tr)
    B, M = X_tr.shape[:2]
    if M == 1:
        return X_tr.new_zeros(B)
    shown, held = _folds(M, X_tr.device)  # (folds, points) each
    X, Y = (t[:, shown].flatten(0, 1) for t in (X_tr, Y_tr))  # (B folds, M - size, ...)
    X_out, Y_out = (t[:, held].flatten(0, 1) for t in (X_tr, Y_tr))  # (B folds, size, ...)
    with torch.no_grad():
        context = nc.encode(X, Y, X_out)
    error, size = X_tr.new_zeros(B), X_tr.new_zeros(B)
    for H, guess in _hypotheses(X, Y, X_out):
        with torch.enable_grad():
            H_out = guess.detach().requires_grad_()
            loss = nc.loss(H_out, Y_out)  # (B folds, size)
            predicted = nc.points(context, H, H_out)
            (true,) = torch.autograd.grad(loss.sum(), H_out)
            (own,) = torch.autograd.grad(predicted.sum(), H_out)
        error += (own - true).square().unflatten(0, (B, -1)).flatten(1).sum(dim=1)
        size += true.square().unflatten(0, (B, -1)).flatten(1).sum(dim=1)
    # Where all hypotheses are right there is nothing to get wrong by more than rounding.
    least = torch.finfo(size.dtype).tiny
    # Targets too large for their squares are no reason to trust.
    return (1 - error / size.clamp(min=least)).nan_to_num(nan=0.0).clamp(0, 1)


def _folds(points: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cuts point numbers into folds of one size, held out in turn; a rest is always shown."""
    folds = min(points, FOLDS)
    size = points // folds
    held = torch.arange(folds * size, device=device).view(folds, size)
    everything = torch.arange(points, device=device).expand(folds, -1)
    hidden = (everything[:, :, None] == held[:, None, :]).any(dim=-1)  # (folds, points)
    return everything[~hidden].view(folds, -1), held


def _hypotheses(X: Tensor, Y: Tensor, X_out: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Makes predictions at shown and held-out points from the shown ones alone."""
    mean = Y.mean(dim=1, keepdim=True)
    made = [(mean.expand_as(Y), mean.expand(-1, X_out.shape[1], -1))]
    # One point, or equal ones, have no spread: then any two inputs are far apart.
    scale = X.std(dim=1, keepdim=True, correction=0).clamp(min=torch.finfo(X.dtype).eps)
    A, A_out = X / scale, X_out / scale
    near, near_out = (-0.5 * torch.cdist(P, A).square() for P in (A, A_out))
    for width in BANDWIDTHS:
        smooth, smooth_out = (softmax(n / width**2, dim=-1) @ Y for n in (near, near_out))
        made.append((smooth, smooth_out))
    return made
