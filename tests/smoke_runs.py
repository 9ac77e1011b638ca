"""Every experiment at preset smoke: run once a session, whoever asks, as users run it."""

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from neural_complexity.experiments.base.config import NetworksConfig
from neural_complexity.experiments.base.experiment import Outcome, load_experiment
from neural_complexity.experiments.base.run_folder import RunFolder
from neural_complexity.files import write_json
from neural_complexity.ledger import recording
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.tasks.image_datasets import VARIABLE

# Where no learner may see what is reported on.
ONE_DATASET = {"single", "single_curves", "dataset_size", "capacity", "own"}
# Different rows of tables with two columns of few values may be the same.
BY_CHANCE = {"harm": 200, "pretraining": 20}


@dataclass(frozen=True)
class FinishedRun:
    """A run of an experiment, killed twice on its way, and the folder that it left."""

    folder: Path
    outcome: Outcome


class SmokeRuns:
    """Runs experiments when they are asked for; parallel sessions share what they did.

    Args:
        folder: Where the runs are.
        data: A folder with images in the place of Omniglot's.
    """

    def __init__(self, folder: Path, data: str) -> None:
        self.folder, self.data = folder, data

    def config(self, name: str) -> Any:
        experiment = load_experiment(name)
        config = experiment.presets["smoke"]()
        shared = "networks" in {field.name for field in fields(config)}
        if shared and not isinstance(config, NetworksConfig) and not hasattr(config, "ways"):
            other = "pretraining" if name == "tables" else "single"
            return replace(config, networks=str(self(other).folder))
        return config

    def __call__(self, name: str) -> FinishedRun:
        config, folder = self.config(name), RunFolder(self.folder / name)
        with FileLock(self.folder / f"{name}.lock"):
            if not folder.finished:
                self._run(name, config, folder)
        networks = {
            path.stem.removeprefix("nc-"): NeuralComplexity.load(path)
            for path in sorted(folder.path.glob("nc-*.safetensors"))
        }
        return FinishedRun(folder.path, replace(folder.results()[0], networks=networks))

    def leaks(self, name: str) -> list[str]:
        """Returns what the ledger of an experiment's run found."""
        self(name)
        found: list[str] = json.loads((self.folder / f"{name}-leaks.json").read_text())
        return found

    def _run(self, name: str, config: Any, folder: RunFolder) -> None:
        kills = Kills()
        with as_users_do(self.data), recording() as ledger:
            folder.start(name, config)
            while True:
                try:
                    folder.perform(load_experiment(name), config, kills)
                    break
                except KeyboardInterrupt:
                    assert not folder.finished
            chance = BY_CHANCE.get(name, 0)
            leaks = ledger.leaks(one_dataset=name in ONE_DATASET, chance=chance)
        write_json(self.folder / f"{name}-leaks.json", leaks)
        assert kills.left != [1, 1], "the experiment must report its progress"


class Kills:
    """A callback that kills a run halfway through its first stage and through its evaluation."""

    def __init__(self) -> None:
        self.left = [1, 1]

    def __call__(
        self, stage: str, done: int, total: int, seconds: float, _: dict[str, float]
    ) -> None:
        assert 0 < done <= total
        assert seconds >= 0
        which = int(stage == "evaluation")
        if self.left[which] and 2 * done >= total:
            self.left[which] = 0
            raise KeyboardInterrupt


@contextmanager
def as_users_do(data: str) -> Iterator[None]:
    """Single precision, one thread (as a worker has), images, and no warnings of tiny NCs."""
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        patch.setenv(VARIABLE, data)
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_default_dtype(before)
            torch.set_num_threads(threads)


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Returns a folder that all workers of a session see."""
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "smoke-runs"
    folder.mkdir(exist_ok=True)
    return folder
