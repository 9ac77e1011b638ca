"""The command `neural-complexity`."""

import argparse
import contextlib
import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from neural_complexity.assessment.from_files import LAYOUT, assess_files
from neural_complexity.assessment.tables import to_rich
from neural_complexity.experiments.base.experiment import (
    Experiment,
    experiment_names,
    load_experiment,
)
from neural_complexity.experiments.base.memory import hold_memory
from neural_complexity.experiments.base.rows import commit
from neural_complexity.experiments.base.run_folder import RunFolder, config_from_dict
from neural_complexity.experiments.base.run_report import compare_runs, write_report
from neural_complexity.files import write_json, write_text
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.model.pretrained_files import find_nc
from neural_complexity.progress import ProgressDisplay
from neural_complexity.reliability.bounds import METHODS

__all__ = ["main"]

EXPERIMENTS = tuple(experiment_names())
DEFAULT_PRESET = "cpu"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: What follows the command's name; the process's own if `None`.

    Returns:
        The exit code: 0, or 1 after an error (2 by `assess`, whose errors are in what it was
        given), which is then one sentence on standard error.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    parser = _parser()
    options, rest = parser.parse_known_args([word for word in words if word != "--debug"])
    try:
        if options.command == "run":
            _run(options, rest)
        elif rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        elif options.command == "list":
            _list()
        elif options.command == "assess":
            _assess(options)
        elif len(options.folders) == 1:
            _report(RunFolder(options.folders[0]))
        else:
            table = compare_runs([RunFolder(folder) for folder in options.folders])
            _console().print(to_rich(table))
    except KeyboardInterrupt:
        print("stopped; go on with --resume and the folder of the run", file=sys.stderr)
        return 130
    except Exception as error:
        if debug:
            raise
        sentence = " ".join(str(error).split())
        if not isinstance(error, ValueError | TypeError | OSError | FloatingPointError):
            # Not one of ours: say what kind it is and how to learn more.
            sentence = f"{type(error).__name__}: {sentence} (--debug shows where)"
        print(f"error: {sentence}", file=sys.stderr)
        return 2 if options.command == "assess" else 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="neural-complexity",
        description="Learn to predict the generalization gap, and train better models with it.",
        epilog="--debug after any command shows the traceback of an error.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("list", help="show the experiments, and the NCs that ship with the package")
    run = commands.add_parser(
        "run",
        help="run an experiment",
        usage="neural-complexity run NAME [--preset PRESET] [--out DIR | --resume DIR] [--FIELD X]",
        allow_abbrev=False,
        add_help=False,
    )
    run.add_argument("name", nargs="?", metavar="NAME", help="one of: " + ", ".join(EXPERIMENTS))
    run.add_argument("--preset", help=f"sizes to start from (default: {DEFAULT_PRESET})")
    run.add_argument("--out", type=Path, help="a new folder (default: runs/NAME-PRESET-SEED)")
    run.add_argument("--resume", type=Path, help="the folder of a run to go on with")
    run.add_argument("-h", "--help", action="store_true", help="show this and all config fields")
    run.set_defaults(parser=run)
    report = commands.add_parser(
        "report", help="draw tables, figures and page of a run again, or compare several"
    )
    report.add_argument("folders", type=Path, metavar="DIR", nargs="+")
    _add_assess(commands)
    return parser


