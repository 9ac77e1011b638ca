import math

import torch

from neural_complexity.seeding import stream
from neural_complexity.tasks.sinusoids import Sinusoids


def test_every_task_is_one_sinusoid_within_the_papers_ranges() -> None:
    task = Sinusoids().sample(2000, stream(0, "x"))
    assert task.X_tr.shape == (2000, 10, 1)
    assert task.X_te.shape == (2000, 15, 1)
    # A sin(x + b) = (A cos b) sin x + (A sin b) cos x: fitted on training points, exact on test
    # points.
    basis = lambda X: torch.cat([X.sin(), X.cos()], dim=-1)  # noqa: E731
    weights = torch.linalg.lstsq(basis(task.X_tr), task.Y_tr).solution  # (B, 2, 1)
    torch.testing.assert_close(basis(task.X_te) @ weights, task.Y_te)
    A, b = weights.norm(dim=1), torch.atan2(weights[:, 1], weights[:, 0])
    for value, low, high in ((A, 0.1, 5.0), (b, 0.0, math.pi), (task.X_te, -5.0, 5.0)):
        assert low <= value.min() < low + 0.02 * (high - low)
        assert high - 0.02 * (high - low) < value.max() <= high + 1e-9
        assert abs(value.mean().item() - (low + high) / 2) < 0.05 * (high - low)
