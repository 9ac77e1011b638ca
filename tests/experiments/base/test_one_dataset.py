from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from neural_complexity.experiments.base import training
from neural_complexity.experiments.base.image_learners import BASELINES
from neural_complexity.experiments.base.one_dataset import (
    Choice,
    EmbeddedNC,
    ImageData,
    augmented,
    load_data,
)
from neural_complexity.experiments.base.training import Head
from neural_complexity.experiments.single import PRESETS
from neural_complexity.meta.executor import ProcessPool
from neural_complexity.points import raw, values
from neural_complexity.seeding import stream
from neural_complexity.tasks.image_datasets import load
from neural_complexity.tasks.images import write_store

pytestmark = pytest.mark.usefixtures("single_precision")

smoke = PRESETS["smoke"]


def test_images_are_divided_once_and_by_the_seed_alone(data: ImageData) -> None:
    parts = torch.cat([data.held, data.pool, data.test])
    assert len(parts.unique()) == len(parts)
    assert torch.equal(torch.cat([data.held, data.pool]), data.train)
    assert (len(data.held), len(data.train), len(data.test)) == (200, 1437, 120)
    assert data.test.min() >= data.dataset.train > data.train.max()
    assert torch.equal(load_data(replace(smoke(), runs=1, lr=1.0)).held, data.held)
    assert not torch.equal(load_data(replace(smoke(), seed=1)).held, data.held)
    fewer = load_data(replace(smoke(), train_images=300))
    assert torch.equal(fewer.train, data.train[:300])


def test_tasks_hold_the_images_of_their_indices(data: ImageData) -> None:
    task = data.task(data.train[:5], data.test[:3], copies=2)
    assert task.X_tr.shape == (2, 5)
    torch.testing.assert_close(values(task.X_te)[1], data.dataset(data.test[:3]))
    assert torch.equal(task.Y_te[0], data.dataset.labels[data.test[:3]])


def test_each_baseline_changes_the_recipe_by_its_strength(data: ImageData) -> None:
    changed = {name: data.recipe(name, Choice(0.25)) for name in BASELINES}
    assert changed["l2"].optimizer.keywords["weight_decay"] == 0.25  # type: ignore[attr-defined]
    assert changed["smoothing"].loss.keywords["smoothing"] == 0.25  # type: ignore[attr-defined]
    assert changed["mixup"].objective is not None
    assert "p=0.25" in str(changed["dropout"].make())
    assert changed["sam"].sharpness == 0.25


def test_a_choice_changes_rate_and_images(data: ImageData) -> None:
    plain, own = data.recipe(), data.recipe("", Choice(rate=2.0, augment=True))
    assert own.lr == 2 * plain.lr
    assert plain.augment is None
    assert own.augment is not None
    X = data.dataset(data.train[:6]).unflatten(0, (2, 3))
    torch.manual_seed(0)
    moved = own.augment(X)
    assert moved.shape == X.shape
    assert not torch.equal(moved, X)
    assert torch.equal(augmented(0, False, X), X)


def test_subsets_are_drawn_without_repetition(data: ImageData) -> None:
    cut = replace(data, config=replace(smoke(), judged=50))
    task, evaluation = cut.subsets(data.pool, data.held, 100, 3, stream(0, "subsets"))
    assert task.X_tr.shape == (3, 100)
    assert torch.equal(raw(evaluation.X_tr), raw(task.X_tr)[:, :50])
    assert all(len(row.unique()) == 100 for row in raw(task.X_tr))
    assert torch.isin(raw(task.X_tr), data.pool).all()
    for some in (task, evaluation):
        assert torch.equal(raw(some.X_te), data.held.expand(3, -1))
        assert torch.equal(some.Y_te, data.dataset.labels[raw(some.X_te)])
        assert torch.equal(some.Y_tr, data.dataset.labels[raw(some.X_tr)])


def test_embeddings_of_tasks_are_those_of_all_images(
    data: ImageData, ncs: dict[Head, EmbeddedNC]
) -> None:
    task = data.task(data.train[:80], data.test)
    for head, nc in ncs.items():
        few = EmbeddedNC(nc.nc, data, None, task)
        size = {"posterior": smoke().shown, "direct": 80}[head]  # training points that it sees
        assert len(few.embeddings.indices) == size + 120
        every = nc.embeddings(raw(task.X_te))
        torch.testing.assert_close(few.embeddings(raw(task.X_te)), every)


def test_learners_run_here_in_processes_or_on_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "connect", nullcontext)
    with replace(smoke(), workers=0).open_executor() as executor:
        assert executor is None
    with replace(smoke(), workers=1).open_executor() as executor:
        assert isinstance(executor, ProcessPool)
    with replace(smoke(), executor="tcp://host:8786").open_executor() as executor:
        assert str(executor) == "tcp://host:8786"


def test_nc_is_trained_on_splits_of_the_pool_alone(data: ImageData) -> None:
    for head in ("posterior", "direct"):
        assert torch.equal(data.splits(head).pool, data.pool)


def test_a_reduced_scale_is_said() -> None:
    assert smoke().keys == {"dataset": "digits", "learner": "MLP"}
    config = PRESETS["paper-resnet"]()
    assert config.keys == {"dataset": "cifar-10", "learner": "ResNet"}
    config = replace(config, train_images=6000, learner_width=8, learner_blocks=(1, 1, 1))
    small = {"train_images": 6000, "learner": "ResNet of 8 layers, 8 filters"}
    assert config.keys == {"dataset": "cifar-10", **small}


def test_stored_images_of_ones_own_serve_as_the_dataset(tmp_path: Path) -> None:
    one = load("digits")
    parts, path = [(one.images.pixels, one.labels)], tmp_path / "mine.safetensors"
    write_store(path, one.name, one.images.pixels.shape, one.train, parts)
    config = replace(smoke(), dataset=str(tmp_path / "mine.safetensors"))
    theirs, own = load_data(smoke()), load_data(config)
    assert config.keys["dataset"] == "mine"
    torch.testing.assert_close(own.dataset(own.train[:9]), theirs.dataset(theirs.train[:9]))
    with pytest.raises(FileNotFoundError, match="must be a stored dataset, got no such file"):
        load_data(replace(config, dataset=str(tmp_path / "none.safetensors")))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"dataset": "imagenet"}, "dataset must be one of digits, mnist,.*, got imagenet"),
        ({"weight": -1.0}, "weight must be at least 0, got -1.0"),
        ({"ramp": 2.0}, "ramp must be from 0 to 1, got 2.0"),
        ({"lr": 0.0}, "lr must be positive, got 0.0"),
        ({"momentum": 1.0}, "momentum must be from 0 to below 1, got 1.0"),
        ({"held": 0}, "held must be at least 1, got 0"),
        ({"looks": 1}, "looks must be at least 2, got 1"),
        ({"workers": -1}, "workers must be at least 0, got -1"),
        ({"learner": "CNN"}, "learner must be MLP or ResNet, got CNN"),
        ({"device": "abacus"}, "device must be one that works here, got abacus"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(smoke(), **change)  # type: ignore[arg-type]


def test_impossible_trainings_are_refused() -> None:
    with pytest.raises(ValueError, match="smallest must be at least 1, got 0"):
        replace(smoke().posterior, smallest=0)
    with pytest.raises(ValueError, match="shift must be at least 0, got -1"):
        replace(smoke().posterior, shift=-1)
