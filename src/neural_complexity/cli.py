"""The command `neural-complexity`: what can be typed. `commands` does it, and loads much more."""

import ast
import contextlib
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import FlagCreatePairsOff, Positional, arg

import neural_complexity
from neural_complexity.assessment.model_files import ModelFiles, StreamFiles
from neural_complexity.cores import passive_threads
from neural_complexity.entry import load_quietly
from neural_complexity.model.shipped import SHIPPED
from neural_complexity.reliability.methods import Method

__all__ = ["PROGRAM", "Assess", "Monitor", "Report", "Run", "Scorecard", "main", "parse"]

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
        command, rest = parse(
            List | Run | Pretrain | Report | Scorecard | Assess | Monitor,
            [word for word in words if word not in later],
            return_unknown_args=True,
            prog=PROGRAM,
            description="Learn to predict the generalization gap, and train better models with it. "
            "--debug after any command shows the traceback of an error.",
            config=(FlagCreatePairsOff,),
        )
        if rest and not isinstance(command, Run):
            raise ValueError(f"unrecognized arguments: {' '.join(rest)}")
        code = 2 if isinstance(command, Assess | Monitor) else 1
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
        """Reads what the modules say of themselves; to import them would take seconds."""
        for path in sorted((Path(neural_complexity.__file__).parent / "experiments").glob("*.py")):
            if path.stem != "__init__":
                said = ast.get_docstring(ast.parse(path.read_text())) or ""
                print(f"{path.stem:14} {said.splitlines()[0]}")
        print("\nNCs that ship with the package, for NeuralComplexity.pretrained(NAME):")
        for name, judges in SHIPPED.items():
            print(f"{name:18} {judges}")


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
        """Runs it; the fields are those of its config."""
        _commands().run(self, fields)


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
        """Shows the report."""
        _commands().report(self.folders)


@dataclass(frozen=True)
class Scorecard:
    """Put every number that the paper states beside those of finished runs."""

    # The folders of the runs.
    folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="DIR [DIR ...]")]
    # A Markdown file to write.
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None

    def __call__(self) -> None:
        """Shows or writes the table."""
        _commands().score(self)


@dataclass(frozen=True, kw_only=True)
class Assess(ModelFiles):
    """Predict how badly a model of yours generalizes, from files of its predictions.

    Files are CSV with a header, parquet (extra: tables) or npz, by their ending.
    """

    nc: Annotated[str | None, arg(metavar="NC", help_behavior_hint="")] = None
    """A saved NC, or the name of one that ships; if left out, the one for any table, of labels
    where predictions have several columns and of numbers where they have one."""
    confidence: float = 0.95  # Of the bound and of intervals.
    method: Method = "conformal"  # Of the bound, unless the NC is for tables.
    metrics: tuple[str, ...] = ()  # For an NC for tables: names of scikit-learn's scorers.
    out_of_fold: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """For an NC for tables: predictions for the training rows, in order, by models that did not
    learn from them, as of cross_val_predict. They correct the estimate where NC is off."""
    # A page (.html), or all numbers (.json).
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None

    def __call__(self) -> None:
        """Assesses, and writes what is asked for."""
        _check_out(self.out, ".html", ".json")
        _commands().assess(self)


@dataclass(frozen=True, kw_only=True)
class Monitor(StreamFiles):
    """Predict how a model of yours does over time, from files of its predictions, with alarms.

    The first chunk of the stream is the reference that others are compared with, unless there are
    predictions out of fold.
    """

    nc: Annotated[str | None, arg(metavar="NC", help_behavior_hint="")] = None
    """A saved NC for tables; if left out, the one that ships."""
    confidence: float = 0.95  # Of intervals.
    false_alarms: float = 0.05  # How often a chunk like the reference may raise an alarm.
    metrics: tuple[str, ...] = ()  # Names of scikit-learn's scorers.
    out_of_fold: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Predictions for the training rows by models that did not learn from them: the reference."""
    # A page (.html), or a row for each chunk (.csv).
    out: Annotated[Path, arg(metavar="FILE")] = Path("monitor.html")

    def __call__(self) -> None:
        """Monitors, and writes what is asked for."""
        _check_out(self.out, ".html", ".csv")
        _commands().monitor(self)


def _check_out(out: Path | None, *kinds: str) -> None:
    """Refuses a file that cannot be written, before the work is done."""
    if out is not None and (out.suffix not in kinds or not out.parent.is_dir()):
        wanted = f"a {' or '.join(kinds)} file in a folder that exists"
        raise ValueError(f"--out must be {wanted}, got {out}")


def _commands() -> Any:
    """Returns the module that does the work; help and errors do not wait for it."""
    with passive_threads():  # of torch, which is loaded with it
        return load_quietly("neural_complexity.commands")


def parse(kind: Any, words: list[str], **options: Any) -> Any:
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
