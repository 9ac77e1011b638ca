"""The folder that a run leaves: what is in it, its report, and its NCs for other experiments."""

import platform
import shutil
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from neural_complexity import files
from neural_complexity.assessment.report import Table, render, to_markdown
from neural_complexity.experiments.base.config import config_from_dict
from neural_complexity.experiments.base.experiment import Experiment, Outcome, load_experiment
from neural_complexity.experiments.base.rows import commit, read_rows, write_rows
from neural_complexity.locks import LOCK, lock_folder
from neural_complexity.meta.optimize import Status
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.workspace import Workspace, fingerprint

__all__ = ["HEADS", "RunFolder", "compare_runs", "load_network", "load_networks"]
__all__ += ["load_tensors", "write_report"]

HEADS: tuple[Literal["posterior", "direct"], ...] = ("posterior", "direct")
Networks = dict[str, NeuralComplexity]  # by head


class RunFolder:
    """The files of one run, by what they are."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / "work"  # what an unfinished run needs to go on
        self.figures = path / "figures"
        self.report = path / "report.html"
        self.tensorboard = path / "tensorboard"

    def start(self, experiment: str, config: Any) -> None:
        """Claims an empty or new folder for a run."""
        self._check_empty()
        content: dict[str, Any] = {"experiment": experiment, "commit": commit()}
        content |= {"config": asdict(config), "threads": torch.get_num_threads()}
        try:
            with lock_folder(self.path):
                self._check_empty()  # nor has another run claimed it in the meantime
                files.write_json(self.path / "config.json", content)
        except OSError:
            with suppress(OSError):  # only if it is empty
                self.path.rmdir()
            raise

    def _check_empty(self) -> None:
        left = list(self.path.iterdir()) if self.path.is_dir() else [self.path]
        # What a start that was killed left does not count.
        killed = all(p.name == LOCK or p.name.endswith(files.PART) for p in left)
        if self.path.exists() and not killed:
            raise ValueError(
                f"--out must be a new or empty folder, got {self.path}; "
                "choose another, or go on with the run in it by --resume"
            )

    def read_config(self) -> dict[str, Any]:
        """Returns experiment, commit, config and threads as the run was started."""
        if not (self.path / "config.json").is_file():
            raise ValueError(f"{self.path} must be the folder of a run, got no config.json there")
        content = files.read_json(self.path / "config.json")
        if not {"experiment", "commit", "config"} <= set(content):
            raise ValueError(f"{self.path / 'config.json'} must be of a run, got other content")
        return content

    @property
    def experiment(self) -> Experiment:
        """The experiment that this is a run of."""
        return load_experiment(self.read_config()["experiment"], f"{self.path} must be a run of")

    def config(self) -> Any:
        """Returns the config that the run was started with."""
        kind, values = self.experiment.config, self.read_config()["config"]
        try:
            return config_from_dict(kind, values)
        except (AttributeError, TypeError, ValueError) as error:
            path = self.path / "config.json"
            raise ValueError(f"{path} must be of this version, got another: {error}") from None

    @property
    def finished(self) -> bool:
        """Whether the run's results are all there, and nothing else."""
        return (self.path / "rows.jsonl").is_file() and not self.work.exists()

    def perform(self, experiment: Experiment, config: Any, callback: ProgressCallback) -> None:
        """Runs an experiment, from where an earlier session stopped, and writes the results.

        Raises:
            BlockingIOError: If another process has the folder.
        """
        with lock_folder(self.path):
            if not (self.path / "rows.jsonl").is_file():
                self._perform(experiment, config, callback)
            shutil.rmtree(self.work, ignore_errors=True)

    def _perform(self, experiment: Experiment, config: Any, callback: ProgressCallback) -> None:
        outcome = experiment.run(config, Workspace(self.work, fingerprint(config)), callback)
        started = self.read_config()
        first = started.pop("commit")  # a run that went on at another commit belongs to both
        made_by = commit() if first == commit() else f"{first}..{commit()}"
        for name, nc in outcome.networks.items():
            notes = {**nc.card.notes, **started, "network": name}
            nc.card = replace(nc.card, commit=made_by, notes=notes)
            nc.save(self.path / f"nc-{name}.safetensors")
        files.write_tensors(self.path / "figures.safetensors", outcome.tensors, {})
        # The machine is described without naming it.
        machine = {"processor": platform.machine(), "threads": torch.get_num_threads()}
        machine |= {"torch": str(torch.__version__), "python": platform.python_version()}
        history = {n: [status.to_json() for status in s] for n, s in outcome.history.items()}
        content = {"machine": machine, "facts": outcome.facts, "history": history}
        files.write_json(self.path / "run.json", content)
        # The rows come last and mark the run as finished.
        write_rows(self.path / "rows.jsonl", [replace(r, commit=made_by) for r in outcome.rows])

    def results(self) -> tuple[Outcome, dict[str, Any]]:
        """Returns what the run left, without its networks, and the description of the machine."""
        rows = read_rows(self.path / "rows.jsonl")
        run = files.read_json(self.path / "run.json")
        try:
            tensors, _ = files.read_tensors(self.path / "figures.safetensors")
            history = {n: [Status(**m) for m in s] for n, s in run["history"].items()}
            return Outcome(rows, tensors, {}, history, run.get("facts", {})), run["machine"]
        except (FileNotFoundError, KeyError, TypeError) as error:
            said = f"{self.path} must hold a whole run, got a damaged one ({error})"
            raise ValueError(said) from None


