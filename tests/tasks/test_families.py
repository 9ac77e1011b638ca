import torch

from neural_complexity.seeding import stream
from neural_complexity.tasks.families import (
    GaussianProcesses,
    Polynomials,
    StepFunctions,
    Tables,
    _load,
)


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


def test_the_halves_of_the_tables_share_no_row() -> None:
    whole, rows, _ = _load()
    for part, first in (("first", True), ("second", False)):
        task = Tables(part=part, features=1).sample(400, stream(0, "x"))  # type: ignore[arg-type]
        points = (
            torch.cat([task.X_tr, task.X_te], dim=1)[..., 0],
            torch.cat([task.Y_tr, task.Y_te], dim=1)[..., 0],
        )
        for b in range(20):  # every point of a task is a row of the right half of one table
            pair = torch.stack([p[b] for p in points])  # (2, M + N)
            assert any(
                _holds(table[: n // 2] if first else table[n // 2 : n], pair)
                for table, n in zip(whole, rows.tolist(), strict=True)
            )


def _holds(table: torch.Tensor, pair: torch.Tensor) -> bool:
    """Tells whether some two columns of a table have all pairs of values in one row each."""
    columns = [
        torch.nonzero((table[:, :, None] == v).any(dim=0).all(dim=1)).flatten() for v in pair
    ]
    for x in columns[0].tolist():
        for y in columns[1].tolist():
            both = (table[:, x, None] == pair[0]) & (table[:, y, None] == pair[1])
            if x != y and both.any(dim=0).all():
                return True
    return False


def test_columns_of_the_tables_are_standardized() -> None:
    whole, rows, columns = _load()
    for table, n, c in zip(whole, rows.tolist(), columns.tolist(), strict=True):
        assert table[:n, :c].mean(dim=0).abs().max() < 1e-9
        torch.testing.assert_close(table[:n, :c].std(dim=0, correction=0), torch.ones(c))
        assert table[n:].abs().sum() == 0
