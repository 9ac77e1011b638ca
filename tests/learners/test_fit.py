import torch
from torch import Tensor

from neural_complexity.learners.batched import BatchedLearner, stack
from neural_complexity.learners.fit import fit
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import squared_error
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task


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
