"""The folder that a run leaves."""

import platform
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from neural_complexity.experiments.base.config import config_from_dict
from neural_complexity.experiments.base.experiment import Experiment, Outcome
from neural_complexity.experiments.base.rows import commit, read_rows, write_rows
from neural_complexity.files import read_json, read_tensors, write_json, write_tensors
from neural_complexity.meta.trainer import Status
from neural_complexity.progress import ProgressCallback
from neural_complexity.workspace import Workspace, fingerprint

__all__ = ["RunFolder", "config_from_dict"]


class RunFolder:
    """The files of one run, by what they are.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / "work"  # what an unfinished run needs to go on
        self.figures = path / "figures"
        self.report = path / "report.html"
        self.tensorboard = path / "tensorboard"

    def start(self, experiment: str, config: Any) -> None:
        """Claims an empty or new folder for a run.

        Raises:
            ValueError: If there is something in it.
        """
        if self.path.exists() and not self._is_empty():
            raise ValueError(
                f"--out must be a new or empty folder, got {self.path}; "
                "choose another, or go on with the run in it by --resume"
            )
        content = {"experiment": experiment, "commit": commit(), "config": asdict(config)}
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            write_json(self.path / "config.json", content)
        except OSError:
            self.path.rmdir()
            raise

    def _is_empty(self) -> bool:
        """Returns whether nothing is here but, perhaps, what a start that was killed left."""
        return self.path.is_dir() and all(
            path.name.startswith(".config.json.") for path in self.path.iterdir()
        )

    def read_config(self) -> dict[str, Any]:
        """Returns experiment, commit and config as the run was started.

        Raises:
            ValueError: If the folder holds no run.
        """
        if not (self.path / "config.json").is_file():
            raise ValueError(f"{self.path} must be the folder of a run, got no config.json there")
        content = read_json(self.path / "config.json")
        if not {"experiment", "commit", "config"} <= set(content):
            raise ValueError(f"{self.path / 'config.json'} must be of a run, got other content")
        return content

    @property
    def finished(self) -> bool:
        """Whether the run's results are all there."""
        return (self.path / "rows.jsonl").is_file()

    def perform(
        self, experiment: Experiment, config: Any, callback: ProgressCallback | None = None
    ) -> Outcome:
        """Runs an experiment, from where an earlier session stopped, and writes the results."""
        work = Workspace(self.work, fingerprint(config))
        outcome = experiment.run(config, work, callback)
        self.finish(outcome)
        return outcome

    def finish(self, outcome: Outcome) -> None:
        """Writes the results; the rows come last and mark the run as finished."""
        config = self.read_config()
        # A run that went on at another commit belongs to both.
        made_by = commit() if config["commit"] == commit() else f"{config['commit']}..{commit()}"
        rows = [replace(row, commit=made_by) for row in outcome.rows]
        for name, nc in outcome.networks.items():
            notes = {**nc.card.notes, **config, "network": name}
            notes.pop("commit")
            nc.card = replace(nc.card, commit=made_by, notes=notes)
            nc.save(self.path / f"nc-{name}.safetensors")
        write_tensors(self.path / "figures.safetensors", outcome.tensors, {})
        history = {n: [status.to_json() for status in s] for n, s in outcome.history.items()}
        content = {"machine": _machine(), "facts": outcome.facts, "history": history}
        write_json(self.path / "run.json", content)
        write_rows(self.path / "rows.jsonl", rows)
        shutil.rmtree(self.work, ignore_errors=True)

    def results(self) -> tuple[Outcome, dict[str, Any]]:
        """Returns what the run left, without its networks, and the description of the machine.

        Raises:
            ValueError: If the run is not finished.
        """
        rows = read_rows(self.path / "rows.jsonl")
        run = read_json(self.path / "run.json")
        try:
            tensors, _ = read_tensors(self.path / "figures.safetensors")
            history = {n: [Status(**m) for m in s] for n, s in run["history"].items()}
            return Outcome(rows, tensors, {}, history, run.get("facts", {})), run["machine"]
        except (FileNotFoundError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self.path} must hold a whole run, got a damaged one ({error})"
            ) from None


def _machine() -> dict[str, str | int]:
    """Describes the machine without naming it."""
    return {
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
