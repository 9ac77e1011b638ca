"""Finished runs that several tests look at."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from neural_complexity.experiments import single
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.run_folder import RunFolder


@dataclass(frozen=True)
class FinishedRun:
    """A run of an experiment and the folder that it left."""

    folder: Path
    outcome: Outcome


@pytest.fixture(scope="session")
def single_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Runs `single` at preset smoke once, in one go and as users do, for all who ask its NCs."""
    folder = RunFolder(tmp_path_factory.mktemp("single") / "run")
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)  # as many as a worker has
    try:
        folder.start(single.NAME, single.smoke())
        outcome = single.run(single.smoke())
        folder.finish(outcome)
    finally:
        torch.set_default_dtype(before)
        torch.set_num_threads(threads)
    return FinishedRun(folder.path, outcome)
