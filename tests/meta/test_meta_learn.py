from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neural_complexity.files import read_json
from neural_complexity.learners.fit import Recipe
from neural_complexity.learners.networks import image_mlp, mlp
from neural_complexity.locks import LOCK
from neural_complexity.losses import cross_entropy
from neural_complexity.meta import meta_run
from neural_complexity.meta.executor import ProcessPool
from neural_complexity.meta.meta_learn import meta_learn
from neural_complexity.meta.meta_run import Plan
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.tasks.splits import Splits, split_tasks

PLAN = Plan(iterations=4, updates=2, learners=20, chosen_by=8)
SMALL: dict[str, Any] = {"width": 8, "heads": 2, "progress": False}

# Tiny NCs are no good, and say so.
pytestmark = pytest.mark.filterwarnings("ignore:NC c")


def blobs(names: tuple[Any, ...] = (0, 1, 2), P: int = 90) -> Splits:
    random = np.random.default_rng(0)
    y = np.arange(P) % len(names)
    X = random.normal(size=(P, 2)) + 3 * np.eye(len(names), 2)[y]
    return split_tasks(X, np.array(names)[y])


def recipe(**changes: Any) -> Recipe:
    fields: dict[str, Any] = {"loss": cross_entropy, "steps": 8, "lr": 0.1}
    return Recipe(**({"make": lambda: mlp(2, (4,), 3)} | fields | changes))


def assert_same(a: NeuralComplexity, b: NeuralComplexity) -> None:
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0, msg=name)
    assert a.provenance["report"] == b.provenance["report"]
    assert a.provenance["scores"] == b.provenance["scores"]


def test_a_plan_gives_the_same_nc_however_often_it_is_interrupted(
    tmp_path: Path,
) -> None:
    whole = meta_learn(blobs(), recipe(), PLAN, **SMALL)

    def interrupt(stop: int, stage: str, done: int, *_: object) -> None:
        if stage == "NC" and done == stop:
            raise KeyboardInterrupt

    for stop in (1, 3):
        options = {**SMALL, "progress": partial(interrupt, stop)}
        with pytest.raises(KeyboardInterrupt):
            meta_learn(blobs(), recipe(), PLAN, folder=tmp_path, **options)
    resumed = meta_learn(blobs(), recipe(), PLAN, folder=tmp_path, **SMALL)
    assert_same(whole, resumed)
    assert resumed.calibration is not None
    again = meta_learn(blobs(), recipe(), PLAN, folder=tmp_path, **SMALL)  # nothing left to do
    assert_same(whole, again)
    assert again.calibration is not None
    with pytest.raises(ValueError, match="must be of the same settings, got"):
        meta_learn(blobs(), recipe(), PLAN, folder=tmp_path, seed=1, **SMALL)
    assert not again.training


