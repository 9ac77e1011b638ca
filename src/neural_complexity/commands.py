"""What the commands of `neural-complexity` do."""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from tyro.conf import FlagConversionOff

from neural_complexity.assessment.from_files import assess_files, monitor_files
from neural_complexity.assessment.report import to_markdown, to_rich
from neural_complexity.cli import PROGRAM, Assess, Monitor, Run, Scorecard, parse
from neural_complexity.cores import free_cores, hold_memory
from neural_complexity.experiments.base.experiment import load_experiment
from neural_complexity.experiments.base.rows import commit
from neural_complexity.experiments.base.run_folder import RunFolder, compare_runs, write_report
from neural_complexity.experiments.base.scorecard import scorecard
from neural_complexity.files import write_json, write_text
from neural_complexity.locks import remove_stale_lock
from neural_complexity.model.network import find_nc
from neural_complexity.progress import ProgressDisplay

__all__ = ["assess", "monitor", "report", "run", "score"]


def run(given: Run, fields: list[str]) -> None:
    """Runs an experiment, or goes on with it, and shows its report."""
    experiment = load_experiment(given.experiment)
    if given.resume is not None:
        if fields or given.preset or given.out:
            raise ValueError("--resume keeps the config of its run, got further options")
        folder = RunFolder(given.resume)
        started = folder.read_config()
        name, then = started["experiment"], started["commit"]
        if name != given.experiment:
            raise ValueError(f"--resume must be a run of {given.experiment}, got one of {name}")
        if then != commit():
            print(f"note: started at {then}, goes on at {commit()}", file=sys.stderr)
        config = folder.config()
        _use_free_cores(started.get("threads"))
    else:
        preset = given.preset or "cpu"
        if preset not in experiment.presets:
            presets = ", ".join(experiment.presets)
            raise ValueError(f"--preset must be one of {presets}, got {preset}")
        config = parse(
            experiment.config,
            fields,
            default=experiment.presets[preset](),
            prog=f"{PROGRAM} run {given.experiment}",
            description=f"{experiment.summary} Options: "
            f"[--preset {'|'.join(experiment.presets)}] [--out DIR | --resume DIR], and all "
            "fields of the config, with the values of preset "
            f"{preset}:",
            config=(FlagConversionOff,),
        )
        folder = RunFolder(given.out or Path(f"runs/{given.experiment}-{preset}-{config.seed}"))
        _use_free_cores()
        folder.start(given.experiment, config)
    if folder.finished:
        remove_stale_lock(folder.path)  # of a run that was killed as soon as its rows were written
    else:
        hold_memory()
        with ProgressDisplay(Console(stderr=True), folder.tensorboard) as display:
            folder.perform(experiment, config, display)
    report([folder.path])


def report(paths: Sequence[Path]) -> None:
    """Shows the report of a run, or compares several."""
    console = _console()
    folders = [RunFolder(folder) for folder in paths]
    if len(folders) > 1:
        console.print(to_rich(compare_runs(folders)))
        return
    tables, training = write_report(folders[0])
    for table in tables:
        console.print(to_rich(table))
    if training:
        print(f"meta-training: {', '.join(f'{n} {s} s' for n, s in training.items())}")
    print(f"report: {folders[0].report}")  # not by rich, which reads [...] as markup


def score(given: Scorecard) -> None:
    """Shows or writes the numbers of the paper beside ours."""
    tables = scorecard([RunFolder(folder) for folder in given.folders])
    if given.out is not None:
        text = "\n".join(["# Scorecard\n", *map(to_markdown, tables)])
        write_text(given.out, text)
    else:
        for table in tables:
            _console().print(to_rich(table))


def assess(given: Assess) -> None:
    """Assesses a model from its files."""
    _use_free_cores()
    nc, out = None if given.nc is None else find_nc(given.nc), given.out
    options = {name: getattr(given, name) for name in ("confidence", "method", "out_of_fold")}
    assessment, notes = assess_files(nc, given, metrics=given.metrics, **options)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print(assessment)
    if out is not None and out.suffix == ".html":
        write_text(out, assessment.to_html())
    elif out is not None:
        write_json(out, assessment.to_dict())


def monitor(given: Monitor) -> None:
    """Monitors a model from its files."""
    _use_free_cores()
    nc, out = None if given.nc is None else find_nc(given.nc), given.out
    names = ("confidence", "false_alarms", "metrics", "out_of_fold")
    history, notes = monitor_files(given, nc=nc, **{name: getattr(given, name) for name in names})
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print(history)
    write_text(out, history.to_html() if out.suffix == ".html" else history.to_df().to_csv())
    print(f"written: {out}")


def _use_free_cores(threads: int | None = None) -> None:
    """Sets the number of threads: that of a run that goes on, whose sums are then the same."""
    free = free_cores()
    if free is not None:
        torch.set_num_threads(threads or free)


def _console() -> Console:
    # Piped into a file there is no width to ask for, and eighty columns break the tables.
    return Console() if sys.stdout.isatty() else Console(width=140)
