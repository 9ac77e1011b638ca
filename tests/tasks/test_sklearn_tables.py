import torch

from neural_complexity.seeding import stream
from neural_complexity.tasks.sklearn_tables import Tables, _load


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
