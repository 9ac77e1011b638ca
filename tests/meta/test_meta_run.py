import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from neural_complexity.learners.fit import Recipe
from neural_complexity.learners.networks import mlp
from neural_complexity.losses import cross_entropy, squared_error
from neural_complexity.meta import meta_run
from neural_complexity.meta.collect import Job
from neural_complexity.meta.meta_run import (
    PARTS,
    MetaRun,
    Part,
    Plan,
    TaskList,
    Tasks,
    make_plan,
    make_recipe,
    seconds,
)
from neural_complexity.points import raw
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.tasks.splits import Splits, split_tasks
from neural_complexity.workspace import Workspace

RECIPE = Recipe(make=lambda: mlp(1, (4,), 1), steps=2, lr=0.01)


def test_equal_runs_have_equal_fingerprints_and_others_do_not() -> None:
    def run(seed: int = 0, lr: float = 0.01, width: int = 8) -> str:
        recipe = Recipe(make=RECIPE.make, steps=2, lr=lr)
        return MetaRun(Sinusoids(), recipe, seed, "cpu", {"width": width, "heads": 2}).fingerprint

    assert run() == run()
    assert len({run(), run(seed=1), run(lr=0.02), run(width=16)}) == 4


def test_learners_of_one_shape_and_name_are_told_apart() -> None:
    def run(activation: str) -> str:
        script: dict[str, Any] = {"nn": nn, "Layer": getattr(nn, activation)}
        exec("make = lambda: nn.Sequential(nn.Linear(1, 1), Layer(), nn.Dropout(0.1))", script)
        return MetaRun(Sinusoids(), script["make"], 0, "cpu", {"width": 8, "heads": 2}).fingerprint

    assert run("ReLU") == run("ReLU")
    assert run("ReLU") != run("Tanh")


def test_a_group_of_learners_is_trained_once() -> None:
    run = MetaRun(Sinusoids(), RECIPE, 0, "cpu", {"width": 8, "heads": 2})
    assert run.group("validation", 0) is run.group("validation", 0)
    assert run.group("validation", 0) is not run.group("report", 0)
    meta = run.meta_learner(run.nc, Plan(iterations=1, updates=1), Workspace(None))
    assert meta.training.batch == 32


def test_the_default_network_does_not_mind_units() -> None:
    task = Sinusoids().sample(8, stream(0, "tasks"))
    scaled = Task(1000 * task.X_tr + 5, 100 * task.Y_tr - 3, task.X_te, task.Y_te)
    networks = []
    for each in (task, scaled):
        torch.manual_seed(0)
        recipe = make_recipe(None, each, 1)
        assert recipe.loss is squared_error
        networks.append(recipe.make())
    H, moved = (h(t.X_tr[0]) for h, t in zip(networks, (task, scaled), strict=True))
    torch.testing.assert_close(moved, 100 * H - 3)


def test_labels_are_learned_by_cross_entropy() -> None:
    task = Sinusoids().sample(8, stream(0, "tasks"))
    labels = Task(task.X_tr, (task.Y_tr[..., 0] > 0).long(), task.X_te, task.Y_te)
    assert make_recipe(lambda: nn.Linear(1, 2), labels, 2).loss is cross_entropy


class Branching(nn.Linear):
    def forward(self, X: Tensor) -> Tensor:
        H = super().forward(X)
        return H if H.mean() > 0 else 2 * H


def test_networks_that_decide_by_values_cannot_be_batched() -> None:
    for network, expected in ((nn.Linear, 64), (Branching, 1)):
        run = MetaRun(Sinusoids(), lambda n=network: n(1, 1), 0, "cpu", {"width": 8, "heads": 2})  # type: ignore[misc]
        assert run.together == expected


# Held-out learners.


def make(tasks: Tasks) -> MetaRun:
    return MetaRun(tasks, replace(RECIPE, steps=5), 0, "cpu", {"width": 8, "heads": 2})


def inputs(run: MetaRun, part: Part, index: int = 0) -> tuple[Tensor, Tensor]:
    snapshot, Y_te = run.group(part, index)
    assert snapshot.H_te.shape == Y_te.shape
    assert not snapshot.H_te.requires_grad
    return snapshot.X_tr, snapshot.X_te


def test_no_point_that_nc_is_tested_on_is_ever_learned_from() -> None:
    X = torch.arange(100.0).to(torch.get_default_dtype())[:, None]
    run = make(split_tasks(X, X[:, 0].sin()))
    assert isinstance(run.family, Splits)
    meta = run.meta_learner(run.nc, Plan(iterations=1, updates=1), Workspace(None))
    rows, _ = meta.collections.collector(run.nc, Job(0, 0, 0.5))
    seen = {*raw(rows.X_tr).flatten().tolist(), *raw(rows.X_te).flatten().tolist()}
    tested = set[int]()
    for part in PARTS:
        for index in range(4):
            X_tr, X_te = inputs(run, part, index)
            assert {int(x) for x in X_tr.flatten()} <= set(run.family.pool.tolist())
            tested |= {int(x) for x in X_te.flatten()}
    assert not seen & tested
    assert seen <= set(run.family.pool.tolist())
    assert len(tested) == 30  # all that are held out
    held_out = [run.held_out[part] for part in PARTS]
    assert not torch.isin(*held_out).any()  # type: ignore[arg-type]


