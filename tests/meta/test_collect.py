import pytest
import torch

from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta.bank import MemoryBank
from neural_complexity.meta.collect import collect, draw
from neural_complexity.meta.executor import Collection
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.regularizers.nc import nc_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, take_snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.few_shot import FewShot
from neural_complexity.tasks.sinusoids import Sinusoids

family = Sinusoids(train_points=5, test_points=7)


def fill(recipe: Recipe, task: Task, weight: float, index: int = 0, lr: float = 0.05) -> MemoryBank:
    torch.manual_seed(0)
    nc = NeuralComplexity.for_tasks(task, width=16)
    bank = MemoryBank(take_snapshot(torch.sin, task), task.Y_te, capacity=1000)
    fast = Recipe(make=recipe.make, steps=recipe.steps, lr=lr)
    bank.add(
        *collect(
            nc, family, fast, tasks=10, weight=weight, spread_weights=True, seed=3, index=index
        )
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


def test_tasks_without_numbers_are_kept_as_they_are() -> None:
    kept, task = draw(family, 3, stream(0, "x"))
    assert kept is task
    assert torch.equal(task.X_tr, family.sample(3, stream(0, "x")).X_tr)


def test_numbers_are_kept_in_the_place_of_images(few_shot: FewShot) -> None:
    kept, task = draw(few_shot, 3, stream(0, "x"))
    sampled = few_shot.sample(3, stream(0, "x"))
    assert kept.X_tr.dtype == kept.X_te.dtype == torch.int64
    for own, same in (
        (task.X_tr, sampled.X_tr),
        (task.X_te, sampled.X_te),
        (task.Y_tr, sampled.Y_tr),
        (task.Y_te, sampled.Y_te),
        (few_shot.look_up(kept.X_te), sampled.X_te),
    ):
        assert torch.equal(own, same)


def by_number(
    few_shot: FewShot, recipe: Recipe, weight: float
) -> tuple[Collection, NeuralComplexity]:
    torch.manual_seed(0)
    task = few_shot.sample(4, stream(0, "units"))
    nc = NeuralComplexity.for_tasks(task, loss="cross_entropy", width=8, channels=4, image_layers=2)
    collection = collect(
        nc, few_shot, recipe, tasks=10, weight=weight, spread_weights=False, seed=3, index=2
    )
    return collection, nc


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_each_tasks_steps_stand_side_by_side_in_an_order_of_its_own(
    few_shot: FewShot, image_recipe: Recipe, weight: float
) -> None:
    S = image_recipe.steps + 1
    (written, Y_te), nc = by_number(few_shot, image_recipe, weight)
    assert len(written) == 10 * S
    assert written.X_tr.dtype == written.X_te.dtype == torch.int64
    kept, task = draw(few_shot, 10, stream(3, "collect tasks", 2))
    for own, each in (
        (written.X_tr, kept.X_tr),
        (written.Y_tr, kept.Y_tr),
        (written.X_te, kept.X_te),
        (Y_te, kept.Y_te),
    ):
        assert torch.equal(own.view(10, S, -1), each.unsqueeze(1).expand(-1, S, -1))
    # What is looked up are the tasks on which the same learners take the same steps.
    seen: list[Snapshot] = []
    looked_up = Task(few_shot.look_up(kept.X_tr), kept.Y_tr, task.X_te, kept.Y_te)
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
