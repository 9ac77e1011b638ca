import pytest
import torch

from neural_complexity.experiments.base.image_methods import (
    BASELINES,
    NC_METHODS,
    PLAIN,
    EmbeddedNC,
    ImageMethod,
    baseline_recipe,
)
from neural_complexity.experiments.base.one_dataset import ImageData, load_data
from neural_complexity.experiments.base.rows import make_row
from neural_complexity.experiments.base.single_networks import (
    SingleNetworksConfig,
    load_ncs,
    shared_with,
)
from neural_complexity.experiments.base.training import Head
from neural_complexity.experiments.single import PRESETS
from neural_complexity.meta.scores import Estimate
from neural_complexity.points import raw
from smoke_runs import SmokeRuns

smoke = PRESETS["smoke"]


@pytest.fixture(autouse=True)
def single_precision() -> None:
    torch.set_default_dtype(torch.float32)  # as users run it


@pytest.fixture
def data() -> ImageData:
    return load_data(smoke())


@pytest.fixture
def ncs(smoke_runs: SmokeRuns, data: ImageData) -> dict[Head, EmbeddedNC]:
    folder = str(smoke_runs("single").folder)
    return load_ncs(SingleNetworksConfig(**shared_with(smoke()), networks=folder), data)


def test_a_method_survives_its_row_and_every_label_is_its_own() -> None:
    methods = [PLAIN, *NC_METHODS, *BASELINES.values(), ImageMethod("cross-entropy", times=2)]
    for method in methods:
        row = make_row("any", 0, "accuracy", Estimate(1.0, None, 1), **method.keys, step=3)
        assert ImageMethod.of(row) == method
    labels = [method.label for method in methods]
    assert len(set(labels)) == len(labels)
    assert labels[1] == "NC posterior, transductive"
    assert labels[-1] == "cross-entropy (2x capacity)"


def test_each_baseline_changes_the_recipe_by_its_strength(data: ImageData) -> None:
    changed = {name: baseline_recipe(data, name, 0.25) for name in BASELINES}
    assert changed["l2"].optimizer.keywords["weight_decay"] == 0.25  # type: ignore[attr-defined]
    assert changed["smoothing"].loss.smoothing == 0.25  # type: ignore[attr-defined]
    assert changed["mixup"].objective is not None
    assert "p=0.25" in str(changed["dropout"].make())
    assert changed["sam"].sharpness == 0.25
    with pytest.raises(ValueError, match="name must be one of l2, .*, got none"):
        baseline_recipe(data, "none", 0.25)


def test_beliefs_are_about_the_tasks_own_test_points(
    data: ImageData, ncs: dict[Head, EmbeddedNC]
) -> None:
    task = data.task(data.train, data.test)
    beliefs = ncs["posterior"].beliefs(task)
    assert beliefs.shape == (1, 120, 10)
    flipped = data.task(data.train, data.test.flip(0))
    torch.testing.assert_close(ncs["posterior"].beliefs(flipped), beliefs.flip(1))


def test_embeddings_of_tasks_are_those_of_all_images(
    data: ImageData, ncs: dict[Head, EmbeddedNC]
) -> None:
    task = data.task(data.train[:80], data.test)
    for head, nc in ncs.items():
        few = EmbeddedNC.of(nc.nc, data, tasks=[task])
        size = {"posterior": smoke().shown, "direct": 80}[head]  # training points that it sees
        assert len(few.embeddings.indices) == size + 120
        every = nc.embeddings(raw(task.X_te))
        torch.testing.assert_close(few.embeddings(raw(task.X_te)), every)
