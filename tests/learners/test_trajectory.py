from functools import partial

import pytest
import torch
from torch import Tensor

from neural_complexity.learners import trajectory
from neural_complexity.learners.fit import Recipe
from neural_complexity.learners.networks import mlp
from neural_complexity.learners.trajectory import (
    Trajectory,
    diverged,
    train_learners,
    usable_rows,
)
from neural_complexity.losses import squared_error
from neural_complexity.points import Points, raw
from neural_complexity.regularizers.penalties import oracle_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap
from neural_complexity.task import Task
from neural_complexity.tasks.images import FewShot


def test_losses_gap_and_snapshot_belong_to_the_learner_after_its_last_update(
    task: Task, recipe: Recipe
) -> None:
    learners = train_learners(recipe, task, seed=0)
    assert learners.loss_te.shape == (recipe.steps + 1, len(task))
    loss_te = squared_error(learners.end.H_te, task.Y_te).mean(dim=1)
    torch.testing.assert_close(learners.loss_te[-1], loss_te)
    torch.testing.assert_close(learners.gap, loss_te - learners.loss_tr[-1])
    torch.testing.assert_close(learners.gap, gap(squared_error, learners.end, task.Y_te))


def test_every_method_starts_from_the_same_learners(task: Task, recipe: Recipe) -> None:
    plain = train_learners(recipe, task, seed=0)
    other = train_learners(
        recipe, task, seed=0, penalty=lambda rows: oracle_penalty(squared_error, task.Y_te[rows])
    )
    assert torch.equal(plain.loss_te[0], other.loss_te[0])
    assert other.loss_te[-1].mean() < plain.loss_te[-1].mean()


def test_chunks_get_the_rows_that_are_theirs(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """With learners that all start alike, cutting the tasks into chunks changes nothing."""

    def make() -> torch.nn.Module:
        net = mlp(1, (4,), 1)
        for parameter, value in zip(net.parameters(), (0.3, 0.1, 0.2, 0.1), strict=True):
            torch.nn.init.constant_(parameter, value)
        return net

    seen: list[tuple[slice, int]] = []
    run = partial(
        train_learners,
        Recipe(make=make, steps=3, lr=0.05),
        task,
        seed=0,
        penalty=lambda rows: oracle_penalty(squared_error, task.Y_te[rows]),
        observe=lambda rows, step, _: seen.append((rows, step)),
    )
    whole = run()
    monkeypatch.setattr(trajectory, "CHUNK", 4)
    parts = run()
    torch.testing.assert_close(parts.loss_te, whole.loss_te)
    torch.testing.assert_close(parts.end.H_te, whole.end.H_te)
    assert seen[4:] == [(slice(i, i + 4), step) for i in (0, 4) for step in range(4)]


def test_points_are_learned_as_their_values_are(
    few_shot: FewShot, image_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = few_shot.sample(5, stream(0, "x"))
    monkeypatch.setattr(trajectory, "CHUNK", 3)
    a, b = (train_learners(image_recipe, t, seed=0) for t in (points, points.loaded()))
    assert torch.equal(a.loss_te, b.loss_te)
    assert isinstance(a.end.X_te, Points)  # the store's inputs are not carried along
    assert torch.equal(a.end.X_te.indices, raw(points.X_te))


def test_a_learner_has_diverged_when_its_losses_were_infinite_or_are_ten_times_higher() -> None:
    inf, nan = torch.inf, torch.nan
    losses = torch.tensor(
        [[1.0, 1.0, 1.0, 1.0, 1.0, inf], [0.5, 11.0, 2.0, inf, nan, 1.0], [0.1, 9.0, 10.1, 1, 1, 1]]
    )
    F, T = False, True
    expected = [[F, F, F, F, F, T], [F, T, F, T, T, T], [F, F, T, T, T, T]]
    assert diverged(losses).tolist() == expected


def ended(loss_te: Tensor) -> Trajectory:
    zeros = torch.zeros(len(loss_te), 1, 1)
    losses = torch.stack([torch.ones_like(loss_te), loss_te])
    return Trajectory(losses / 2, losses / 2, Snapshot(*[zeros] * 5), loss_te)


def test_a_task_is_usable_where_no_method_diverged() -> None:
    one, other = ended(torch.tensor([1.0, 20.0, 1.0])), ended(torch.tensor([1.0, 1.0, 2.0]))
    assert usable_rows([one.diverged, other.diverged]).tolist() == [True, False, True]
    assert one[torch.tensor([0, 2])].diverged.tolist() == [False, False]
    with pytest.raises(FloatingPointError, match="must not all diverge, got 1 that did not"):
        usable_rows([torch.tensor([True, True, False])])
