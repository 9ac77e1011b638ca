"""Learners without gradient descent: B tasks solved at once, each in closed form."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from neural_complexity.beliefs import Gaussian

__all__ = ["ClosedForm", "GaussianProcess", "Kernel", "fourier_features", "gaussian_process"]
__all__ += ["nearest_neighbour", "polynomial", "rbf", "ridge"]

Hypothesis = Callable[[Tensor], Tensor]  # h: inputs (B, points, D) to predictions (B, points, C)
ClosedForm = Callable[[Tensor, Tensor], Hypothesis]  # X_tr (B, M, D), Y_tr (B, M, C) to h
Features = Callable[[Tensor], Tensor]  # inputs (B, points, D) to features (B, points, any)
Kernel = Callable[[Tensor, Tensor], Tensor]  # inputs (B, P, D) and (B, Q, D) to (B, P, Q)


def _check_positive(zero: bool = False, /, **numbers: float) -> None:
    for name, number in numbers.items():
        if not (number > 0 or (zero and number == 0)):
            wanted = "not be negative" if zero else "be positive"
            raise ValueError(f"{name} must {wanted}, got {number}")


def _distance(X: Tensor, other: Tensor) -> Tensor:
    """Computes Euclidean distances, (B, P, Q), without the rounding of the fast formula."""
    return torch.cdist(X, other, compute_mode="donot_use_mm_for_euclid_dist")


def nearest_neighbour(X_tr: Tensor, Y_tr: Tensor) -> Hypothesis:
    """Learns to predict the target of the nearest training point; ties are averaged."""

    def h(X: Tensor) -> Tensor:
        distance = _distance(X, X_tr)  # (B, points, M)
        nearest = (distance == distance.amin(dim=-1, keepdim=True)).to(Y_tr.dtype)
        return nearest @ Y_tr / nearest.sum(dim=-1, keepdim=True)  # (B, points, C)

    return h


def polynomial(degree: int) -> ClosedForm:
    """Returns the learner that fits a polynomial of one input by least squares, as `ridge` does."""
    _check_positive(True, degree=degree)

    def powers(X: Tensor) -> Tensor:
        if X.shape[-1] != 1:
            raise ValueError(f"a polynomial must have one input, got {X.shape[-1]}")
        return X ** torch.arange(1, degree + 1, device=X.device)  # (B, points, degree)

    return ridge(0.0, features=powers)


def fourier_features(period: float, frequencies: int) -> Features:
    """Returns sines and cosines of each input, of K periods: the longest, half of it, and so on."""
    _check_positive(period=period)
    if frequencies < 1:
        raise ValueError(f"frequencies must be at least 1, got {frequencies}")

    def features(X: Tensor) -> Tensor:
        multiples = torch.arange(1, frequencies + 1, device=X.device)
        angles = ((2 * math.pi / period * X).unsqueeze(-1) * multiples).flatten(-2)  # (..., D K)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)  # (B, points, 2 D K)

    return features


def ridge(strength: float, *, features: Features = lambda X: X) -> ClosedForm:
    """Returns the learner that is linear in features and a constant, by penalized least squares."""
    # It minimises the sum of squared errors plus `strength` times the squared weights, by singular
    # values: without a penalty and with too few points these are the smallest weights that fit.
    _check_positive(True, strength=strength)

    def learn(X_tr: Tensor, Y_tr: Tensor) -> Hypothesis:
        F, Y = features(X_tr.double()), Y_tr.double()  # (B, M, features), (B, M, C)
        F_mean, Y_mean = F.mean(dim=1, keepdim=True), Y.mean(dim=1, keepdim=True)
        U, s, Vh = torch.linalg.svd(F - F_mean, full_matrices=False)
        # A singular value that is rounding noise says nothing about its direction.
        known = s > torch.finfo(s.dtype).eps * max(F.shape[1:]) * s[:, :1]
        gain = torch.where(known, s / (s.square() + strength), 0.0)
        weights = Vh.mT @ (gain.unsqueeze(-1) * (U.mT @ (Y - Y_mean)))  # (B, features, C)

        def h(X: Tensor) -> Tensor:
            H: Tensor = (features(X.double()) - F_mean) @ weights + Y_mean  # (B, points, C)
            return H.to(Y_tr.dtype)

        return h

    return learn


def rbf(lengthscale: float, amplitude: float = 1.0) -> Kernel:
    """Returns the kernel amplitude^2 exp(-|x - x'|^2 / (2 lengthscale^2))."""
    _check_positive(lengthscale=lengthscale, amplitude=amplitude)

    def kernel(X: Tensor, other: Tensor) -> Tensor:
        return amplitude**2 * torch.exp(-0.5 * (_distance(X, other) / lengthscale).square())

    return kernel


class GaussianProcess:
    """B Gaussian processes given their training sets; outputs are independent of each other."""

    def __init__(self, kernel: Kernel, noise: float, jitter: float, X: Tensor, Y: Tensor) -> None:
        self.kernel, self.noise = kernel, noise
        self.X_tr, self.Y_tr = X.double(), Y.double()  # (B, M, D), (B, M, C)
        K = kernel(self.X_tr, self.X_tr)  # (B, M, M)
        diagonal = K.diagonal(dim1=1, dim2=2)
        extra = noise + jitter * diagonal.mean(dim=1, keepdim=True)  # (B, 1)
        self.L, failed = torch.linalg.cholesky_ex(K + torch.diag_embed(extra.expand_as(diagonal)))
        if failed.any():
            got = f"a matrix that is not in {int(failed.count_nonzero())} of {len(K)} tasks"
            wanted = "kernel plus noise must be positive definite"
            raise ValueError(f"{wanted}, got {got}; more noise or jitter may help")
        self.weights = torch.cholesky_solve(self.Y_tr, self.L)  # (B, M, C)

    def __call__(self, X: Tensor) -> Tensor:
        """Predicts the mean at inputs, (B, points, D), as (B, points, C)."""
        return (self.kernel(X.double(), self.X_tr) @ self.weights).to(X.dtype)

    def belief(self, X: Tensor) -> Gaussian:
        """Returns the exact posterior of the targets at inputs, (B, N, D), noise included."""
        points = X.double().flatten(0, 1).unsqueeze(1)  # (BN, 1, D)
        prior = self.kernel(points, points).view(*X.shape[:2], 1)  # (B, N, 1)
        cross = self.kernel(self.X_tr, X.double())  # (B, M, N)
        half = torch.linalg.solve_triangular(self.L, cross, upper=False)  # (B, M, N)
        explained = half.square().sum(dim=1).unsqueeze(-1)  # (B, N, 1), rounded: maybe too much
        variance = (prior - explained).clamp(min=0.0) + self.noise
        mean = cross.mT @ self.weights  # (B, N, C)
        return Gaussian(mean.to(X.dtype), variance.expand_as(mean).to(X.dtype))

    def log_likelihood(self) -> Tensor:
        """Computes log p(Y_tr | X_tr) of each task, (B,), by which hyperparameters are chosen."""
        M, C = self.Y_tr.shape[1:]
        fit = (self.Y_tr * self.weights).sum(dim=(1, 2))
        volume = 2 * self.L.diagonal(dim1=1, dim2=2).log().sum(dim=1)
        density: Tensor = -0.5 * (fit + C * volume + C * M * math.log(2 * math.pi))
        return density


def gaussian_process(
    kernel: Kernel, *, noise: float, jitter: float = 1e-12
) -> Callable[[Tensor, Tensor], GaussianProcess]:
    """Returns the learner that conditions a Gaussian process of mean zero, exactly."""
    # `noise` is the variance of y around f. `jitter`, a share of the diagonal's mean, is added to
    # it against rounding; unlike noise it is no part of the belief.
    _check_positive(True, noise=noise, jitter=jitter)
    return partial(GaussianProcess, kernel, noise, jitter)
