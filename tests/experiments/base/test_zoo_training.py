import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from conftest import precision
from neural_complexity.experiments.base.model_zoo import (
    Grid,
    Group,
    Sizes,
    ZooData,
    load_data,
    mislabel,
)
from neural_complexity.experiments.base.zoo_training import Stopping, Trained, train_group
from neural_complexity.seeding import stream
from neural_complexity.tasks.splits import Rounds

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


def test_each_model_is_what_sgd_alone_makes_of_it(data: ZooData) -> None:
    (group,) = PLAIN.groups()
    trained = train(group, data, Stopping(target=1e-6, every=3, steps=7))
    X, y = data.training
    rounds = Rounds(torch.Size((1, len(y))), 10, lambda i: stream(0, "tests", 10, "order", i))
    for b in range(len(group)):
        h = trained.initial.one(b)
        lr, decay = (group.columns[name][b].item() for name in ("lr", "weight_decay"))
        descent = torch.optim.SGD(h.parameters(), lr=lr, weight_decay=decay)
        for step in range(7):
            rows = rounds(step)[0]
            descent.zero_grad()
            cross_entropy(h(X[rows]), y[rows]).backward()
            descent.step()
        own = trained.h.one(b)
        for p, q in zip(h.parameters(), own.parameters(), strict=True):
            torch.testing.assert_close(p, q)
        torch.testing.assert_close(trained.loss_tr[b], cross_entropy(own(X), y))


def test_models_stop_at_the_same_training_loss(data: ZooData) -> None:
    (group,) = PLAIN.groups()
    trained = train(group, data)
    assert trained.reached.all()
    assert (trained.loss_tr <= STOPPING.target).all()
    assert (trained.loss_tr > 0.95 * STOPPING.target).all()
    assert len(trained.steps.unique()) > 1
    for b, steps in enumerate(trained.steps.tolist()):
        # With fewer updates it is not there, with as many it is the same one.
        before = train(group, data, replace(STOPPING, steps=steps - 1))
        assert not before.reached[b]
        until = train(group, data, replace(STOPPING, steps=steps))
        torch.testing.assert_close(states(until)[b], states(trained)[b])


@given(st.floats(0.01, 3), st.floats(0.01, 3), st.integers(1, 200), st.integers(1, 500))
def test_looks_come_closer_near_the_target(
    before: float, loss: float, apart: int, steps: int
) -> None:
    given = torch.tensor([before]), torch.tensor([loss]), torch.tensor([apart])
    wait = STOPPING.wait(*given, steps).item()
    most = min(2 * apart, STOPPING.every, steps)
    assert 1 <= wait <= most
    if loss >= before:  # it does not fall
        assert wait == most
    elif loss > STOPPING.target:
        # Halfway to the target, if its logarithm goes on to fall as it did.
        left = math.log(loss / STOPPING.target) / math.log(before / loss) * apart
        assert wait <= max(left / 2 + 1.01, steps // STOPPING.looks, 1)
    first = STOPPING.wait(torch.tensor([torch.nan]), given[1], given[2], steps).item()
    assert first == most


def test_models_of_a_group_begin_alike_and_have_the_same_wrong_labels(data: ZooData) -> None:
    grid = replace(PLAIN, dropout=(0.0, 0.1), batch=(5, 10), label_noise=(0.0, 0.3))
    starts, labels = [], []
    for group in grid.groups():
        trained = train(group, data, Stopping(target=1e-6, every=1, steps=1))
        starts += [torch.cat([p.flatten(1) for p in trained.initial.parameters()], dim=1)]
        labels += [mislabel(group, data, seed=0)[group.columns["label_noise"] > 0]]
    assert len(torch.cat(starts).unique(dim=0)) == 1
    assert len(torch.cat(labels).unique(dim=0)) == 1


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
