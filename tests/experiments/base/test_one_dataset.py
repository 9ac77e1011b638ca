"""What the experiments on one large dataset share."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conftest import FinishedRun
from neural_complexity.experiments.base import trajectories as following
from neural_complexity.experiments.base.one_dataset import World, describe, make_recipe, make_world
from neural_complexity.experiments.base.pieces import Pieces
from neural_complexity.experiments.base.shared_networks import AsksSingle, load_judges, shared_with
from neural_complexity.experiments.base.trajectories import (
    NC_METHODS,
    PLAIN,
    Judge,
    arrange,
    by_size,
    chunks,
    in_chunks,
    learn,
    run_seed,
)
from neural_complexity.experiments.single import Config, paper_resnet, smoke
from neural_complexity.losses import cross_entropy
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.image_datasets import load
from neural_complexity.tasks.splits import Minibatches
from neural_complexity.tasks.store import store


@pytest.fixture(autouse=True)
def single_precision() -> None:
    torch.set_default_dtype(torch.float32)  # as users run it


@pytest.fixture
def world() -> World:
    return make_world(smoke())


@pytest.fixture
def judges(single_run: FinishedRun, world: World) -> dict[str, Judge]:
    config = AsksSingle(**shared_with(smoke()), networks=str(single_run.folder))
    return load_judges(config, world)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """Gives all that learners are shown from here on."""
    shown: list[Task] = []

    class Watched(Minibatches):
        def __call__(self, step: int) -> Task:
            shown.append(super().__call__(step))
            return shown[-1]

    monkeypatch.setattr(following, "Minibatches", Watched)
    return shown


def different(numbers: list[Tensor]) -> Tensor:
    found: Tensor = torch.cat([some.flatten() for some in numbers]).unique()
    return found


def within(some: Tensor, all_of: Tensor) -> bool:
    return bool(torch.isin(some, all_of).all())


def test_images_are_dealt_out_once_and_by_the_seed_alone(world: World) -> None:
    dealt = torch.cat([world.held, world.pool, world.test])
    assert len(dealt.unique()) == len(dealt)
    assert torch.equal(torch.cat([world.held, world.pool]), world.train)
    assert (len(world.held), len(world.train), len(world.test)) == (200, 1437, 120)
    assert world.test.min() >= world.dataset.train > world.train.max()
    assert torch.equal(make_world(replace(smoke(), runs=1, lr=1.0)).held, world.held)
    assert not torch.equal(make_world(replace(smoke(), seed=1)).held, world.held)
    fewer = make_world(replace(smoke(), train_images=300))
    assert torch.equal(fewer.train, world.train[:300])


def test_held_out_splits_are_judged_on_images_that_no_nc_has_seen(world: World) -> None:
    config = replace(smoke(), judged=50, eval_tasks=3)
    for size, (task, judged) in by_size(config, world, [100, 30]).items():
        assert task.X_tr.shape == (3, size)
        assert judged.X_tr.shape == (3, min(size, 50))
        assert all(len(row.unique()) == size for row in task.X_tr)
        assert within(task.X_tr, world.pool)
        for some in (task, judged):
            assert torch.equal(some.X_te, world.held.expand(3, -1))
            assert torch.equal(some.Y_te, world.dataset.labels[some.X_te])
            assert torch.equal(some.Y_tr, world.dataset.labels[some.X_tr])


@pytest.mark.parametrize("method", [PLAIN, *NC_METHODS])
def test_only_transductive_learners_are_shown_test_images(
    method: str, world: World, judges: dict[str, Judge], seen: list[Task]
) -> None:
    config = replace(smoke(), steps=60)
    task, judged, regularizer = arrange(config, world, judges, method, 1)
    assert (regularizer is None) == (method == PLAIN)
    recipe = make_recipe(config, world)
    learn(recipe, config, task, judged, seed=0, regularizer=regularizer)
    assert torch.equal(judged.X_te, world.test[None])  # all are judged on them
    assert within(judged.X_tr, task.X_tr)  # a training loss is one of what was learned from
    learned, unlabelled = different([t.X_tr for t in seen]), different([t.X_te for t in seen])
    if method.endswith(", inductive"):
        assert within(learned, world.pool)  # the held-out labels are not used either
        assert within(unlabelled, world.held)
        assert not torch.isin(torch.cat([learned, unlabelled]), world.test).any()
    else:
        assert within(learned, world.train)
        assert torch.isin(learned, world.held).any()
        assert within(unlabelled, world.test)


def test_test_labels_change_nothing_but_the_scores(world: World, judges: dict[str, Judge]) -> None:
    config = smoke()
    found = []
    for turned in (False, True):
        task, judged, _ = arrange(config, world, judges, PLAIN, 1)
        if turned:
            task, judged = (Task(t.X_tr, t.Y_tr, t.X_te, (t.Y_te + 1) % 10) for t in (task, judged))
        penalty = judges["posterior"].penalty(task, weight=1.0, floor=-0.1)
        recipe = make_recipe(config, world)
        found.append(
            learn(recipe, config, task, judged, seed=0, regularizer=penalty, judges=judges)
        )
    one, other = found
    for name in ("loss_tr", "predicted/posterior", "predicted/direct"):
        assert torch.equal(one[name], other[name])
    assert not torch.equal(one["loss_te"], other["loss_te"])


def test_looks_tell_losses_errors_and_gaps_of_the_same_learners(
    world: World, judges: dict[str, Judge]
) -> None:
    config = smoke()
    task, judged, _ = arrange(config, world, judges, PLAIN, 2)
    found = learn(
        make_recipe(config, world),
        config,
        task,
        judged,
        seed=0,
        judges=judges,
        visits=(0, 7),
        keep=True,
    )
    assert found["step"].tolist() == [0, 7, 20]
    torch.testing.assert_close(found["gap"], found["loss_te"] - found["loss_tr"])
    for look in range(3):
        H_tr, H_te = found["H_tr"][look], found["H_te"][look]
        wrong = (H_te.argmax(dim=-1) != judged.Y_te).float().mean(dim=1)
        torch.testing.assert_close(found["error"][look], wrong)
        loss = cross_entropy(H_tr, judged.Y_tr).mean(dim=1)
        torch.testing.assert_close(found["loss_tr"][look], loss)
        snapshot = Snapshot(judged.X_tr, judged.Y_tr, H_tr, judged.X_te, H_te)
        for head, judge in judges.items():
            own = judge.gaps(judge.known(judged), snapshot)
            torch.testing.assert_close(found[f"predicted/{head}"][look], own)


def test_learners_are_the_same_whatever_is_asked_about_them(
    world: World, judges: dict[str, Judge]
) -> None:
    config = smoke()
    task, judged, _ = arrange(config, world, judges, PLAIN, 2)
    recipe = make_recipe(config, world)
    plain = learn(recipe, config, task, judged, seed=run_seed(config, 0))
    asked = learn(
        recipe, config, task, judged, seed=run_seed(config, 0), judges=judges, visits=range(20)
    )
    assert torch.equal(plain["loss_te"][-1], asked["loss_te"][-1])
    other = learn(recipe, config, task, judged, seed=run_seed(config, 1))
    assert not torch.equal(plain["loss_te"], other["loss_te"])


def residual(config: Config) -> Config:
    return replace(config, learner="ResNet", learner_width=2, learner_blocks=(1,), steps=2, runs=3)


def test_a_reduced_scale_is_said() -> None:
    assert describe(smoke()) == "digits, MLP learner"
    assert describe(paper_resnet()) == "cifar-10, ResNet learner"
    config = replace(paper_resnet(), train_images=6000, learner_width=8, learner_blocks=(1, 1, 1))
    assert describe(config) == (
        "cifar-10 (6,000 training images), ResNet learner of 8 layers, 8 filters"
    )


def test_convolutional_learners_are_trained_one_by_one_and_joined(tmp_path: Path) -> None:
    config = residual(smoke())
    assert chunks(smoke()) == [(0, 2)]
    assert chunks(config) == [(0, 1), (1, 1), (2, 1)]
    asked: list[tuple[int, int]] = []

    def work(first: int, runs: int) -> dict[str, Tensor]:
        asked.append((first, runs))
        return {"step": torch.tensor([0, 2]), "error": torch.full((2, runs), float(first))}

    for _ in range(2):  # the second time from the folder
        found = in_chunks(config, Pieces(3, config, tmp_path, None), "method", work)
        assert found["error"].tolist() == [[0, 1, 2], [0, 1, 2]]
        assert found["step"].tolist() == [0, 2]
    assert asked == chunks(config)


def test_a_residual_network_learns_with_nc(world: World, judges: dict[str, Judge]) -> None:
    config = residual(smoke())
    task, judged, penalty = arrange(config, world, judges, "NC direct, inductive", 1)
    recipe = make_recipe(config, world, dropout=0.1)
    found = learn(recipe, config, task, judged, seed=0, regularizer=penalty, visits=(0,))
    assert found["loss_tr"].isfinite().all()
    assert not torch.equal(found["loss_tr"][0], found["loss_tr"][1])


def test_stored_images_of_ones_own_serve_as_the_dataset(tmp_path: Path) -> None:
    mine = load("digits")
    store(mine, tmp_path / "mine.safetensors")
    config = replace(smoke(), dataset=str(tmp_path / "mine.safetensors"))
    theirs, own = make_world(smoke()), make_world(config)
    assert describe(config) == "mine, MLP learner"
    torch.testing.assert_close(
        own.dataset.look_up(own.train[:9]), theirs.dataset.look_up(theirs.train[:9])
    )
    with pytest.raises(FileNotFoundError, match="must be a stored dataset, got no such file"):
        make_world(replace(config, dataset=str(tmp_path / "none.safetensors")))
