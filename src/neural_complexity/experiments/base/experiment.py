"""What an experiment is, what a run of one leaves, and how all experiments are found."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from neural_complexity import experiments
from neural_complexity.assessment.report import STYLE, Figure, Table, save
from neural_complexity.experiments.base.rows import Row
from neural_complexity.meta.optimize import Status
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback
from neural_complexity.workspace import Workspace

__all__ = ["Drawing", "Experiment", "Outcome", "Parts", "experiment_names", "load_experiment"]


@dataclass(frozen=True)
class Outcome:
    """What a run leaves: rows for tables, tensors for figures, networks, and the way there."""

    rows: list[Row]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    networks: dict[str, NeuralComplexity] = field(default_factory=dict)
    history: dict[str, list[Status]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)  # what else a reader should know, as JSON


class Drawing(NamedTuple):
    """A figure that is not on disk yet."""

    name: str  # of its file
    canvas: Canvas
    title: str
    caption: str


@dataclass(frozen=True)
class Experiment:
    """A table or figure of results: settings, the run, and what is shown of it."""

    name: str
    title: str
    lead: str  # the paragraph under the title
    config: type[Any]
    presets: Mapping[str, Callable[[], Any]]
    # Of config, workspace and callback; the same call with the same workspace goes on after a kill.
    run: Callable[..., Outcome]
    tables: Callable[[list[Row]], list[Table]]
    figures: Callable[[Outcome], list[Drawing]]
    joint: Callable[[list[list[Row]]], Table] | None = None  # several runs in one table

    @property
    def summary(self) -> str:
        """The first line of the module that defines it."""
        return (sys.modules[self.tables.__module__].__doc__ or "").splitlines()[0]

    def draw(self, outcome: Outcome, folder: Path) -> list[Figure]:
        """Writes all figures to a folder and returns them."""
        with mpl.rc_context(STYLE):
            found = self.figures(outcome)
            return [Figure(save(d.canvas, folder, d.name), d.title, d.caption) for d in found]


class Parts:
    """The parts of a run, `total` of them: done once, kept in its workspace, and reported."""

    def __init__(self, work: Workspace, total: int, callback: ProgressCallback | None) -> None:
        self.work, self.total, self.callback = work, total, callback
        self.seconds = work.seconds  # that each part took, over all sessions

    def do(self, name: str, work: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Returns the tensors of a part; works, as a pure function of the config, only once."""
        tensors, spent = self.work.do(name, work), self.seconds.values()
        if self.callback is not None:  # shown with the mean of the last test losses
            metrics = {name: tensors["loss_te"][-1].mean().item()} if "loss_te" in tensors else {}
            self.callback("evaluation", len(spent), self.total, sum(spent), metrics)
        return tensors

    def facts(self, networks: dict[str, NeuralComplexity]) -> dict[str, Any]:
        """Returns the commits that NCs are from, and the seconds of all parts."""
        commits = {head: nc.card.commit for head, nc in networks.items()}
        return {"networks": commits, "seconds": {n: round(s, 1) for n, s in self.seconds.items()}}


def experiment_names() -> list[str]:
    """Returns the names of all experiments: every module of this package is one."""
    return [module.name for module in iter_modules(experiments.__path__) if not module.ispkg]


def load_experiment(name: str, demand: str = "NAME must be one of") -> Experiment:
    """Returns an experiment by name; raises `ValueError` if there is none."""
    if name not in experiment_names():
        raise ValueError(f"{demand} {', '.join(experiment_names())}, got {name}")
    experiment: Experiment = import_module(f"{experiments.__name__}.{name}").EXPERIMENT
    return experiment
