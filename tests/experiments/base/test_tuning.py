from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from neural_complexity.experiments.base import image_learners, tuning
from neural_complexity.experiments.base.experiment import Parts
from neural_complexity.experiments.base.image_learners import BASELINES, TUNED, Trial
from neural_complexity.experiments.base.one_dataset import Choice, ImageData
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.tuning import (
    best,
    beyond,
    choose,
    least_parts,
    tune,
    tuning_rows,
    tuning_table,
)
from neural_complexity.experiments.single import PRESETS
from neural_complexity.points import raw
from neural_complexity.workspace import Workspace

pytestmark = pytest.mark.usefixtures("single_precision")

smoke = PRESETS["smoke"]


@given(
    grid=st.lists(st.floats(1e-3, 0.9), min_size=2, max_size=6, unique=True).map(sorted),
    data=st.data(),
)
def test_a_grid_grows_beyond_the_end_at_which_its_best_is(
    grid: list[float], data: st.DataObject
) -> None:
    at = data.draw(st.sampled_from(grid))
    further = beyond(grid, at, 1.0)
    if at == grid[0]:
        assert further is not None
        assert 0 < further <= grid[0] * 1.01
    elif at == grid[-1]:
        assert further is not None
        assert grid[-1] * 0.99 <= further < 1
    else:
        assert further is None
    assert beyond(grid[:1], grid[0], 1.0) is None


def test_a_geometric_grid_goes_on_as_it_is() -> None:
    assert beyond([0.001, 0.01, 0.1], 0.1, float("inf")) == 1.0
    assert beyond([0.001, 0.01, 0.1], 0.001, float("inf")) == 0.0001
    assert beyond([0.1, 0.4, 0.8], 0.8, 1.0) == 0.9  # a share


def watch(monkeypatch: pytest.MonkeyPatch, error: dict[Choice, float]) -> list[Choice]:
    """Replaces training by known errors; returns what was asked for."""
    asked: list[Choice] = []

    def pretend(data: ImageData, name: str, choice: Choice) -> dict[str, Tensor]:
        asked.append(choice)
        return {"error": torch.full((1, 2), error.get(choice, 0.5))}

    monkeypatch.setattr(tuning, "tune", pretend)
    return asked


def test_strength_then_rate_then_augmentation_are_chosen(
    data: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = (0.01, 0.1, 1.0)
    data = replace(data, config=replace(smoke(), l2=grid, rates=(0.5, 2.0), widen=2))
    good, faster = Choice(0.1), Choice(0.1, 2.0)
    asked = watch(monkeypatch, {good: 0.3, faster: 0.2, faster._replace(augment=True): 0.25})
    parts = Parts(Workspace(None), 10, None)
    tried = choose(data, parts, "l2", "L2")
    assert asked == [*map(Choice, grid), Choice(0.1, 0.5), faster, faster._replace(augment=True)]
    assert best(tried) == faster
    assert parts.total == 10
    rows = tuning_rows(lambda m, e, **k: Row.of("single", 0, m, e, **k), BASELINES["l2"], tried)
    table = tuning_table(rows)
    assert [line[1] for line in table.rows if line[3]] == ["0.1, lr x 2"]
    assert table.note.startswith("Of 2 learners each,")


def test_a_grid_grows_only_so_often(data: ImageData, monkeypatch: pytest.MonkeyPatch) -> None:
    data = replace(data, config=replace(smoke(), l2=(0.1, 1.0), rates=(1.0,), widen=2))
    asked = watch(monkeypatch, {Choice(10.0**k): 0.1 / 2**k for k in range(9)})
    parts = Parts(Workspace(None), 5, None)
    assert best(choose(data, parts, "l2", "L2")).strength == 100.0
    assert [choice.strength for choice in asked[:4]] == [0.1, 1.0, 10.0, 100.0]
    assert parts.total == 7


def test_plain_learners_have_no_strength(data: ImageData, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = watch(monkeypatch, {})
    choose(data, Parts(Workspace(None), 5, None), "", TUNED.label)
    assert [choice.strength for choice in asked] == [0.0] * 3
    assert [choice.label for choice in asked] == ["as it is", "lr x 2", "augmented"]


def test_the_parts_that_are_announced_are_those_that_are_done(
    data: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = watch(monkeypatch, {})
    config = replace(smoke(), widen=0)
    for name in ("", *BASELINES):
        choose(replace(data, config=config), Parts(Workspace(None), 9, None), name, name or "x")
    assert len(asked) == least_parts(config)


def test_baselines_are_tuned_without_test_images(
    data: ImageData, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials: list[Trial] = []
    train = image_learners.run_trial

    def watched(trial: Trial) -> dict[str, Tensor]:
        trials.append(trial)
        return train(trial)

    monkeypatch.setattr(image_learners, "run_trial", watched)
    found = tune(data, "l2", Choice(0.1))
    assert found["error"].shape[1] == smoke().tuning_learners
    for trial in trials:
        for task in (trial.task, trial.evaluation):
            assert torch.isin(raw(task.X_tr), data.pool).all()
            assert torch.isin(raw(task.X_te), data.held).all()
    # Other test images change nothing.
    again = tune(replace(data, test=data.test.flip(0)[:7]), "l2", Choice(0.1))
    assert torch.equal(found["error"], again["error"])


def test_learners_that_are_trained_one_by_one_differ(data: ImageData) -> None:
    config = replace(smoke(), learner="ResNet", learner_width=2, learner_blocks=(1,), steps=2)
    found = tune(replace(data, config=config), "", Choice())["error"]
    assert found.shape[1] == 2
    assert found[-1, 0] != found[-1, 1]
