from dataclasses import replace
from functools import partial

import pytest
import torch

from conftest import precision
from neural_complexity.experiments.base.model_zoo import (
    Grid,
    NoisySplits,
    Sizes,
    ZooData,
    expected_gap,
    load_data,
    mislabel,
)
from neural_complexity.experiments.base.zoo_training import Stopping
from neural_complexity.learners.batched import stack
from neural_complexity.losses import cross_entropy as by_point
from neural_complexity.points import values
from neural_complexity.seeding import stream
from neural_complexity.snapshot import gap, take_snapshot
from neural_complexity.tasks.splits import split_tasks

PLAIN = Grid(
    width=(8,), depth=(2,), batch=(10,), dropout=(0.0,), augmentation=(0.0,), label_noise=(0.0,)
)
STOPPING = Stopping(target=0.3, every=10, steps=400)


@pytest.fixture(scope="module")
def data() -> ZooData:
    with precision(torch.float64):
        return load_data("sklearn wine", Sizes(train=40, test=40), seed=0)


def test_there_is_a_model_for_each_combination() -> None:
    groups = Grid().groups()
    rows = [tuple(row) for g in groups for row in torch.stack([*g.columns.values()]).T.tolist()]
    assert len(rows) == len(set(rows)) == 2**8
    assert len({group.name for group in groups}) == len(groups) == 2**4


def test_a_share_of_the_labels_is_drawn(data: ZooData) -> None:
    (group,) = replace(PLAIN, label_noise=(0.0, 0.6)).groups()
    wrong = (mislabel(group, data, seed=0) != data.training[1]).double().mean(dim=1)
    noise = group.columns["label_noise"]
    assert (wrong[noise == 0] == 0).all()
    drawn = wrong[noise == 0.6].mean().item()
    assert drawn == pytest.approx(0.6 * (1 - 1 / data.classes), abs=0.1)


@pytest.mark.parametrize("name", ["digits", "sklearn wine", "sklearn breast_cancer"])
def test_the_three_parts_share_no_point(name: str) -> None:
    data = load_data(name, Sizes(train=60, test=50, others=100), seed=0)
    X, y = data.others()
    assert (data.train, data.test) == (60, 50)
    assert len(X) == len(y) >= 50
    assert tuple(X.shape[1:]) == data.shape
    task = data.task(data.training[1].expand(2, -1))
    assert task.X_te.shape == (2, 50, data.X.shape[1])
    assert len(torch.cat([task.X_tr[0], task.X_te[0], X.flatten(1)]).unique(dim=0)) == len(data.X)
    assert data.X.std().item() == pytest.approx(1, abs=0.3)


def test_gaps_are_means_over_noisy_test_labels(data: ZooData) -> None:
    (group,) = replace(PLAIN, label_noise=(0.0, 0.6)).groups()
    task = data.task(mislabel(group, data, seed=0))
    h = stack(partial(group.make, data), len(group), stream(0, "networks"))
    snapshot = take_snapshot(h, task).detach()
    found = expected_gap(group, snapshot, task.Y_te, data.classes)
    clean = group.columns["label_noise"] == 0
    torch.testing.assert_close(found[clean], gap(by_point, snapshot, task.Y_te)[clean])
    drawing, noise, gaps = stream(0), group.columns["label_noise"][:, None], []
    for _ in range(2000):
        wrong = torch.rand(task.Y_te.shape, generator=drawing) < noise
        drawn = torch.randint(data.classes, task.Y_te.shape, generator=drawing)
        gaps.append(gap(by_point, snapshot, torch.where(wrong, drawn, task.Y_te)))
    error = torch.stack(gaps).std(dim=0) / len(gaps) ** 0.5
    assert ((torch.stack(gaps).mean(dim=0) - found).abs() <= 5 * error + 1e-12).all()


def test_splits_are_as_noisy_as_a_zoo() -> None:
    X, y = torch.randn(400, 2), torch.arange(400) % 4
    splits = NoisySplits(**vars(split_tasks(X, y)), shares=(0.0, 0.4))
    task = splits.split(40, stream(0))
    known = {tuple(x): label for x, label in zip(X.tolist(), y.tolist(), strict=True)}
    for points, Y in ((task.X_tr, task.Y_tr), (task.X_te, task.Y_te)):
        flat = values(points).flatten(0, 1).tolist()
        true = torch.tensor([known[tuple(x)] for x in flat]).view_as(Y)
        share = (true != Y).double().mean(dim=1)
        assert (share[::2] == 0).all()
        assert share[1::2].mean().item() == pytest.approx(0.4 * 3 / 4, abs=0.03)
    again, other = splits.split(40, stream(0)), splits.split(40, stream(1))
    assert torch.equal(again.Y_tr, task.Y_tr)
    assert not torch.equal(other.Y_tr, task.Y_tr)


def test_other_points_are_those_that_nc_learns_from() -> None:
    data = load_data("sklearn wine", Sizes(train=60, test=40, others=50), seed=0)
    X, Y = data.labelled_others(2)
    known, y = data.others()
    assert torch.equal(X[0].view_as(known), known)
    assert torch.equal(X[0], X[1])
    assert torch.equal(Y, y.expand(2, -1))
