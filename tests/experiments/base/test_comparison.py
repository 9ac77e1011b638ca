import torch

from neural_complexity.experiments.base.comparison import (
    NONE,
    dropout,
    kept_tasks,
    label,
    losses_at,
    norm,
    oracle,
    sinusoid_recipe,
    train_with,
    variational_dropout,
)
from neural_complexity.learners.fit import Trajectory
from neural_complexity.seeding import stream
from neural_complexity.snapshot import take_snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids


def test_every_method_starts_from_the_same_learners_on_the_same_tasks(task: Task) -> None:
    recipe = sinusoid_recipe(width=6, steps=2)
    methods = [NONE, norm("L2", 1.0), dropout(0.5), variational_dropout(), oracle(recipe, task)]
    trajectories = [train_with(method, recipe, task, seed=3) for method in methods]
    first = trajectories[0]
    for trajectory in trajectories[1:]:
        assert torch.equal(trajectory.loss_te[0], first.loss_te[0])
        assert torch.equal(trajectory.loss_tr[0], first.loss_tr[0])
        assert not torch.equal(trajectory.loss_te[-1], first.loss_te[-1])


def test_labels_say_all_keys_of_a_method() -> None:
    assert label(NONE.keys) == "none"
    assert norm("L2", 10.0).name == "L2 (10)"
    assert label({"method": "NC", "mode": "inductive", "head": "direct"}) == "NC direct, inductive"
    assert (
        label({"method": "early stopping", "points": 3, "step": 4}) == "early stopping (3 points)"
    )


def test_tasks_are_kept_where_no_method_diverged() -> None:
    begin = [1.0, 1.0, 1.0, 1.0, 1.0]
    end = [0.5, 9.0, 30.0, float("nan"), 1.0]
    loss = torch.tensor([begin, end])
    task = Sinusoids().sample(5, stream(0, "x"))
    snapshot = take_snapshot(torch.sin, task)
    result = losses_at(Trajectory(loss, loss, snapshot, loss[1]), [1])
    assert result["loss_te"].shape == (1, 5)
    assert result["diverged"].tolist() == [[False, False, True, True, False]]
    other = {"diverged": torch.tensor([[True, False, False, False, False]])}
    assert kept_tasks([result, other]).tolist() == [False, True, False, False, True]
