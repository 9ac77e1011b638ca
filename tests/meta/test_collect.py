from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import unlucky
from glyphs import thumbnails
from neural_complexity.learners.fit import Recipe, diverged
from neural_complexity.learners.networks import image_mlp
from neural_complexity.losses import cross_entropy, squared_error
from neural_complexity.meta.bank import Collection, MemoryBank
from neural_complexity.meta.collect import Job, SplitCollector, TaskCollector, TimeLimit, log_steps
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import raw
from neural_complexity.regularizers.nc import nc_penalty
from neural_complexity.seeding import seeded, stream
from neural_complexity.snapshot import Snapshot, take_snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.tasks.images import FewShot, SingleDataset
from neural_complexity.tasks.splits import Splits

family = Sinusoids(train_points=5, test_points=7)


def fill(recipe: Recipe, task: Task, weight: float, index: int = 0, lr: float = 0.05) -> MemoryBank:
    torch.manual_seed(0)
    nc = NeuralComplexity.for_tasks(task, width=16)
    bank = MemoryBank(take_snapshot(torch.sin, task), task.Y_te, capacity=1000)
    fast = Recipe(make=recipe.make, steps=recipe.steps, lr=lr)
    bank.add(
        *TaskCollector(family=family, recipe=fast, tasks=10, seed=3)(nc, Job(index, 0, weight))
    )
    return bank


def rows(bank: MemoryBank) -> torch.Tensor:
    snapshot, _ = bank.sample(400, stream(0, "rows"))
    return snapshot.H_te


def test_every_step_of_every_learner_is_stored_without_gradients(
    recipe: Recipe, task: Task
) -> None:
    bank = fill(recipe, task, 0.0)
    assert (len(bank), bank.dropped) == (10 * (recipe.steps + 1), 0)
    assert not rows(bank).requires_grad


def test_it_depends_on_nc_seed_and_index_alone(recipe: Recipe, task: Task) -> None:
    assert torch.equal(rows(fill(recipe, task, 1.0)), rows(fill(recipe, task, 1.0)))
    assert not torch.equal(rows(fill(recipe, task, 1.0)), rows(fill(recipe, task, 1.0, index=1)))
    assert not torch.equal(rows(fill(recipe, task, 1.0)), rows(fill(recipe, task, 0.0)))


def test_diverged_learners_are_dropped_and_counted(recipe: Recipe, task: Task) -> None:
    bank = fill(recipe, task, 0.0, lr=1e200)
    assert bank.dropped > 0
    assert len(bank) + bank.dropped == 10 * (recipe.steps + 1)
    assert rows(bank).isfinite().all()


def test_rows_of_learners_that_diverged_are_refused(recipe: Recipe, task: Task) -> None:
    nc, fast = NeuralComplexity.for_tasks(task, width=16), replace(recipe, lr=3.0)
    collector = TaskCollector(family=family, recipe=fast, seed=0, tasks=8)
    snapshot, _ = collector(nc, Job(0, 0, 0.0))
    steps: list[Snapshot] = []
    same = family.sample(8, stream(0, "collect tasks", 0))
    fast.train(same, stream(0, "collect learners", 0), observe=lambda _, s: steps.append(s))
    losses = [squared_error(s.H_tr, same.Y_tr) for s in steps]
    tests = [squared_error(s.H_te, same.Y_te) for s in steps]
    both = torch.stack([a.mean(dim=1) + b.mean(dim=1) for a, b in zip(losses, tests, strict=True)])
    assert torch.equal(~snapshot.finite(), diverged(both).flatten())
    assert snapshot.finite()[:8].all()
    assert not snapshot.finite().all()


