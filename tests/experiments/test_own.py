import json
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from neural_complexity.assessment.tables import find
from neural_complexity.experiments import own
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.run_folder import config_from_dict
from neural_complexity.experiments.reports import own_report as report


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Runs the experiment at preset smoke, interrupted on the way and resumed."""
    torch.set_default_dtype(torch.float32)  # as users run it
    folder = tmp_path_factory.mktemp("own")

    def interrupt(stage: str, done: int, total: int, seconds: float, facts: Any) -> None:
        if stage == "evaluation" and done == 5:
            raise KeyboardInterrupt

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a tiny NC is no good, and says so
        with pytest.raises(KeyboardInterrupt):
            own.run(own.smoke(), folder=folder, tell=interrupt)
    return own.run(own.smoke(), folder=folder)


@pytest.mark.filterwarnings("ignore:NC cannot beat")
def test_interrupted_and_resumed_the_rows_are_those_of_one_go(outcome: Outcome) -> None:
    torch.set_default_dtype(torch.float32)
    assert own.run(own.smoke()).rows == outcome.rows


def test_a_report_can_be_made(outcome: Outcome, tmp_path: Path) -> None:
    gaps, accuracies = report.tables(outcome.rows)
    assert [row[0] for row in gaps.rows] == ["all kinds", *own.KINDS]
    assert len(accuracies.rows) == 5 + 3  # and the change of those that have NC
    (figure,) = report.figures(outcome, tmp_path)
    assert figure.path.stat().st_size > 10_000


def test_the_bound_is_that_of_the_assessment(outcome: Outcome) -> None:
    inside = find(outcome.rows, "NC", "all kinds", "inside the bound")
    assert inside is not None
    assert 0 <= inside.value <= 1
    assert inside.n == 2 * len(own.KINDS)
    assert outcome.networks["digits"].calibration is not None


def test_configs_survive_json_and_wrong_ones_are_refused() -> None:
    for preset in own.PRESETS.values():
        assert config_from_dict(own.Config, json.loads(json.dumps(asdict(preset())))) == preset()
    for wrong, sentence in (
        ({"budget": "soon"}, "budget must be a positive time"),
        ({"sizes": (10,)}, "sizes must be from 50 to 1437"),
        ({"runs": 1}, "runs must be at least 2, got 1"),
    ):
        with pytest.raises(ValueError, match=sentence):
            replace(own.smoke(), **wrong)
