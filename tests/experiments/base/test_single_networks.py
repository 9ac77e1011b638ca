from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from neural_complexity.experiments.base.experiment import load_experiment
from neural_complexity.experiments.base.image_learners import BELIEFS, CNN, DISTILLED, ImageMethod
from neural_complexity.experiments.base.run_folder import RunFolder
from neural_complexity.experiments.base.single_networks import reference_rows, reference_table
from neural_complexity.experiments.base.table_views import find
from neural_complexity.files import read_json, write_json
from neural_complexity.workspace import Workspace
from smoke_runs import SmokeRuns

NAMES = ("dataset_size", "single_curves", "capacity")


@pytest.fixture(autouse=True)
def single_precision() -> None:
    torch.set_default_dtype(torch.float32)  # as users run it


def run(name: str, config: Any) -> None:
    load_experiment(name).run(config, Workspace(None))


@pytest.mark.parametrize("name", NAMES)
def test_other_networks_are_refused(name: str, smoke_runs: SmokeRuns, tmp_path: Path) -> None:
    config = smoke_runs.config(name)
    changes: list[tuple[dict[str, object], str]] = [
        ({"networks": ""}, "networks must be the folder of a finished run of single on digits, go"),
        ({"networks": "nowhere"}, "networks must be the folder of a finished run of single, got n"),
        ({"seed": 1}, "networks must be a run with the same .*got one with seed 0 in the place of"),
        ({"held": 199}, "got one with held 200 in the place of 199"),
        ({"train_images": 1300}, "got one with train_images 0 in the place of 1300"),
        ({"test_images": 300}, "got one with test_images 120 in the place of 300"),
    ]
    for change, sentence in changes:
        with pytest.raises(ValueError, match=sentence):
            run(name, replace(config, **change))
    other = RunFolder(tmp_path / "other")
    other.start("sinusoid", config)
    with pytest.raises(ValueError, match="networks must be a run of single, got one of sinusoid"):
        run(name, replace(config, networks=str(other.path)))


def test_networks_of_another_dataset_or_of_an_unfinished_run_are_refused(
    smoke_runs: SmokeRuns, tmp_path: Path
) -> None:
    content = read_json(smoke_runs("single").folder / "config.json")
    write_json(tmp_path / "config.json", content)
    config = replace(smoke_runs.config("capacity"), networks=str(tmp_path))
    with pytest.raises(ValueError, match="networks must be a finished run of single, got no"):
        run("capacity", config)
    content["config"]["dataset"] = "mnist"
    write_json(tmp_path / "config.json", content)
    with pytest.raises(ValueError, match="got one with dataset mnist in the place of digits"):
        run("capacity", config)


def test_what_shows_where_ncs_help_comes_from_is_that_of_the_run(smoke_runs: SmokeRuns) -> None:
    rows = reference_rows(smoke_runs.config("capacity"), "capacity")
    theirs = smoke_runs("single").outcome.rows
    for method in (DISTILLED, BELIEFS, CNN):
        for metric in ("accuracy", "test loss"):
            own, wanted = (find(some, metric, **method.keys) for some in (rows, theirs))
            assert own is not None
            assert wanted is not None
            assert own.value == wanted.value
            assert (own.experiment, own.keys["source"]) == ("capacity", "single")
            assert ImageMethod.of(own) == method
    assert len(rows) == 6
    assert [line[0] for line in reference_table(rows).rows] == [
        method.label for method in (DISTILLED, BELIEFS, CNN)
    ]
