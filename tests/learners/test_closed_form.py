import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LinearRegression, Ridge
from torch import Tensor

from neural_complexity.learners.closed_form import (
    ClosedForm,
    fourier_features,
    gaussian_process,
    nearest_neighbour,
    polynomial,
    rbf,
    ridge,
)
from neural_complexity.losses import squared_error
from neural_complexity.seeding import stream
from neural_complexity.snapshot import take_snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids

LEARNERS: dict[str, ClosedForm] = {
    "nearest neighbour": nearest_neighbour,
    "mean": polynomial(0),
    "cubic": polynomial(3),
    "ridge": ridge(0.3),
    "ridge on waves": ridge(0.1, features=fourier_features(20.0, 4)),
    "too many features": ridge(0.0, features=fourier_features(20.0, 9)),
    "process": gaussian_process(rbf(1.5, 2.0), noise=0.01),
}
each = pytest.mark.parametrize("learner", LEARNERS.values(), ids=LEARNERS)


def points(B: int, M: int, D: int, C: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draws training inputs, training targets and seven other inputs."""
    return torch.randn(B, M, D), torch.randn(B, M, C), torch.randn(B, 7, D)


@each
def test_tasks_learned_together_equal_tasks_learned_alone(learner: ClosedForm, task: Task) -> None:
    together = learner(task.X_tr, task.Y_tr)(task.X_te)
    for b in range(len(task)):
        alone = task[b : b + 1]
        H = learner(alone.X_tr, alone.Y_tr)(alone.X_te)
        torch.testing.assert_close(H, together[b : b + 1])


@each
def test_the_order_of_training_points_does_not_matter(learner: ClosedForm, task: Task) -> None:
    order = torch.tensor([3, 0, 4, 2, 1])
    expected = learner(task.X_tr, task.Y_tr)(task.X_te)
    torch.testing.assert_close(
        learner(task.X_tr[:, order], task.Y_tr[:, order])(task.X_te), expected
    )


@each
def test_learners_can_be_shown_to_nc_in_the_tasks_own_type(learner: ClosedForm) -> None:
    torch.set_default_dtype(torch.float32)
    task = Sinusoids().sample(4, stream(0, "single"))
    snapshot = take_snapshot(learner(task.X_tr, task.Y_tr), task)
    assert {tensor.dtype for tensor in snapshot.tensors()} == {torch.float32}
    assert snapshot.H_te.shape == task.Y_te.shape


def test_the_nearest_neighbour_has_no_training_loss() -> None:
    X_tr, Y_tr, X = points(5, 30, 3, 2)
    h = nearest_neighbour(X_tr, Y_tr)
    assert squared_error(h(X_tr), Y_tr).max() == 0
    for b in range(5):
        for i in range(7):
            nearest = min(range(30), key=lambda j: float((X_tr[b, j] - X[b, i]).norm()))
            assert torch.equal(h(X)[b, i], Y_tr[b, nearest])


def test_equally_near_neighbours_are_averaged() -> None:
    X_tr = torch.tensor([[[0.0], [2.0], [2.0]]])
    Y_tr = torch.tensor([[[1.0], [2.0], [6.0]]])
    h = nearest_neighbour(X_tr, Y_tr)
    X = torch.tensor([[[-1.0], [3.0], [1.0]]])
    assert h(X).flatten().tolist() == [1.0, 4.0, 3.0]


def test_the_polynomial_of_order_zero_is_the_mean(task: Task) -> None:
    H = polynomial(0)(task.X_tr, task.Y_tr)(task.X_te)
    torch.testing.assert_close(H, task.Y_tr.mean(dim=1, keepdim=True).expand_as(H))


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_polynomials_are_numpys(degree: int, task: Task) -> None:
    H = polynomial(degree)(task.X_tr, task.Y_tr)(task.X_te)
    for b in range(len(task)):
        fitted = np.polyfit(task.X_tr[b, :, 0].numpy(), task.Y_tr[b, :, 0].numpy(), degree)
        expected = np.polyval(fitted, task.X_te[b, :, 0].numpy())
        np.testing.assert_allclose(H[b, :, 0].numpy(), expected, rtol=1e-7, atol=1e-9)


def test_enough_powers_go_through_every_point(task: Task) -> None:
    for degree in (4, 6):  # as many coefficients as points, and more
        H = polynomial(degree)(task.X_tr, task.Y_tr)(task.X_tr)
        torch.testing.assert_close(H, task.Y_tr, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("strength", [0.01, 1.0, 100.0])
def test_ridge_is_scikit_learns(strength: float) -> None:
    X_tr, Y_tr, X = points(4, 9, 3, 2)
    for features in (torch.clone, fourier_features(5.0, 4)):
        H = ridge(strength, features=features)(X_tr, Y_tr)(X)
        for b in range(4):
            theirs = Ridge(alpha=strength).fit(features(X_tr)[b].numpy(), Y_tr[b].numpy())
            np.testing.assert_allclose(H[b].numpy(), theirs.predict(features(X)[b].numpy()))


def test_ridge_without_a_penalty_is_least_squares() -> None:
    for M in (12, 3):  # determined, and not: then the smallest weights
        X_tr, Y_tr, X = points(3, M, 5, 2)
        H = ridge(0.0)(X_tr, Y_tr)(X)
        for b in range(3):
            theirs = LinearRegression().fit(X_tr[b].numpy(), Y_tr[b].numpy())
            np.testing.assert_allclose(H[b].numpy(), theirs.predict(X[b].numpy()), atol=1e-9)


def test_equal_inputs_leave_ridge_the_mean() -> None:
    X_tr, Y_tr = torch.full((1, 4, 2), 3.0), torch.randn(1, 4, 1)
    H = ridge(0.0)(X_tr, Y_tr)(torch.randn(1, 5, 2))
    torch.testing.assert_close(H, Y_tr.mean(dim=1, keepdim=True).expand_as(H))


def test_fourier_features_repeat_after_their_period() -> None:
    X, features = torch.randn(2, 5, 3), fourier_features(4.0, 6)
    assert features(X).shape == (2, 5, 2 * 6 * 3)
    torch.testing.assert_close(features(X + 4.0), features(X))
    assert not torch.allclose(features(X + 2.0), features(X))
    unit = features(X).square().sum(dim=-1)
    torch.testing.assert_close(unit, torch.full_like(unit, 6 * 3))


@pytest.mark.parametrize("noise", [1e-4, 0.3])
def test_the_gaussian_process_is_scikit_learns(noise: float) -> None:
    X_tr, Y_tr, X = points(4, 9, 2, 2)
    process = gaussian_process(rbf(0.8, 1.7), noise=noise)(X_tr, Y_tr)
    belief, evidence = process.belief(X), process.log_likelihood()
    for b in range(4):
        kernel = ConstantKernel(1.7**2) * RBF(0.8) + WhiteKernel(noise)
        theirs = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None)
        theirs.fit(X_tr[b].numpy(), Y_tr[b].numpy())
        mean, deviation = theirs.predict(X[b].numpy(), return_std=True)
        np.testing.assert_allclose(belief.mean[b].numpy(), mean, atol=1e-6)
        np.testing.assert_allclose(belief.variance[b].numpy(), deviation**2, atol=1e-6)
        np.testing.assert_allclose(
            evidence[b].item(), theirs.log_marginal_likelihood_value_, rtol=1e-6
        )
    torch.testing.assert_close(process(X), belief.mean)


def test_the_gaussian_process_interpolates_as_the_noise_vanishes(task: Task) -> None:
    losses = []
    for noise in (1e-2, 1e-4, 1e-6, 0.0):
        process = gaussian_process(rbf(1.0, 2.0), noise=noise)(task.X_tr, task.Y_tr)
        losses.append(squared_error(process(task.X_tr), task.Y_tr).max().item())
        variance = process.belief(task.X_tr).variance
        assert variance.max() < 2 * noise + 1e-9
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 1e-12


def test_rounding_makes_no_variance_negative() -> None:
    X_tr = torch.arange(4.0).view(1, 4, 1) + 0.1 * torch.randn(200, 4, 1)
    process = gaussian_process(rbf(1.0, 1.7), noise=0.0, jitter=0.0)(X_tr, torch.randn(200, 4, 1))
    assert process.belief(X_tr).variance.min() == 0


def test_far_from_the_points_the_prior_comes_back(task: Task) -> None:
    process = gaussian_process(rbf(1.0, 3.0), noise=0.5)(task.X_tr, task.Y_tr)
    belief = process.belief(task.X_te + 100)
    assert belief.mean.abs().max() < 1e-9
    torch.testing.assert_close(belief.variance, torch.full_like(belief.variance, 9.5))


def test_draws_of_the_prior_are_predicted_as_surely_as_believed() -> None:
    kernel, noise, B = rbf(1.0, 2.0), 0.1, 4000
    X = 3 * torch.randn(B, 8, 1)
    L = torch.linalg.cholesky(kernel(X, X) + noise * torch.eye(8))
    Y = L @ torch.randn(B, 8, 1)
    belief = gaussian_process(kernel, noise=noise)(X[:, :5], Y[:, :5]).belief(X[:, 5:])
    z = (Y[:, 5:] - belief.mean) / belief.variance.sqrt()
    assert abs(z.mean()) < 0.04
    assert abs(z.square().mean() - 1) < 0.06


@pytest.mark.parametrize("spoil", ["equal inputs", "a missing value", "no covariance"])
def test_matrices_that_are_not_positive_definite_are_refused(spoil: str, task: Task) -> None:
    X_tr, kernel = task.X_tr.clone(), rbf(1.0)
    if spoil == "equal inputs":
        X_tr[2] = 1.0
    elif spoil == "a missing value":
        X_tr[2, 1] = torch.nan
    else:

        def kernel(X: Tensor, other: Tensor) -> Tensor:
            sign = torch.ones(len(X), 1, 1)
            sign[2] = -1.0
            return sign * rbf(1.0)(X, other)

    with pytest.raises(ValueError, match="must be positive definite, got .* in 1 of 6 tasks"):
        gaussian_process(kernel, noise=0.0, jitter=0.0)(X_tr, task.Y_tr)


def test_jitter_bears_equal_inputs_and_is_no_noise() -> None:
    X_tr, Y_tr = torch.zeros(1, 3, 1), torch.full((1, 3, 1), 2.0)
    belief = gaussian_process(rbf(1.0), noise=0.0, jitter=1e-9)(X_tr, Y_tr).belief(X_tr)
    torch.testing.assert_close(belief.mean, Y_tr)
    assert belief.variance.max() < 1e-8


def test_impossible_learners_are_refused() -> None:
    with pytest.raises(ValueError, match="degree must not be negative, got -1"):
        polynomial(-1)
    with pytest.raises(ValueError, match="a polynomial must have one input, got 2"):
        polynomial(2)(torch.ones(1, 3, 2), torch.ones(1, 3, 1))
    with pytest.raises(ValueError, match="strength must not be negative, got -0.5"):
        ridge(-0.5)
    with pytest.raises(ValueError, match="period must be positive, got 0"):
        fourier_features(0, 3)
    with pytest.raises(ValueError, match="frequencies must be at least 1, got 0"):
        fourier_features(1.0, 0)
    with pytest.raises(ValueError, match="lengthscale must be positive, got 0"):
        rbf(0.0)
    with pytest.raises(ValueError, match="amplitude must be positive, got nan"):
        rbf(1.0, float("nan"))
    with pytest.raises(ValueError, match="noise must not be negative, got -1"):
        gaussian_process(rbf(1.0), noise=-1.0)
    with pytest.raises(ValueError, match="jitter must not be negative, got -1"):
        gaussian_process(rbf(1.0), noise=0.0, jitter=-1.0)
