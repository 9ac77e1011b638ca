from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from measured import classes_of_points
from neural_complexity.baselines.measures.chosen_points import few, mixed_pairs
from neural_complexity.task import Task


def shuffled(task: Task, seed: int) -> tuple[Task, Tensor]:
    order = torch.randperm(task.Y_tr.shape[1], generator=torch.Generator().manual_seed(seed))
    return replace(task, X_tr=task.X_tr[:, order], Y_tr=task.Y_tr[:, order]), order


def test_few_points_are_all_of_them() -> None:
    task = classes_of_points()
    assert few(task, 20) is task


@given(seed=st.integers(0, 99), M=st.integers(1, 30), most=st.integers(1, 30))
def test_chosen_points_are_the_same_in_any_order(seed: int, M: int, most: int) -> None:
    task = classes_of_points(M=M, seed=seed)
    chosen, other = few(task, most), few(shuffled(task, seed)[0], most)
    assert chosen.Y_tr.shape == (3, min(M, most))
    for a, b in ((chosen, other), (other, chosen)):
        found = (a.X_tr.unsqueeze(2) == b.X_tr.unsqueeze(1)).all(dim=-1)  # (B, most, most)
        assert (found.sum(dim=2) == 1).all()
    labelled = (chosen.X_tr.unsqueeze(2) == task.X_tr.unsqueeze(1)).all(dim=-1).to(torch.int64)
    assert torch.equal((labelled @ task.Y_tr.unsqueeze(-1)).squeeze(-1), chosen.Y_tr)


@given(seed=st.integers(0, 99), M=st.integers(1, 20))
def test_pairs_are_of_one_class_and_the_same_in_any_order(seed: int, M: int) -> None:
    task = classes_of_points(M=M, seed=seed)
    mixed = mixed_pairs(task)
    other, order = shuffled(task, seed)
    torch.testing.assert_close(mixed_pairs(other), mixed[:, order])
    partners = 2 * mixed - task.X_tr
    match = torch.cdist(partners, task.X_tr) < 1e-6  # (B, M, M)
    assert (match.sum(dim=1) == 1).all()  # each is somebody's partner
    same = task.Y_tr.unsqueeze(2) == task.Y_tr.unsqueeze(1)
    assert (same | ~match).all()
    alone = same.sum(dim=2) == 1
    assert torch.equal(match.diagonal(dim1=1, dim2=2), alone)


def test_points_are_mixed_with_labels_only() -> None:
    task = classes_of_points()
    with pytest.raises(ValueError, match="training targets must be labels"):
        mixed_pairs(replace(task, Y_tr=task.X_tr, Y_te=task.X_te))
