from dataclasses import replace

import pytest
import torch
from torch import Tensor

from neural_complexity.experiments.base import image_learners
from neural_complexity.experiments.base.image_comparison import (
    METHODS,
    WholeDataset,
    accuracy_table,
    train_cnn,
    tune,
)
from neural_complexity.experiments.base.image_learners import (
    DISTILLED,
    EARLY,
    NC_METHODS,
    PLAIN,
    EmbeddedNC,
    ImageMethod,
    Runs,
    run_trial,
)
from neural_complexity.experiments.base.one_dataset import ImageData, load_data
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.single_networks import (
    SingleNetworksConfig,
    load_ncs,
    shared_with,
)
from neural_complexity.experiments.base.training import Head
from neural_complexity.experiments.single import PRESETS
from neural_complexity.points import raw
from neural_complexity.task import Task
from neural_complexity.tasks.splits import Minibatches
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


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """Returns all that learners see from here on."""
    shown: list[Task] = []

    class Watched(Minibatches):
        def __call__(self, step: int) -> Task:
            shown.append(super().__call__(step))
            return shown[-1]

    monkeypatch.setattr(image_learners, "Minibatches", Watched)
    return shown


def distinct(points: list[Tensor]) -> Tensor:
    found: Tensor = torch.cat([raw(some).flatten() for some in points]).unique()
    return found


def within(some: Tensor, all_of: Tensor) -> bool:
    return bool(torch.isin(some, all_of).all())


@pytest.mark.parametrize("method", [PLAIN, EARLY, DISTILLED, *NC_METHODS], ids=lambda m: m.label)
def test_only_transductive_learners_see_test_images(
    method: ImageMethod, data: ImageData, ncs: dict[Head, EmbeddedNC], seen: list[Task]
) -> None:
    longer = replace(data.recipe(), steps=60)
    learners = WholeDataset(data, ncs, {method: longer}, torch.zeros(120, 10))
    trial = learners.trial(method, Runs(0, 1))
    assert (trial.regularizer is None) == (method in (PLAIN, EARLY))
    run_trial(trial)
    assert torch.equal(raw(trial.evaluation.X_te), data.test[None])  # all are evaluated on them
    assert within(raw(trial.evaluation.X_tr), raw(trial.task.X_tr))  # which were learned from
    learned, unlabelled = distinct([t.X_tr for t in seen]), distinct([t.X_te for t in seen])
    if method.mode == "inductive" or method == EARLY:
        assert within(learned, data.pool)  # the held-out labels are not used either
        assert within(unlabelled, data.held)
        assert not torch.isin(torch.cat([learned, unlabelled]), data.test).any()
    else:
        assert within(learned, data.train)
        assert torch.isin(learned, data.held).any()
        assert within(unlabelled, data.test)


def test_strengths_are_tuned_without_test_images(data: ImageData, seen: list[Task]) -> None:
    found = tune(data, "l2", 0.1)
    assert within(distinct([t.X_tr for t in seen]), data.pool)
    assert within(distinct([t.X_te for t in seen]), data.held)
    # Other test images change nothing.
    again = tune(replace(data, test=data.test.flip(0)[:7]), "l2", 0.1)
    assert torch.equal(found["error"], again["error"])


def test_the_cnn_learns_from_training_images_alone(
    data: ImageData, ncs: dict[Head, EmbeddedNC]
) -> None:
    sizes = (ncs["posterior"].nc.architecture, 3, 32)
    one, other = (
        train_cnn(replace(data, test=test), *sizes, None) for test in (data.test, data.test.flip(0))
    )
    assert one.shape == (120, 10)
    torch.testing.assert_close(one, other.flip(0))


def test_every_line_of_nc_says_on_which_images_it_judges() -> None:
    for method in METHODS:
        assert (method.mode is not None) == (method.head is not None or method == DISTILLED)


def test_the_verdict_follows_the_numbers(smoke_runs: SmokeRuns) -> None:
    rows, ours = smoke_runs("single").outcome.rows, NC_METHODS[0]

    def change(row: Row, accuracy: float, ci95: float | None) -> Row:
        if row.metric != "accuracy" or "learner" not in row.keys:
            return row
        if ImageMethod.of(row) == ours:
            return replace(row, value=accuracy, ci95=ci95)
        return replace(row, value=50.0, ci95=1.0)

    def verdict(accuracy: float, ci95: float | None) -> str:
        return accuracy_table([change(row, accuracy, ci95) for row in rows]).note

    baselines = "cross-entropy, L2, label smoothing, mixup, dropout, SAM and early stopping"
    good, bad, unclear = verdict(60.0, 1.0), verdict(40.0, 1.0), verdict(51.5, 1.0)
    name = ours.label
    assert f"{name}: not to be told apart from {baselines}." in verdict(60.0, None)  # of one run
    assert f"{name}: beyond the intervals better than {baselines}." in good
    assert f"{name}, beats the learner distilled from the CNN (60.00 ± 1.00" in good
    assert f"{name}: beyond the intervals worse than {baselines}." in bad
    assert f"{name}, does not beat the learner distilled from the CNN, but is worse (40" in bad
    assert f"{name}: not to be told apart from {baselines}." in unclear
    assert f"{name}, does not beat the learner distilled from the CNN: the inter" in unclear
