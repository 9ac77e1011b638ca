from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from conftest import convolutional, flat
from neural_complexity.learners.batched import BatchedLearner, stack
from neural_complexity.learners.fit import evaluate, fit, unroll
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import cross_entropy, squared_error, zero_one
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.few_shot import FewShot


def shrink(h: object, snapshot: Snapshot) -> Tensor:
    return snapshot.H_te.square().mean(dim=(1, 2))


def learners(recipe: Recipe, rows: slice | None = None) -> BatchedLearner:
    h = stack(recipe.make, 6, stream(0, "h"))
    if rows is None:
        return h
    state = {name: value[rows].detach().clone() for name, value in h.state().items()}
    return BatchedLearner(recipe.make(), state)


def test_learners_trained_together_equal_learners_trained_alone(task: Task, recipe: Recipe) -> None:
    for optimizer in (torch.optim.SGD, torch.optim.Adam):
        for regularizer in (None, shrink):
            options = {"loss": squared_error, "steps": 4, "lr": 0.05, "optimizer": optimizer}
            together = learners(recipe)
            fit(together, task, regularizer=regularizer, **options)  # type: ignore[arg-type]
            for b in range(len(task)):
                row = slice(b, b + 1)
                alone = learners(recipe, row)
                fit(alone, task[row], regularizer=regularizer, **options)  # type: ignore[arg-type]
                for key, value in alone.state().items():
                    torch.testing.assert_close(together.state()[key][row], value)


def test_it_descends_the_training_loss_plus_the_penalty(task: Task, recipe: Recipe) -> None:
    def step(regularizer: object) -> Tensor:
        h = learners(recipe)
        before = h.state()["0.weight"].detach().clone()
        fit(h, task, loss=squared_error, steps=1, lr=0.1, regularizer=regularizer)  # type: ignore[arg-type]
        return (before - h.state()["0.weight"]).detach() / 0.1

    h = learners(recipe)
    loss = squared_error(h(task.X_tr), task.Y_tr).mean(dim=1).sum()
    (plain,) = torch.autograd.grad(loss, [h.state()["0.weight"]])
    (penalty,) = torch.autograd.grad(
        h(task.X_te).square().mean(dim=(1, 2)).sum(), [h.state()["0.weight"]]
    )
    torch.testing.assert_close(step(None), plain)
    torch.testing.assert_close(step(shrink), plain + penalty)


def test_observers_see_every_step_and_the_end_and_change_nothing(
    task: Task, recipe: Recipe
) -> None:
    seen: list[tuple[int, Snapshot]] = []
    watched, plain = learners(recipe), learners(recipe)
    options = {"loss": squared_error, "steps": 5, "lr": 0.05}
    fit(watched, task, observe=lambda *args: seen.append(args), **options)  # type: ignore[arg-type]
    fit(plain, task, **options)  # type: ignore[arg-type]
    assert [step for step, _ in seen] == [0, 1, 2, 3, 4, 5]
    assert not any(s.H_tr.requires_grad or s.H_te.requires_grad for _, s in seen)
    assert torch.equal(seen[0][1].H_te, learners(recipe)(task.X_te))
    assert torch.equal(seen[-1][1].H_te, watched(task.X_te))  # after the last update
    for key, value in plain.state().items():
        assert torch.equal(watched.state()[key], value)


def test_a_diverging_learner_leaves_the_others_alone(task: Task, recipe: Recipe) -> None:
    Y_tr = task.Y_tr.clone()
    Y_tr[2] = 1e200
    broken, whole = learners(recipe), learners(recipe)
    fit(broken, Task(task.X_tr, Y_tr, task.X_te, task.Y_te), loss=squared_error, steps=4, lr=0.05)
    fit(whole, task, loss=squared_error, steps=4, lr=0.05)
    others = [0, 1, 3, 4, 5]
    assert not broken.state()["0.weight"][2].isfinite().all()
    assert torch.equal(broken.state()["0.weight"][others], whole.state()["0.weight"][others])


def test_no_steps_change_nothing(task: Task, recipe: Recipe) -> None:
    h = learners(recipe)
    fit(h, task, loss=squared_error, steps=0, lr=0.05)
    assert torch.equal(h.state()["0.weight"], learners(recipe).state()["0.weight"])