def by_number(
    few_shot: FewShot, recipe: Recipe, weight: float
) -> tuple[Collection, NeuralComplexity]:
    torch.manual_seed(0)
    task = few_shot.sample(4, stream(0, "units"))
    nc = NeuralComplexity.for_tasks(task, loss="cross_entropy", width=8, channels=4, image_layers=2)
    collector = TaskCollector(
        family=few_shot, recipe=recipe, tasks=10, seed=3, spread_weights=False
    )
    return collector(nc, Job(2, 0, weight)), nc


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_each_tasks_steps_stand_side_by_side_in_an_order_of_its_own(
    few_shot: FewShot, image_recipe: Recipe, weight: float
) -> None:
    S = image_recipe.steps + 1
    (written, Y_te), nc = by_number(few_shot, image_recipe, weight)
    assert len(written) == 10 * S
    kept = few_shot.sample(10, stream(3, "collect tasks", 2))
    for own, each in (
        (raw(written.X_tr), raw(kept.X_tr)),
        (written.Y_tr, kept.Y_tr),
        (raw(written.X_te), raw(kept.X_te)),
        (Y_te, kept.Y_te),
    ):
        assert torch.equal(own.view(10, S, -1), each.unsqueeze(1).expand(-1, S, -1))
    # What is looked up are the tasks on which the same learners take the same steps.
    seen: list[Snapshot] = []
    looked_up = kept.loaded()
    image_recipe.train(
        looked_up,
        stream(3, "collect learners", 2),
        regularizer=nc_penalty(nc, looked_up, weight=weight, safeguard=False) if weight else None,
        observe=lambda _, snapshot: seen.append(snapshot),
    )
    orders = []
    for b in range(10):
        H_te = written.H_te[b * S : (b + 1) * S]
        distance = torch.stack([(H_te - s.H_te[b]).flatten(1).norm(dim=1) for s in seen], dim=1)
        orders.append(distance.argmin(dim=1))
        for row, step in enumerate(orders[-1].tolist()):
            assert torch.equal(H_te[row], seen[step].H_te[b])
            assert torch.equal(written.H_tr[b * S + row], seen[step].H_tr[b])
        assert orders[-1].sort().values.tolist() == list(range(S))
    assert len({tuple(order.tolist()) for order in orders}) > 1


def test_by_number_diverged_learners_are_dropped_and_counted(
    few_shot: FewShot, image_recipe: Recipe
) -> None:
    fast = Recipe(make=image_recipe.make, loss=image_recipe.loss, steps=3, lr=1e200)
    collection, _ = by_number(few_shot, fast, 0.0)
    bank = MemoryBank(*collection, capacity=1000)
    bank.add(*collection)
    assert bank.dropped > 0
    assert len(bank) + bank.dropped == 40
    assert rows(bank).isfinite().all()


# Splits of one dataset.

CLASSES = 4
HEADS = ("posterior", "direct")
dataset = SingleDataset("glyphs", thumbnails(classes=CLASSES, drawings=20), 70)
splits = Splits(dataset, torch.arange(3, 73), train=40, test=20, M=6, N=5)
split_recipe = Recipe(
    make=partial(image_mlp, (1, 7, 7), [8], CLASSES),
    loss=cross_entropy,
    steps=10,
    lr=0.5,
)
collector = SplitCollector(
    splits=splits,
    recipe=split_recipe,
    seed=0,
    tasks=2,
    looks=4,
    batch=8,
    smallest=10,
    unlabelled=12,
    context_size=9,
)


def make_nc(head: str = "posterior") -> NeuralComplexity:
    example = splits.sample(4, stream(0, "units"))
    with seeded(0, "weights"):
        return NeuralComplexity.for_tasks(
            example, loss="cross_entropy", head=head, width=8, heads=2, channels=4, image_layers=2
        )


def same(one: Collection, other: Collection) -> bool:
    columns = zip(
        (*map(raw, one[0].tensors()), one[1]),
        (*map(raw, other[0].tensors()), other[1]),
        strict=True,
    )
    return all(torch.equal(a, b) for a, b in columns)


