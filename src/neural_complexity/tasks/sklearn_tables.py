"""Small real tables: predict one column from others."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor

from neural_complexity.tasks.sampling import SampledFamily, check_at_most

__all__ = ["Tables"]

TABLES = ("diabetes", "wine", "breast_cancer", "iris")  # what scikit-learn ships, no download


@cache
def _load() -> tuple[Tensor, Tensor, Tensor]:
    """Returns all tables, (T, rows, columns), and how many rows and columns each has, (T,).

    Rows are shuffled, the same way always; columns have mean 0 and standard deviation 1; what a
    table does not have is zero.
    """
    tables = []
    for name in TABLES:
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        table = np.column_stack([X, y])
        table = (table - table.mean(axis=0)) / table.std(axis=0)
        tables.append(np.random.default_rng(0).permutation(table))
    rows, columns = torch.tensor([table.shape for table in tables]).T
    whole = torch.zeros(len(tables), int(rows.max()), int(columns.max()), dtype=torch.float64)
    for i, table in enumerate(tables):
        whole[i, : table.shape[0], : table.shape[1]] = torch.from_numpy(table)
    return whole, rows, columns


@dataclass(frozen=True, kw_only=True)
class Tables(SampledFamily):
    """Tasks from scikit-learn's tables: some rows, a random target column, random input columns."""

    features: int = 1  # input columns, D
    part: Literal["first", "second"] = "first"  # half of the rows: to train NC on, or to judge it

    def __post_init__(self) -> None:
        super().__post_init__()
        _, rows, columns = _load()
        check_at_most("points of a task", self.points, int(rows.min()) // 2)
        check_at_most("features", self.features, int(columns.min()) - 1)
        if self.part not in ("first", "second"):
            raise ValueError(f"part must be first or second, got {self.part}")

    def draw_points(self, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws rows, as inputs (B, points, D) and targets (B, points, 1)."""
        device = generator.device
        whole, rows, columns = (t.to(device) for t in _load())
        which = torch.randint(len(whole), (batch,), generator=generator, device=device)  # (B,)
        half = rows[which] // 2
        picked = _choose(half, self.points, whole.shape[1], generator)
        if self.part == "second":
            picked = picked + half[:, None]
        chosen = _choose(columns[which], self.features + 1, whole.shape[2], generator)
        values = whole[which[:, None, None], picked[:, :, None], chosen[:, None, :]]
        values = values.to(torch.get_default_dtype())  # (B, points, D + 1)
        return values[..., :-1], values[..., -1:]


def _choose(sizes: Tensor, count: int, most: int, generator: torch.Generator) -> Tensor:
    """Chooses `count` different indices below each of the sizes, (B,), as (B, count)."""
    keys = torch.rand(len(sizes), most, generator=generator, device=sizes.device)
    beyond = torch.arange(most, device=sizes.device) >= sizes[:, None]
    return keys.masked_fill(beyond, 2.0).argsort(dim=1)[:, :count]
