from dataclasses import fields

import torch

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