def test_nc_is_calibrated_on_points_that_it_learns_from_neither_in_training_nor_in_test() -> None:
    X = torch.arange(100.0).to(torch.get_default_dtype())[:, None]
    run = make(split_tasks(X, X[:, 0].sin()))
    unseen = {int(i) for part in run.held_out.values() for i in part}  # type: ignore[union-attr]
    chosen_by = set(run.held_out["validation"].tolist())  # type: ignore[union-attr]
    tested, trained = set[int](), set[int]()
    for index in range(20):
        X_tr, X_te = inputs(run, "calibration", index)
        for tr, te in zip(X_tr[..., 0].int().tolist(), X_te[..., 0].int().tolist(), strict=True):
            assert not {*tr} & {*te}
            assert len({*tr}) == len(tr) <= run.largest
            trained, tested = trained | {*tr}, tested | {*te}
    assert trained == unseen
    assert tested == unseen - chosen_by


def test_all_learners_to_calibrate_on_are_trained_to_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X = torch.arange(60.0).to(torch.get_default_dtype())[:, None] / 60
    run = make(split_tasks(X, X[:, 0].sin()))
    parts: tuple[Part, Part] = ("calibration", "report")
    first = [run._group(part, 0)[0].H_tr for part in parts]
    monkeypatch.setattr(meta_run, "FINISHED", 1)
    assert torch.equal(first[0], run._group(parts[0], 0)[0].H_tr)
    assert not torch.equal(first[1], run._group(parts[1], 0)[0].H_tr)


def test_learners_have_no_more_training_points_than_was_asked_for() -> None:
    X = torch.arange(200.0).to(torch.get_default_dtype())[:, None]
    y = X[:, 0].sin()
    asked, whole = make(split_tasks(X, y, train=20, test=8)), make(split_tasks(X, y))
    assert isinstance(asked.family, Splits)
    assert isinstance(whole.family, Splits)
    assert (asked.family.train, asked.family.test) == (20, 8)
    sizes = {inputs(asked, "report", index)[0].shape[1] for index in range(20)}
    assert max(sizes) <= 20
    assert (whole.family.train, whole.family.test) == (105, 35)  # shares of what NC may know
    assert whole.largest == 140


def test_held_out_learners_depend_on_part_and_index_alone() -> None:
    run = make(Sinusoids())
    first = inputs(run, "report")[0]
    assert torch.equal(first, inputs(make(Sinusoids()), "report")[0])
    assert not torch.equal(first, inputs(run, "report", 1)[0])
    assert not torch.equal(first, inputs(run, "validation")[0])


def test_a_list_of_tasks_is_gone_through_before_one_comes_again() -> None:
    task = Sinusoids().sample(5, stream(0, "tasks"))
    drawn = TaskList(task).sample(7, stream(0, "draw"))
    assert len(drawn) == 7
    assert drawn.X_tr[:5].flatten(1).unique(dim=0).shape[0] == 5


# Plans.


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", 90), ("10min", 600), (" 1.5 h ", 5400), ("2m", 120), (45, 45), (0.5, 0.5)],
)
def test_times_are_read(text: str | float, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("wrong", ["10", "", "min", "-3s", "0s", "5 apples", "1e9h", 0, -1.0, True])
def test_what_is_no_time_is_refused(wrong: str | float) -> None:
    with pytest.raises(ValueError, match="budget must be a positive time such as"):
        seconds(wrong)


def test_infinity_and_nan_are_no_times() -> None:
    for wrong in (float("inf"), float("nan")):
        with pytest.raises(ValueError, match="budget must be"):
            seconds(wrong)


duration = st.floats(1e-4, 10)


@given(st.floats(60, 1e5), duration, duration, duration)
def test_a_plan_stays_within_the_budget_unless_that_is_too_small_for_anything(
    budget: float, collecting: float, updating: float, learner: float
) -> None:
    costs = {"collecting": collecting, "updating": updating, "learner": learner}
    plan = make_plan(budget, **costs, most_updates=math.inf)
    training = plan.iterations * (collecting + plan.updates * updating)
    held_out = (plan.learners + plan.chosen_by) * learner
    if plan.iterations > 2:
        assert training < 0.8 * budget
    assert held_out < 0.3 * budget + 4 * learner  # two of each kind, however short it is


def test_an_empty_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="updates must be at least 1, got 0"):
        Plan(iterations=1, updates=0)
