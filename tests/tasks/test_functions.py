import torch

from neural_complexity.seeding import stream
from neural_complexity.tasks.functions import GaussianProcesses, Polynomials, StepFunctions


def test_gaussian_processes_have_the_covariance_of_their_kernel() -> None:
    family = GaussianProcesses(lengthscale=(1.5, 1.5), amplitude=(2.0, 2.0), noise=0.3)
    task = family.sample(20_000, stream(0, "x"))
    apart = (task.X_tr[:, 0, 0] - task.X_te[:, 0, 0]).abs()
    product = task.Y_tr[:, 0, 0] * task.Y_te[:, 0, 0]
    for low, high in ((0.0, 0.3), (1.0, 1.3), (4.0, 10.0)):
        these = (apart >= low) & (apart < high)
        expected = 4 * torch.exp(-0.5 * (apart[these] / 1.5).square()).mean()
        error = product[these].std() / these.sum() ** 0.5
        assert abs(product[these].mean() - expected) < 4 * error
    assert abs(task.Y_te.var().item() - (4 + 0.09)) < 0.1


def test_polynomials_are_polynomials_of_their_degree() -> None:
    task = Polynomials(degree=3, train_points=9).sample(50, stream(0, "x"))
    powers = lambda X: (X / 5) ** torch.arange(4)  # noqa: E731
    weights = torch.linalg.lstsq(powers(task.X_tr), task.Y_tr).solution
    torch.testing.assert_close(powers(task.X_te) @ weights, task.Y_te)
    assert weights[:, 3].abs().min() > 0


def test_step_functions_have_one_level_between_two_jumps() -> None:
    task = StepFunctions(jumps=2, train_points=300, test_points=1).sample(20, stream(0, "x"))
    X, Y = task.X_tr[..., 0], task.Y_tr[..., 0]
    ordered = Y.gather(1, X.argsort(dim=1))
    changes = (ordered.diff(dim=1) != 0).sum(dim=1)
    assert changes.max() == 2
    assert changes.double().mean() > 1.5