def test_a_folder_is_used_by_one_call_at_a_time_and_left_with_the_result_alone(
    tmp_path: Path,
) -> None:
    few = Plan(iterations=2, updates=1, learners=10, chosen_by=2)

    def again(*_: object) -> None:  # while the first call is at work
        with pytest.raises(BlockingIOError, match="must be used by one run at a time, got another"):
            meta_learn(blobs(), recipe(), few, folder=tmp_path, **SMALL)

    meta_learn(blobs(), recipe(), few, folder=tmp_path, **{**SMALL, "progress": again})
    left = {"nc.safetensors", "plan.safetensors", "report.json"}
    assert {path.name for path in tmp_path.iterdir()} == left
    # Killed as soon as NC was saved, the rest is done by the next call.
    (tmp_path / "report.json").unlink()
    (tmp_path / "training").mkdir()
    (tmp_path / LOCK).touch()
    nc = meta_learn(blobs(), recipe(), few, folder=tmp_path, **SMALL)
    assert {path.name for path in tmp_path.iterdir()} == left
    assert read_json(tmp_path / "report.json") == nc.provenance["report"]


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("make", [blobs, Sinusoids])
def test_an_executor_changes_nothing(
    make: Callable[[], Splits | Sinusoids], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = make()
    monkeypatch.setattr(meta_run, "STEPS", 10)
    plan, threads = replace(PLAN, iterations=3, learners=8, lag=1), torch.get_num_threads()
    torch.set_num_threads(1)  # as many as a worker has: other sums differ in their last bits
    with ProcessPool() as pool:
        apart = meta_learn(tasks, None, plan, executor=pool, **SMALL)
    assert_same(apart, meta_learn(tasks, None, plan, **SMALL))
    torch.set_num_threads(threads)


class Sines:
    """A family of somebody's own, without a name of its own."""

    def sample(self, batch: int, generator: torch.Generator) -> Task:
        return Sinusoids(train_points=4).sample(batch, generator)


def test_only_the_same_work_is_gone_on_with(tmp_path: Path) -> None:
    plan = Plan(iterations=2, updates=1, learners=10, chosen_by=1)
    fields: dict[str, Any] = {"make": lambda: mlp(1, (2,), 1), "steps": 2}

    def go_on(
        tasks: Any, folder: str, budget: Plan | str = plan, **changes: Any
    ) -> NeuralComplexity:
        own = Recipe(**(fields | changes))
        return meta_learn(tasks, own, budget, folder=tmp_path / folder, **SMALL)

    assert_same(go_on(Sines(), "family"), go_on(Sines(), "family"))
    whole = Sinusoids(train_points=50).sample(40, stream(0, "tasks"))
    go_on(whole, "list")
    Y_tr = whole.Y_tr.clone()
    Y_tr[:, 25] += 1  # which the text of a tensor leaves out
    sentence = "must be of the same settings, got"
    with pytest.raises(ValueError, match=sentence):
        go_on(Task(whole.X_tr, Y_tr, whole.X_te, whole.Y_te), "list")
    with pytest.raises(ValueError, match=sentence):
        go_on(whole, "list", optimizer=torch.optim.Adam)
    with pytest.raises(ValueError, match=sentence):  # a loss needs no name to be somebody's own
        go_on(whole, "list", loss=lambda H, Y: (H - Y).abs().mean(dim=-1))
    assert_same(go_on(whole, "list"), go_on(whole, "list", "1min"))
    for left in ("nc.safetensors", "plan.safetensors"):  # what is finished, and what was begun
        with pytest.raises(
            ValueError, match="budget must be the plan that .* was begun with, Plan"
        ):
            go_on(whole, "list", replace(plan, updates=2))
        (tmp_path / "list" / left).unlink()


def test_a_budget_becomes_a_plan_that_is_kept(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="A budget of 0 s has time for 4 finished learners .* 19"):
        nc = meta_learn(blobs(), recipe(), "0.005s", folder=tmp_path, **SMALL)
    plan = nc.provenance["plan"]
    assert (tmp_path / "plan.safetensors").exists()
    assert Plan(**plan).iterations >= 2
    assert nc.provenance["report"]["learners"] == 8  # as many as run at once


def test_the_names_of_classes_are_remembered() -> None:
    nc = meta_learn(blobs(("bird", "cat", "dog")), recipe(), PLAN, **SMALL)
    assert nc.provenance["classes"] == ["bird", "cat", "dog"]
    assert nc.provenance["belief_loss"] > 0  # on points of the dataset that it did not learn from
    assert nc.outputs == 3


class Branching(nn.Module):
    """Does what cannot be batched: decides by a value."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, X: Tensor) -> Tensor:
        H: Tensor = self.layer(X)
        return H if H.mean() > 0 else 2 * H


def test_learners_that_cannot_be_batched_run_one_by_one() -> None:
    few = Plan(iterations=2, updates=1, learners=3, chosen_by=2)
    nc = meta_learn(blobs(), recipe(make=Branching), few, **SMALL)
    assert nc.provenance["report"]["learners"] == 3
    assert "too few" in nc.provenance["report"]["verdict"]


def test_families_and_lists_of_tasks_of_real_targets_are_learned_from() -> None:
    few = Plan(iterations=2, updates=1, learners=16, chosen_by=2)
    regression = Recipe(make=lambda: mlp(1, (4,), 1), steps=3, lr=0.01)
    nc = meta_learn(Sinusoids(), regression, few, **SMALL)
    assert nc.provenance["report"]["learners"] >= 16
    assert "belief_loss" not in nc.provenance  # every task is new to it
    listed = Sinusoids().sample(20, stream(0, "tasks"))
    nc = meta_learn(listed, regression, few, **SMALL)
    # One learner for each of the held-out tasks: more of them would not be independent.
    assert nc.provenance["report"]["learners"] == 4
    assert not nc.labels


def test_images_get_an_encoder_of_their_size() -> None:
    random = np.random.default_rng(0)
    tasks = split_tasks(random.random((40, 1, 5, 6)), np.arange(40) % 2)
    few = Plan(iterations=1, updates=1, learners=8, chosen_by=8)
    quick = recipe(make=lambda: image_mlp((1, 5, 6), (4,), 2), steps=2)
    nc = meta_learn(tasks, quick, few, channels=4, **SMALL)
    assert nc.architecture.inputs == (1, 5, 6)


@pytest.mark.parametrize(
    ("learner", "error", "sentence"),
    [
        (lambda: mlp(2, (4,), 5), ValueError, r"learner must map inputs \(2, 2\) to predictions"),
        (lambda: mlp(7, (4,), 3), ValueError, r"predictions \(2, 3\), got RuntimeError: mat1 and"),
        (lambda: nn.LSTM(2, 3), ValueError, r"to predictions \(2, 3\), got tuple"),
        (lambda: 3, TypeError, "learner must build a torch.nn.Module when called, got int"),
        (mlp(2, (4,), 3), TypeError, "learner must build a network when called, not be one"),
    ],
)
def test_learners_that_do_not_fit_are_refused(
    learner: Any, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        meta_learn(blobs(), learner, PLAN, **SMALL)


def test_what_is_no_task_or_time_is_refused() -> None:
    import pandas

    frame = pandas.DataFrame({"a": [1.0, 2.0]})
    with pytest.raises(TypeError, match="tasks must be made by split_tasks, be a family"):
        meta_learn([1, 2], None, PLAN)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tasks must be made by split_tasks, .* got DataFrame"):
        meta_learn(frame, None, PLAN)
    with pytest.raises(ValueError, match="tasks must be at least 10"):
        meta_learn(Sinusoids().sample(5, stream(0, "tasks")), None, PLAN)
    with pytest.raises(ValueError, match="budget must be a positive time"):
        meta_learn(blobs(), None, "soon")


def test_a_useless_nc_says_so() -> None:
    random = np.random.default_rng(0)
    noise = split_tasks(random.normal(size=(60, 2)), np.arange(60) % 2)
    with pytest.warns(UserWarning, match="NC cannot beat predicting the mean gap"):
        meta_learn(noise, recipe(make=lambda: mlp(2, (4,), 2)), PLAN, **SMALL)