def _add_assess(commands: Any) -> None:
    assess = commands.add_parser(
        "assess",
        help="predict how badly a model of yours generalizes, from files",
        description="Predict how badly a model of yours generalizes, from what it said.",
        epilog=LAYOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    assess.add_argument(
        "--nc", required=True, metavar="NC", help="a saved NC, or the name of one that ships"
    )
    for name in ("train", "test", "predictions"):
        assess.add_argument(f"--{name}", type=Path, required=True, metavar="FILE", help="see below")
    assess.add_argument("--predictions-train", type=Path, metavar="FILE", help="see below")
    assess.add_argument("--target", nargs="+", metavar="COLUMN", help="default: the last column")
    assess.add_argument(
        "--probabilities", action="store_true", help="predictions are probabilities, not logits"
    )
    assess.add_argument("--confidence", type=float, default=0.95, help="of the bound, %(default)s")
    assess.add_argument(
        "--method", choices=METHODS, default=METHODS[0], help="of the bound, %(default)s"
    )
    assess.add_argument("--out", type=Path, metavar="FILE", help="a page (.html) or all (.json)")


def _assess(options: argparse.Namespace) -> None:
    out = options.out
    if out is not None and (out.suffix not in (".html", ".json") or not out.parent.is_dir()):
        raise ValueError(f"--out must be a .html or .json file in a folder that exists, got {out}")
    assessment, notes = assess_files(
        find_nc(options.nc),
        train=options.train,
        test=options.test,
        predictions=options.predictions,
        predictions_train=options.predictions_train,
        target=options.target,
        probabilities=options.probabilities,
        confidence=options.confidence,
        method=options.method,
    )
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print(assessment)
    if out is not None and out.suffix == ".html":
        write_text(out, assessment.to_html())
    elif out is not None:
        write_json(out, assessment.to_dict())


def _list() -> None:
    for name in EXPERIMENTS:
        experiment = load_experiment(name)
        print(f"{name:14} {experiment.summary}  presets: {', '.join(experiment.presets)}")
    print("\nNCs that ship with the package, for NeuralComplexity.pretrained(NAME):")
    for name, judges in NeuralComplexity.pretrained_names().items():
        print(f"{name:15} {judges}")


def _run(options: argparse.Namespace, rest: list[str]) -> None:
    if options.help and options.name is None:
        options.parser.print_help()
        return
    experiment = load_experiment(options.name or "nothing")
    if options.resume is not None:
        if rest or options.preset or options.out:
            raise ValueError("--resume keeps the config of its run, got further options")
        folder = RunFolder(options.resume)
        config = _resumed_config(folder, options.name, experiment)
    else:
        preset = options.preset or DEFAULT_PRESET
        if preset not in experiment.presets:
            raise ValueError(
                f"--preset must be one of {', '.join(experiment.presets)}, got {preset}"
            )
        if options.help:
            options.parser.print_help()
            print(f"\nfields of the config, with the values of preset {preset}:\n")
        config = _parse_fields(experiment, options, rest, preset)
        folder = RunFolder(options.out or Path(f"runs/{options.name}-{preset}-{config.seed}"))
        folder.start(options.name, config)
    _work(folder, experiment, config)


def _parse_fields(
    experiment: Experiment, options: argparse.Namespace, rest: list[str], preset: str
) -> Any:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                experiment.config,
                args=[*rest, "--help"] if options.help else rest,
                default=experiment.presets[preset](),
                prog=f"neural-complexity run {options.name}",
                config=(tyro.conf.FlagConversionOff,),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        # A box with the sentence first, and help behind a line; the sentence is what is wanted.
        words = re.split(r"─{4,}", re.sub(r"[│╭╮╰╯]", " ", said.getvalue()))
        sentence = next((w for w in words[1:] if len(w.split()) > 2), said.getvalue())
        raise ValueError(" ".join(sentence.split())) from None


def _resumed_config(folder: RunFolder, name: str, experiment: Experiment) -> Any:
    started = folder.read_config()
    if started["experiment"] != name:
        raise ValueError(f"--resume must be a run of {name}, got one of {started['experiment']}")
    if started["commit"] != commit():
        print(f"note: started at {started['commit']}, goes on at {commit()}", file=sys.stderr)
    return config_from_dict(experiment.config, started["config"])


def _work(folder: RunFolder, experiment: Experiment, config: Any) -> None:
    if not folder.finished:
        hold_memory()
        with ProgressDisplay(Console(stderr=True), folder.tensorboard) as display:
            folder.perform(experiment, config, display)
    _report(folder)


def _console() -> Console:
    # Piped into a file there is no width to ask for, and eighty columns break the tables.
    return Console() if sys.stdout.isatty() else Console(width=140)


def _report(folder: RunFolder) -> None:
    console = _console()
    tables, training = write_report(folder)
    for table in tables:
        console.print(to_rich(table))
    if training:
        console.print(f"meta-training: {', '.join(f'{n} {s} s' for n, s in training.items())}")
    console.print(f"report: {folder.report}")


if __name__ == "__main__":
    sys.exit(main())