def noisy() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 20), nn.BatchNorm1d(20), nn.Dropout(0.5), nn.Linear(20, 1))


def test_observers_see_learners_without_noise_and_with_fixed_statistics(task: Task) -> None:
    h = stack(noisy, len(task), stream(0, "h"))
    seen: list[Snapshot] = []

    def look(_: int, snapshot: Snapshot) -> None:
        seen.append(snapshot)
        assert torch.equal(snapshot.H_te, evaluate(h, task).H_te)  # twice the same
        assert h.training

    fit(h, task, loss=squared_error, steps=3, lr=0.05, regularizer=shrink, observe=look)
    assert len(seen) == 4
    assert torch.equal(h.eval()(task.X_te), seen[-1].H_te)
    h.train()
    assert not torch.equal(h(task.X_te), h(task.X_te))  # in training there is noise


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = nn.functional.dropout(self.layer(x), training=self.training)
        return out


def test_modes_are_found_and_unknown_modules_count(recipe: Recipe) -> None:
    assert not stack(recipe.make, 2, stream(0, "h")).has_modes
    assert stack(noisy, 2, stream(0, "h")).has_modes
    assert stack(Plain, 2, stream(0, "h")).has_modes


def test_unrolled_learners_are_fitted_learners(task: Task, recipe: Recipe) -> None:
    options = {"loss": squared_error, "steps": 4, "lr": 0.05, "regularizer": shrink}
    fitted, start = learners(recipe), learners(recipe)
    unrolled = unroll(start.placed(), task, **options)  # type: ignore[arg-type]
    fit(fitted, task, **options)  # type: ignore[arg-type]
    for name, value in fitted.state().items():
        torch.testing.assert_close(unrolled.state()[name], value)
    assert torch.equal(start.state()["0.weight"], learners(recipe).state()["0.weight"])


def test_gradients_flow_through_training(task: Task, recipe: Recipe) -> None:
    h = learners(recipe).placed()
    some = task[:2]
    h = h.moved(p[:2].detach().requires_grad_() for p in h.parameters())

    def trained(weight: Tensor, *parameters: Tensor) -> Tensor:
        def penalty(_: object, snapshot: Snapshot) -> Tensor:
            return weight * snapshot.H_te.square().mean(dim=(1, 2))

        end = unroll(
            h.moved(parameters), some, loss=squared_error, steps=3, lr=0.05, regularizer=penalty
        )
        return squared_error(end(some.X_te), some.Y_te).mean(dim=1)

    weight = torch.tensor(0.3, requires_grad=True)
    assert torch.autograd.gradcheck(trained, (weight, *h.parameters()), eps=1e-7, atol=1e-5)


@pytest.mark.parametrize("make", [flat, convolutional])
def test_learners_of_images_trained_together_equal_learners_trained_alone(
    few_shot: FewShot, make: Callable[[], nn.Module]
) -> None:
    task = few_shot.sample(6, stream(0, "x"))
    recipe = Recipe(make=make, loss=cross_entropy, steps=4, lr=0.5)
    for regularizer in (None, shrink):
        together = learners(recipe)
        fit(together, task, loss=cross_entropy, steps=4, lr=0.5, regularizer=regularizer)
        for b in range(len(task)):
            row = slice(b, b + 1)
            alone = learners(recipe, row)
            fit(alone, task[row], loss=cross_entropy, steps=4, lr=0.5, regularizer=regularizer)
            for key, value in alone.state().items():
                torch.testing.assert_close(together.state()[key][row], value)


@pytest.mark.parametrize("make", [flat, convolutional])
def test_learners_of_images_learn_their_labels(
    few_shot: FewShot, make: Callable[[], nn.Module]
) -> None:
    task = few_shot.sample(6, stream(0, "x"))
    h = stack(make, 6, stream(0, "h"))
    fit(h, task, loss=cross_entropy, steps=60, lr=0.05, optimizer=torch.optim.Adam)
    assert zero_one(h(task.X_tr), task.Y_tr).mean() == 0
    assert zero_one(h(task.X_te), task.Y_te).mean() < 0.5  # by chance two in three are wrong