@given(st.integers(1, 5000), st.integers(2, 40))
def test_looks_are_different_rising_and_hold_both_ends(steps: int, looks: int) -> None:
    found = log_steps(steps, looks)
    assert found == sorted(set(found))
    assert (found[0], found[-1]) == (0, steps)
    assert len(found) <= max(looks, 2) + 1


@pytest.mark.parametrize("head", HEADS)
def test_rows_are_numbers_of_the_pool_with_their_labels(head: str) -> None:
    snapshot, Y_te = collector(make_nc(head), Job(0, 0, 1.0))
    rows = 2 * len(log_steps(10, 4))
    assert snapshot.X_tr.shape == snapshot.Y_tr.shape == (rows, 6)
    assert snapshot.X_te.shape == Y_te.shape == (rows, 5)
    assert snapshot.H_tr.shape == (rows, 6, CLASSES)
    assert snapshot.H_te.shape == (rows, 5, CLASSES)
    for row in torch.cat([raw(snapshot.X_tr), raw(snapshot.X_te)], dim=1):
        assert len(row.unique()) == 11
        assert torch.isin(row, splits.pool).all()
    assert torch.equal(snapshot.Y_tr, dataset.labels[raw(snapshot.X_tr)])
    assert torch.equal(Y_te, dataset.labels[raw(snapshot.X_te)])
    assert not snapshot.H_tr.requires_grad
    assert not snapshot.H_te.requires_grad


@pytest.mark.parametrize("head", HEADS)
def test_it_is_a_pure_function_of_weights_index_and_weight(head: str) -> None:
    nc = make_nc(head)
    first = collector(nc, Job(1, 0, 1.0))
    torch.rand(7)  # the global generator has no say
    assert same(first, replace(collector)(make_nc(head), Job(1, 5, 1.0)))
    assert not same(first, collector(nc, Job(2, 0, 1.0)))
    assert not same(first, collector(nc, Job(1, 0, 0.0)))
    assert not same(first, replace(collector, seed=1)(nc, Job(1, 0, 1.0)))
    with torch.no_grad():
        for parameter in nc.parameters():
            parameter.add_(0.1)
    assert not same(first, collector(nc, Job(1, 0, 1.0)))


def test_without_weight_nc_has_no_say() -> None:
    posterior, direct = (collector(make_nc(head), Job(0, 0, 0.0)) for head in HEADS)
    assert same(posterior, direct)


def test_a_frozen_image_encoder_embeds_once_and_gives_the_same() -> None:
    nc = make_nc("direct")
    frozen = replace(collector, frozen=True)
    for index in (0, 1):
        own, usual = (c(nc, Job(index, 0, 1.0)) for c in (frozen, collector))
        for a, b in zip(own[0].tensors(), usual[0].tensors(), strict=True):
            torch.testing.assert_close(raw(a), raw(b))


def test_impossible_sizes_are_refused() -> None:
    for smallest in (5, 41):
        with pytest.raises(ValueError, match=f"smallest must be from 6,.*to 40,.*got {smallest}"):
            replace(collector, smallest=smallest)
    with pytest.raises(ValueError, match="looks must be at least 2, got 1"):
        replace(collector, looks=1)
    with pytest.raises(ValueError, match="tasks must be at least 1, got 0"):
        replace(collector, tasks=0)


def test_a_time_limit_is_for_other_processes() -> None:
    limited = TimeLimit(unlucky.plain(), 60.0)
    nc = NeuralComplexity.for_tasks(unlucky.family.sample(8, stream(0, "units")), width=8)
    with pytest.raises(ValueError, match="a time limit must be for other processes, got this one"):
        limited(nc, Job(0, 0, 0.5))
    elsewhere = replace(limited, caller=0)
    found, expected = elsewhere(nc, Job(0, 0, 0.5)), unlucky.plain()(nc, Job(0, 0, 0.5))
    assert torch.equal(found[0].H_te, expected[0].H_te)