def write_report(folder: RunFolder) -> tuple[list[Table], dict[str, float]]:
    """Writes page, figures and tables of a run; returns tables, and seconds of meta-training."""
    experiment = folder.experiment
    outcome, machine = folder.results()
    tables = experiment.tables(outcome.rows)
    figures = experiment.draw(outcome, folder.figures)
    training = {name: round(scores[-1].seconds, 1) for name, scores in outcome.history.items()}
    row, config = outcome.rows[0], folder.read_config()["config"]
    details = {"commit": row.commit, "seed": row.seed, "seconds of meta-training": training}
    details |= {**outcome.facts, "machine": machine, "config": config}
    page = render(experiment.title, experiment.lead, tables, figures, details)
    files.write_text(folder.report, page)
    files.write_text(folder.path / "tables.md", "\n".join(to_markdown(table) for table in tables))
    return tables, training


def compare_runs(folders: list[RunFolder]) -> Table:
    """Returns several runs of one experiment, which must have such a table, as one table."""
    found = [folder.experiment for folder in folders]
    if found[0].joint is None or len({experiment.name for experiment in found}) > 1:
        names = ", ".join(experiment.name for experiment in found)
        raise ValueError(f"several runs must be of single, got runs of {names}")
    return found[0].joint([folder.results()[0].rows for folder in folders])


def load_networks(folder: str, device: str, experiment: str = "sinusoid") -> Networks:
    """Returns the NCs of a finished run by head; the shipped networks if the folder is empty."""
    if folder:
        return {head: load_network(folder, head, experiment, device) for head in HEADS}
    shipped = {"posterior": experiment, "direct": f"{experiment}-direct"}  # made by preset `cpu`
    return {h: NeuralComplexity.pretrained(n).to(device) for h, n in shipped.items()}


def load_network(folder: str, head: str, experiment: str, device: str) -> NeuralComplexity:
    """Returns the NC with one head that a finished run of an experiment left."""
    path = Path(folder) / f"nc-{head}.safetensors"
    if not path.is_file():
        raise ValueError(f"networks must be a finished run of {experiment}, got no {path}")
    return NeuralComplexity.load(path).to(device)


def load_tensors(folder: str, prefix: str, experiment: str) -> dict[str, Tensor]:
    """Returns the tensors under a prefix, which is cut off, that a finished run left."""
    path = Path(folder) / "figures.safetensors"
    found = files.read_tensors(path)[0] if path.is_file() else {}
    kept = {name.removeprefix(prefix): t for name, t in found.items() if name.startswith(prefix)}
    if not kept:
        needed = f"a finished run of {experiment} with {prefix}"
        raise ValueError(f"networks must be {needed}, got no such tensors in {path}")
    return kept
