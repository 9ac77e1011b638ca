from dataclasses import fields

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import random_snapshot
from neural_complexity.losses import squared_error
from neural_complexity.snapshot import Snapshot, gap, point_gaps, take_snapshot
from neural_complexity.task import Task


def test_test_targets_have_no_place_in_a_snapshot() -> None:
    assert {field.name for field in fields(Snapshot)} == {"X_tr", "Y_tr", "H_tr", "X_te", "H_te"}


def test_the_gap_is_test_minus_train_and_the_mean_of_the_point_gaps() -> None:
    snapshot = random_snapshot()
    Y_te = torch.randn(3, 5, 1)
    loss_te = squared_error(snapshot.H_te, Y_te).mean(dim=1)
    loss_tr = squared_error(snapshot.H_tr, snapshot.Y_tr).mean(dim=1)
    torch.testing.assert_close(gap(squared_error, snapshot, Y_te), loss_te - loss_tr)
    points = point_gaps(squared_error, snapshot, Y_te)
    assert points.shape == (3, 5)
    torch.testing.assert_close(points.mean(dim=1), loss_te - loss_tr)


def test_taking_a_snapshot_does_not_read_test_targets(task: Task) -> None:
    other = Task(task.X_tr, task.Y_tr, task.X_te, torch.full_like(task.Y_te, torch.nan))
    for a, b in zip(
        take_snapshot(torch.sin, task).tensors(),
        take_snapshot(torch.sin, other).tensors(),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_detach_cuts_gradients_and_keeps_values() -> None:
    snapshot = random_snapshot()
    H_te = snapshot.H_te.clone().requires_grad_()
    attached = Snapshot(snapshot.X_tr, snapshot.Y_tr, snapshot.H_tr, snapshot.X_te, H_te * 1)
    assert attached.H_te.requires_grad
    assert not attached.detach().H_te.requires_grad
    assert torch.equal(attached.detach().H_te, snapshot.H_te)


sizes = st.integers(1, 5)


@given(B=sizes, M=sizes, N=sizes, D=sizes, C=sizes)
def test_joined_snapshots_equal_separate_ones(B: int, M: int, N: int, D: int, C: int) -> None:
    weight = torch.randn(D, C, requires_grad=True)
    asked: list[int] = []

    def h(X: Tensor) -> Tensor:
        asked.append(X.shape[1])
        return (X @ weight).sin()

    task = Task(
        torch.randn(B, M, D), torch.randn(B, M, C), torch.randn(B, N, D), torch.randn(B, N, C)
    )
    joined, separate = (take_snapshot(h, task, joined=joined) for joined in (True, False))
    assert asked == [M + N, M, N]
    gradients: list[Tensor] = []
    for snapshot in (joined, separate):
        value = snapshot.H_tr.sum() + snapshot.H_te.square().sum()
        gradients += torch.autograd.grad(value, [weight])
    torch.testing.assert_close(*gradients)
    for a, b in zip(joined.tensors(), separate.tensors(), strict=True):
        torch.testing.assert_close(a, b)


def test_joined_snapshots_take_numbers_in_the_place_of_inputs() -> None:
    store = torch.randn(9, 2)
    X = torch.randint(9, (3, 7))
    task = Task(X[:, :4], torch.randn(3, 4, 2), X[:, 4:], torch.randn(3, 3, 2))
    snapshot = take_snapshot(lambda numbers: store[numbers], task, joined=True)
    assert torch.equal(snapshot.H_tr, store[task.X_tr])
    assert torch.equal(snapshot.H_te, store[task.X_te])
