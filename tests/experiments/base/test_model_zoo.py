from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from conftest import precision
from neural_complexity.experiments.base.model_zoo import (
    Grid,
    Group,
    NoisySplits,
    Sizes,
    Stopping,
    Trained,
    ZooData,
    expected_gap,
    load_data,
    mislabel,
    train_group,
)
from neural_complexity.losses import cross_entropy as by_point
from neural_complexity.points import values
from neural_complexity.seeding import stream
from neural_complexity.snapshot import gap, take_snapshot
from neural_complexity.tasks.splits import Rounds, split_tasks

PLAIN = Grid(
    width=(8,), depth=(2,), batch=(10,), dropout=(0.0,), augmentation=(0.0,), label_noise=(0.0,)
)
STOPPING = Stopping(target=0.3, every=10, steps=400)


@pytest.fixture(scope="module")
def data() -> ZooData:
    with precision(torch.float64):
        return load_data("sklearn wine", Sizes(train=40, test=40), seed=0)


def train(group: Group, data: ZooData, stopping: Stopping = STOPPING, seed: int = 0) -> Trained:
    Y = mislabel(group, data, seed=0)
    X, make = data.training[0], partial(group.make, data)
    return train_group(group, make, X, Y, stopping, seed=seed, name="tests")


def states(trained: Trained) -> Tensor:
    return torch.cat([p.flatten(1) for p in trained.h.parameters()], dim=1)


def test_there_is_a_model_for_each_combination() -> None:
    groups = Grid().groups()
    rows = [tuple(row) for g in groups for row in torch.stack([*g.columns.values()]).T.tolist()]
    assert len(rows) == len(set(rows)) == 2**8
    assert len({group.name for group in groups}) == len(groups) == 2**4


def test_each_model_is_what_sgd_alone_makes_of_it(data: ZooData) -> None:
    (group,) = PLAIN.groups()
    trained = train(group, data, Stopping(target=1e-6, every=3, steps=7))
    X, y = data.training
    rounds = Rounds(
        torch.Size((len(group), len(y))), 10, lambda i: stream(0, "tests", group.name, "order", i)
    )
    for b in range(len(group)):
        h = trained.initial.one(b)
        lr, decay = (group.columns[name][b].item() for name in ("lr", "weight_decay"))
        descent = torch.optim.SGD(h.parameters(), lr=lr, weight_decay=decay)
        for step in range(7):
            rows = rounds(step)[b]
            descent.zero_grad()
            cross_entropy(h(X[rows]), y[rows]).backward()
            descent.step()
        own = trained.h.one(b)
        for p, q in zip(h.parameters(), own.parameters(), strict=True):
            torch.testing.assert_close(p, q)
        torch.testing.assert_close(trained.loss_tr[b], cross_entropy(own(X), y))


def test_a_model_stops_at_the_first_look_below_the_target(data: ZooData) -> None:
    (group,) = PLAIN.groups()
    trained = train(group, data)
    assert trained.reached.all()
    assert (trained.loss_tr <= STOPPING.target).all()
    assert len(trained.steps.unique()) > 1
    for b, steps in enumerate(trained.steps.tolist()):
        before = train(group, data, replace(STOPPING, steps=steps - STOPPING.every))
        assert not before.reached[b]
        until = train(group, data, replace(STOPPING, steps=steps))
        torch.testing.assert_close(states(until)[b], states(trained)[b])


def test_models_that_do_not_get_there_are_told(data: ZooData) -> None:
    (group,) = replace(PLAIN, lr=(1e-6, 0.5)).groups()
    trained = train(group, data)
    assert torch.equal(trained.reached, group.columns["lr"] == 0.5)
    assert (trained.steps[~trained.reached] == STOPPING.steps).all()


def test_the_same_seed_gives_the_same_weights_with_all_noise(data: ZooData) -> None:
    (group,) = replace(PLAIN, dropout=(0.2,), augmentation=(0.3,), label_noise=(0.2,)).groups()
    few = Stopping(target=1e-6, every=5, steps=10)
    first, second, other = (states(train(group, data, few, seed)) for seed in (0, 0, 1))
    assert torch.equal(first, second)
    assert not torch.isclose(first, other).any()


@pytest.mark.parametrize("name", ["dropout", "augmentation", "weight_decay", "lr"])
def test_each_hyperparameter_changes_the_models(name: str, data: ZooData) -> None:
    few = Stopping(target=1e-6, every=5, steps=5)
    other: dict[str, Any] = {name: (0.3,)}
    (plain,), (changed,) = PLAIN.groups(), replace(PLAIN, **other).groups()
    first, second = train(plain, data, few).loss_tr, train(changed, data, few).loss_tr
    assert not torch.isclose(first[0], second[0])


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


def test_what_was_trained_survives_as_tensors(data: ZooData) -> None:
    (group,) = PLAIN.groups()
    trained = train(group, data)
    again = Trained.from_tensors(group.make(data), trained.tensors())
    X = data.training[0].expand(len(group), -1, -1)
    assert torch.equal(again.h(X), trained.h(X))
    assert torch.equal(again.initial(X), trained.initial(X))
    some = again[torch.tensor([False, True, False, True])]
    assert torch.equal(some.h(X[:2]), trained.h(X)[[1, 3]])
    assert torch.equal(some.steps, trained.steps[[1, 3]])


def test_gaps_are_means_over_noisy_test_labels(data: ZooData) -> None:
    (group,) = replace(PLAIN, label_noise=(0.0, 0.6)).groups()
    task = data.task(mislabel(group, data, seed=0))
    snapshot = take_snapshot(train(group, data).h, task).detach()
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
