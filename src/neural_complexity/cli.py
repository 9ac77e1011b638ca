"""The command `neural-complexity`."""

import contextlib
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from tyro.conf import FlagConversionOff, FlagCreatePairsOff, Positional, arg

from neural_complexity.assessment.from_files import ModelFiles, assess_files
from neural_complexity.assessment.report import to_markdown, to_rich
from neural_complexity.experiments.base.config import config_from_dict
from neural_complexity.experiments.base.experiment import experiment_names, load_experiment
from neural_complexity.experiments.base.rows import commit
from neural_complexity.experiments.base.run_folder import RunFolder, compare_runs, write_report
from neural_complexity.experiments.base.scorecard import scorecard
from neural_complexity.experiments.base.training import hold_memory
from neural_complexity.files import write_json, write_text
from neural_complexity.model.network import NeuralComplexity, find_nc
from neural_complexity.progress import ProgressDisplay
from neural_complexity.reliability.gap_bounds import Method

__all__ = ["main"]

PROGRAM = "neural-complexity"
Folder = Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; the process's own arguments if `None`. Returns the exit code.

    An error is one sentence on standard error: 2 if it is in what the user typed or gave to
    `assess`, otherwise 1.
    """
    given = sys.argv[1:] if arguments is None else arguments
    words = [word for word in given if word != "--debug"]
    # Help on a run is help on the config of its experiment, which has yet to be found.
    about_config = words[:1] in (["run"], ["pretrain"]) and len(words) > 2
    later = [word for word in words if about_config and word in ("-h", "--help")]
    code = 2
    try:
        command, rest = _parse(
            List | Run | Pretrain | Report | Scorecard | Assess,
            [word for word in words if word not in later],
            return_unknown_args=True,
            prog=PROGRAM,
            description="Learn to predict the generalization gap, and train better models with it. "
            "--debug after any command shows the traceback of an error.",
            config=(FlagCreatePairsOff,),
        )
        if rest and not isinstance(command, Run):
            raise ValueError(f"unrecognized arguments: {' '.join(rest)}")
        code = 2 if isinstance(command, Assess) else 1
        # The config of a run takes the words that are left.
        command(*([rest + later] if isinstance(command, Run) else []))
    except KeyboardInterrupt:
        print("stopped; continue with --resume and the folder of the run", file=sys.stderr)
        return 130
    except Exception as error:
        if "--debug" in given:
            raise
        sentence = " ".join(str(error).split())
        if not isinstance(error, ValueError | TypeError | OSError | FloatingPointError):
            # Not one of ours: say what kind it is and how to learn more.
            sentence = f"{type(error).__name__}: {sentence} (--debug shows where)"
        print(f"error: {sentence}", file=sys.stderr)
        return code
    return 0


@dataclass(frozen=True)
class List:
    """Show the experiments, and the NCs that ship with the package."""

    def __call__(self) -> None:
        for name in experiment_names():
            experiment = load_experiment(name)
            print(f"{name:14} {experiment.summary}  presets: {', '.join(experiment.presets)}")
        print("\nNCs that ship with the package, for NeuralComplexity.pretrained(NAME):")
        for name, judges in NeuralComplexity.pretrained_names().items():
            print(f"{name:15} {judges}")


@dataclass(frozen=True)
class Run:
    """Run an experiment; `run NAME --help` shows the fields of its config."""

    # The experiment; `list` shows them.
    name: Annotated[Positional[str], arg(metavar="NAME", help_behavior_hint="")] = ""
    # Sizes to start from (default: cpu).
    preset: Annotated[str | None, arg(metavar="PRESET", help_behavior_hint="")] = None
    out: Folder = None  # A new folder (default: runs/NAME-PRESET-SEED).
    resume: Folder = None  # The folder of a run to continue.

    @property
    def experiment(self) -> str:
        """The experiment that is meant."""
        return self.name or "nothing"

    def __call__(self, fields: list[str]) -> None:
        experiment = load_experiment(self.experiment)
        if self.resume is not None:
            if fields or self.preset or self.out:
                raise ValueError("--resume keeps the config of its run, got further options")
            folder = RunFolder(self.resume)
            started = folder.read_config()
            name, then = started["experiment"], started["commit"]
            if name != self.experiment:
                raise ValueError(f"--resume must be a run of {self.experiment}, got one of {name}")
            if then != commit():
                print(f"note: started at {then}, goes on at {commit()}", file=sys.stderr)
            config = config_from_dict(experiment.config, started["config"])
        else:
            preset = self.preset or "cpu"
            if preset not in experiment.presets:
                presets = ", ".join(experiment.presets)
                raise ValueError(f"--preset must be one of {presets}, got {preset}")
            config = _parse(
                experiment.config,
                fields,
                default=experiment.presets[preset](),
                prog=f"{PROGRAM} run {self.experiment}",
                description=f"{experiment.summary} Options: [--preset PRESET] [--out DIR | "
                "--resume DIR], and all fields of the config, with the values of preset "
                f"{preset}:",
                config=(FlagConversionOff,),
            )
            folder = RunFolder(self.out or Path(f"runs/{self.experiment}-{preset}-{config.seed}"))
            folder.start(self.experiment, config)
        if not folder.finished:
            hold_memory()
            with ProgressDisplay(Console(stderr=True), folder.tensorboard) as display:
                folder.perform(experiment, config, display)
        Report((folder.path,))()


@dataclass(frozen=True)
class Pretrain(Run):
    """Pretrain an NC for any table, on synthetic ones: the same as `run pretraining`."""

    # What the NC is for: tables.
    name: Annotated[Positional[str], arg(metavar="KIND", help_behavior_hint="")] = ""

    @property
    def experiment(self) -> str:
        """The experiment that is meant."""
        if self.name != "tables":
            raise ValueError(f"KIND must be tables, got {self.name or 'nothing'}")
        return "pretraining"


@dataclass(frozen=True)
class Report:
    """Draw tables, figures and page of a run again, or compare several runs."""

    # The folders of the runs.
    folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="DIR [DIR ...]")]

    def __post_init__(self) -> None:
        if not self.folders:
            raise ValueError("DIR must be the folder of a run, got nothing")

    def __call__(self) -> None:
        console = _console()
        folders = [RunFolder(folder) for folder in self.folders]
        if len(folders) > 1:
            console.print(to_rich(compare_runs(folders)))
            return
        tables, training = write_report(folders[0])
        for table in tables:
            console.print(to_rich(table))
        if training:
            console.print(f"meta-training: {', '.join(f'{n} {s} s' for n, s in training.items())}")
        console.print(f"report: {folders[0].report}")


@dataclass(frozen=True)
class Scorecard:
    """Put every number that the paper states beside those of finished runs."""

    # The folders of the runs.
    folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="DIR [DIR ...]")]
    # A Markdown file to write.
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None

    def __call__(self) -> None:
        tables = scorecard([RunFolder(folder) for folder in self.folders])
        if self.out is not None:
            text = "\n".join(["# Scorecard\n", *map(to_markdown, tables)])
            write_text(self.out, text)
        else:
            for table in tables:
                _console().print(to_rich(table))


@dataclass(frozen=True, kw_only=True)
class Assess(ModelFiles):
    """Predict how badly a model of yours generalizes, from files of its predictions.

    Files are CSV with a header, parquet (extra: tables) or npz, by their ending.
    """

    nc: str  # A saved NC, or the name of one that ships.
    confidence: float = 0.95  # Of the bound.
    method: Method = "conformal"  # Of the bound.
    # A page (.html), or all numbers (.json).
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None

    def __call__(self) -> None:
        out = self.out
        if out is not None and (out.suffix not in (".html", ".json") or not out.parent.is_dir()):
            wanted = "a .html or .json file in a folder that exists"
            raise ValueError(f"--out must be {wanted}, got {out}")
        nc = find_nc(self.nc)
        assessment, notes = assess_files(nc, self, confidence=self.confidence, method=self.method)
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
        print(assessment)
        if out is not None and out.suffix == ".html":
            write_text(out, assessment.to_html())
        elif out is not None:
            write_json(out, assessment.to_dict())


def _console() -> Console:
    # Piped into a file there is no width to ask for, and eighty columns break the tables.
    return Console() if sys.stdout.isatty() else Console(width=140)


def _parse(kind: Any, words: list[str], **options: Any) -> Any:
    """Parses words by tyro, whose errors become a `ValueError` of one sentence."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(kind, args=words, **options)
    except SystemExit as stop:
        if not stop.code:
            raise
        # What tyro says in a box: between the title or a rule below it and the next rule.
        lines = [line[2:].rstrip("│ ") for line in errors.getvalue().splitlines()[1:]]
        parts = groupby(lines, lambda line: line.strip("─-╯ ") != "")
        text = next(list(part) for is_text, part in parts if is_text)
        said = [line.strip() for line in text if line[:8].strip()]  # help is indented
        raise ValueError(" ".join(said)) from None


if __name__ == "__main__":
    sys.exit(main())
