from functools import partial

import torch
from torch import Tensor

from neural_complexity.experiments.base.comparison import (
    Method,
    dropout,
    kept_tasks,
    losses_at,
    norm,
    oracle,
    sinusoid_recipe,
    train_with,
    variational_dropout,
)
from neural_complexity.experiments.regularizers import STEPS, Config, _stop_early
from neural_complexity.meta.evaluate import Trajectory
from neural_complexity.seeding import stream
from neural_complexity.snapshot import take_snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.sinusoids import Sinusoids


def test_every_method_starts_from_the_same_learners_on_the_same_tasks(task: Task) -> None:
    recipe = sinusoid_recipe(width=6, steps=2)
    methods = [Method("none"), norm("L2", 1.0), dropout(0.5), variational_dropout()]
    methods.append(oracle(recipe, task))
    trajectories = [train_with(method, recipe, task, seed=3) for method in methods]
    first = trajectories[0]
    for trajectory in trajectories[1:]:
        assert torch.equal(trajectory.loss_te[0], first.loss_te[0])
        assert torch.equal(trajectory.loss_tr[0], first.loss_tr[0])
        assert not torch.equal(trajectory.loss_te[-1], first.loss_te[-1])


def test_a_learner_diverges_when_its_losses_end_ten_times_above_where_they_began() -> None:
    begin = [1.0, 1.0, 1.0, 1.0]
    end = [0.5, 9.0, 30.0, float("nan")]
    loss = torch.tensor([begin, end])
    task = Sinusoids().sample(4, stream(0, "x"))
    snapshot = take_snapshot(torch.sin, task)
    result = losses_at(Trajectory(loss, loss, snapshot, loss[1]), [1])
    assert result["diverged"].tolist() == [[False, False, True, True]]
    other = {"diverged": torch.tensor([[True, False, False, False]])}
    assert kept_tasks([result, other]).tolist() == [False, True, False, False]


def test_early_stopping_goes_back_to_where_the_held_out_points_were_fitted_best() -> None:
    task = Sinusoids().sample(32, stream(0, "x"))
    recipe = sinusoid_recipe(steps=max(STEPS))
    result = _stop_early(Config(held_out_points=4), recipe, task)
    plain = train_with(
        Method("none"),
        recipe,
        Task(task.X_tr[:, :6], task.Y_tr[:, :6], task.X_te, task.Y_te),
        seed=0,
    )
    judge = train_with(
        Method("none"),
        recipe,
        Task(task.X_tr[:, :6], task.Y_tr[:, :6], task.X_tr[:, 6:], task.Y_tr[:, 6:]),
        seed=0,
    )
    for row, step in enumerate(STEPS):
        for b in range(32):
            best = min(range(step + 1), key=partial(_at, judge.loss_te, b))
            assert result["loss_te"][row, b] == plain.loss_te[best, b]


def _at(losses: Tensor, b: int, step: int) -> float:
    return losses[step, b].item()
