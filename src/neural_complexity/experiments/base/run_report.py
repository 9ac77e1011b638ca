"""The page, the figures and the tables of a finished run."""

from typing import Any

from neural_complexity.assessment.page import render
from neural_complexity.assessment.tables import Table, to_markdown
from neural_complexity.experiments.base.experiment import (
    Experiment,
    experiment_names,
    load_experiment,
)
from neural_complexity.experiments.base.run_folder import RunFolder
from neural_complexity.files import write_text

__all__ = ["compare_runs", "experiment_of", "write_report"]


def experiment_of(folder: RunFolder) -> Experiment:
    """Returns the experiment that a folder holds a run of.

    Raises:
        ValueError: If the folder holds no run of one of ours.
    """
    name = folder.read_config()["experiment"]
    names = experiment_names()
    if name not in names:
        raise ValueError(f"{folder.path} must be a run of {', '.join(names)}, got {name}")
    return load_experiment(name)


def write_report(folder: RunFolder) -> tuple[list[Table], dict[str, float]]:
    """Writes page, figures and tables of a finished run.

    Returns:
        The tables, and the seconds of meta-training by network.
    """
    config, experiment = folder.read_config()["config"], experiment_of(folder)
    outcome, machine = folder.results()
    tables = experiment.tables(outcome.rows)
    figures = experiment.draw(outcome, folder.figures)
    training = {name: round(scores[-1].seconds, 1) for name, scores in outcome.history.items()}
    details: dict[str, Any] = {
        "commit": outcome.rows[0].commit,
        "seed": outcome.rows[0].seed,
        "seconds of meta-training": training,
        **outcome.facts,
        "machine": machine,
        "config": config,
    }
    page = render(experiment.title, experiment.lead, tables, figures, details)
    write_text(folder.report, page)
    write_text(folder.path / "tables.md", "\n".join(to_markdown(table) for table in tables))
    return tables, training


def compare_runs(folders: list[RunFolder]) -> Table:
    """Returns several runs of one experiment as one table.

    Raises:
        ValueError: If they are of different experiments, or of one that cannot be compared so.
    """
    found = [experiment_of(folder) for folder in folders]
    joint = found[0].joint
    if joint is None or len({experiment.name for experiment in found}) > 1:
        names = ", ".join(experiment.name for experiment in found)
        raise ValueError(f"several runs must be of single, got runs of {names}")
    return joint([folder.results()[0].rows for folder in folders])
