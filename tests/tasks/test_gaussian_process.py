import torch

from neural_complexity.seeding import stream
from neural_complexity.tasks.gaussian_process import GaussianProcesses


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
