import torch

from neural_complexity.seeding import stream
from neural_complexity.tasks.polynomials import Polynomials


def test_polynomials_are_polynomials_of_their_degree() -> None:
    task = Polynomials(degree=3, train_points=9).sample(50, stream(0, "x"))
    powers = lambda X: (X / 5) ** torch.arange(4)  # noqa: E731
    weights = torch.linalg.lstsq(powers(task.X_tr), task.Y_tr).solution
    torch.testing.assert_close(powers(task.X_te) @ weights, task.Y_te)
    assert weights[:, 3].abs().min() > 0
