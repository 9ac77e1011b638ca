from typing import Any

import pytest
import torch

from neural_complexity.experiments.base.image_learners import LONG, NC_METHODS, PLAIN, ImageMethod
from neural_complexity.experiments.base.rows import find
from neural_complexity.experiments.single_curves import (
    PRESETS,
    Config,
    _reach_rows,
    reported,
)
from smoke_runs import SmokeRuns


@pytest.mark.parametrize("name", ["single_curves", "capacity"])
def test_learners_with_and_without_nc_are_those_of_the_table(
    name: str, smoke_runs: SmokeRuns
) -> None:
    single, rows = smoke_runs("single").outcome, smoke_runs(name).outcome.rows
    for method in (PLAIN, *NC_METHODS):
        where: dict[str, Any] = {"step": 20} if name == "single_curves" else {"times": None}
        if name == "capacity" and method == PLAIN:
            where = {"times": 1}
        # Those of the first NC, where there are several.
        first = single.tensors[f"{method.label}/error"][-1, : PRESETS["smoke"]().runs]
        own = find(rows, "accuracy", **method.keys, **where)
        assert own is not None
        assert own.value == pytest.approx(100 * (1 - first.mean().item()))


def test_the_first_step_as_good_is_the_first_snapshot_below_the_error(
    smoke_runs: SmokeRuns,
) -> None:
    ours = ImageMethod("NC", "direct", "inductive")
    found = {
        PLAIN: {
            "step": torch.tensor([0, 1, 4]),
            "error": torch.tensor([[1.0, 1], [0.5, 0.6], [0.3, 0.5]]),
        },
        LONG: {"step": torch.tensor([0, 8]), "error": torch.tensor([[1.0, 1], [0.1, 0.1]])},
        ours: {
            "step": torch.tensor([0, 1, 4]),
            "error": torch.tensor([[1.0, 1], [0.4, 0.7], [0.05, 0.2]]),
        },
    }
    rows = _reach_rows(PRESETS["smoke"](), found)

    def value(metric: str, goal: ImageMethod, step: int) -> float | None:
        row = find(rows, metric, **ours.keys, goal=goal.label, goal_step=step)
        return None if row is None else row.value

    assert value("runs as good", PLAIN, 4) == 2
    assert value("first step as good", PLAIN, 4) == 2.5
    assert value("runs as good", LONG, 8) == 1
    assert value("first step as good", LONG, 8) is None
    longest = smoke_runs("single_curves").outcome.tensors[f"{LONG.label}/step"]
    assert longest[-1] == 40


def test_reported_snapshots_are_spread_and_hold_the_last() -> None:
    for times in range(2, 40):
        places = reported(torch.arange(times))
        assert places[-1] == times - 1
        assert places[0] > 0
        assert len(places) <= 4


def test_the_longest_is_not_shorter_than_the_others() -> None:
    with pytest.raises(ValueError, match="long_steps must be at least 20, got 19"):
        Config(steps=20, long_steps=19)
