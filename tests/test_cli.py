import json
import os
import resource
import shutil
import subprocess
import sys
import time
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from neural_complexity.cli import main
from neural_complexity.experiments.base.experiment import experiment_names
from neural_complexity.experiments.base.rows import read_rows
from neural_complexity.model.network import NeuralComplexity

pytestmark = pytest.mark.usefixtures("single_precision")

NAMES = ", ".join(experiment_names())
TINY = [
    "--preset=smoke",
    "--eval-tasks=64",
    *(
        f"--{head}.{field}={value}"
        for head in ("posterior", "direct")
        for field, value in (("iterations", 12), ("tasks", 16), ("capacity", 900), ("updates", 4))
    ),
]


def command(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "neural_complexity.cli", *arguments]
    return subprocess.run(line, check=False, capture_output=True, text=True, **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    done = command("run", "sinusoid", *TINY, "--out", str(folder))
    assert done.returncode == 0, done.stderr
    # No bars where nobody watches: a few plain lines, the table on standard output.
    assert "posterior 12/12" in done.stderr
    assert "\x1b" not in done.stderr + done.stdout
    for word in ("Test loss after learner steps", "the paper's NC", "oracle", "report.html"):
        assert word in done.stdout
    return folder


def test_a_run_leaves_all_its_files_and_nothing_unfinished(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert {
        "config.json",
        "rows.jsonl",
        "run.json",
        "figures",
        "report.html",
        "tables.md",
        "nc-posterior.safetensors",
        "nc-direct.safetensors",
        "tensorboard",
    } <= names
    assert "work" not in names
    assert {path.name for path in (finished / "figures").glob("*.png")} == {
        "gap-fit.png",
        "learning-curves.png",
        "meta-training.png",
        "tasks.png",
    }
    assert list((finished / "tensorboard").iterdir())
    nc = NeuralComplexity.load(finished / "nc-posterior.safetensors")
    assert nc.provenance["config"]["seed"] == 0
    page = (finished / "report.html").read_text()
    losses = [row for row in read_rows(finished / "rows.jsonl") if row.metric == "test loss"]
    assert f"{losses[0].value:.2f} ± {losses[0].ci95:.2f}" in page


def test_the_report_can_be_drawn_again_and_its_path_is_printed_as_it_is(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a[/b]c"
    shutil.copytree(finished, folder)
    (folder / "report.html").unlink()
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.html").read_text() == (finished / "report.html").read_text()
    assert f"report: {folder / 'report.html'}" in capsys.readouterr().out


def test_killed_after_a_checkpoint_and_resumed_the_rows_are_the_same(
    finished: Path, tmp_path: Path, forkserver: ForkServerContext
) -> None:
    folder = tmp_path / "killed"  # the campaign of `chaos` kills at all other moments
    line = ["run", "sinusoid", *TINY, "--out", str(folder)]
    process = forkserver.Process(target=main, args=(line,))
    process.start()
    deadline = time.monotonic() + 120
    while not (folder / "work/posterior/checkpoint.safetensors").exists():
        assert time.monotonic() < deadline
        assert process.is_alive()
        time.sleep(0.002)
    process.kill()
    process.join()
    assert main(["run", "sinusoid", "--resume", str(folder)]) == 0
    assert (folder / "rows.jsonl").read_text() == (finished / "rows.jsonl").read_text()


def test_a_start_that_was_killed_leaves_room_for_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".config.json.x3f.nc-part").touch()  # killed before the config had its name
    assert main(["run", "sinusoid", *TINY, "--out", str(tmp_path), "--posterior.lr", "1e30"]) == 1
    told = capsys.readouterr().err
    assert "--out must be" not in told
    # With such a learning rate NC's loss soon is not finite.
    assert "error: the loss must be finite" in told.splitlines()[-1]


def test_damaged_files_of_a_run_are_told_in_one_sentence(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damages = {
        "figures.safetensors": b"x",
        "run.json": b"{}",
        "rows.jsonl": b"",
        "config.json": b"[]",
    }
    for name, content in damages.items():
        folder = tmp_path / name
        shutil.copytree(finished, folder)
        (folder / name).write_bytes(content)
        assert main(["report", str(folder)]) == 1
        message = capsys.readouterr().err
        assert len(message.splitlines()) == 1
        assert message.startswith(f"error: {folder}")


def test_a_truncated_checkpoint_is_told_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert main(["run", "sinusoid", *TINY, "--out", str(folder), "--direct.lr", "1e30"]) == 1
    checkpoint = folder / "work" / "posterior" / "checkpoint.safetensors"
    os.truncate(checkpoint, 1000)
    assert main(["run", "sinusoid", "--resume", str(folder)]) == 1
    sentence = f"error: {checkpoint} must be a safetensors file, got a damaged one"
    assert sentence in capsys.readouterr().err


def test_resuming_a_finished_run_only_reports(finished: Path) -> None:
    before = (finished / "rows.jsonl").stat().st_mtime_ns
    assert main(["run", "sinusoid", "--resume", str(finished)]) == 0
    assert (finished / "rows.jsonl").stat().st_mtime_ns == before


@pytest.mark.parametrize("words", [["--help"], ["list"], ["trian"], ["assess", "--out", "x"]])
def test_help_and_errors_do_not_wait_for_libraries(words: list[str]) -> None:
    code = (
        "import contextlib, sys; from neural_complexity.cli import main\n"
        f"with contextlib.suppress(SystemExit): main({words!r})\n"
        "print(sorted({'torch', 'pandas', 'numpy', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_experiments_and_what_ships_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line]
    assert listed == [*experiment_names(), "NCs", *NeuralComplexity.pretrained_names()]


def test_help_shows_every_field_of_the_config(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["run", "sinusoid", "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for word in ("--preset", "--resume", "--seed", "--posterior.width"):
        assert word in text
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert "--resume DIR" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "cosine"], f"NAME must be one of {NAMES}, got cosine"),
        (["run"], f"NAME must be one of {NAMES}, got nothing"),
        (
            ["run", "sinusoid", "--preset", "huge"],
            "--preset must be one of smoke, cpu, paper, paper-wiring, got huge",
        ),
        (["run", "sinusoid", "--resume", "nowhere"], "nowhere must be the folder of a run"),
        (
            ["run", "sinusoid", "--resume", ".", "--seed", "3"],
            "--resume keeps the config of its run",
        ),
        (["run", "sinusoid", "--out", "full"], "--out must be a new or empty folder, got full"),
        (["report", "nowhere"], "nowhere must be the folder of a run, got no config.json there"),
        (["report", "full"], "full must be the folder of a run"),
        (["report", "broken"], "broken/config.json must hold JSON, got something else"),
        (["report", "foreign"], f"foreign must be a run of {NAMES}, got weather"),
        (["report", "started"], "started/rows.jsonl must hold the rows of a finished run"),
        (
            ["run", "sinusoid", "--resume", "foreign"],
            "--resume must be a run of sinusoid, got one of weather",
        ),
        (["run", "sinusoid", "--resume", "started"], "a config must have the fields of Config"),
    ],
)
def test_bad_input_gets_one_sentence_and_an_exit_code(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("full", "broken", "foreign", "started"):
        Path(folder).mkdir()
    Path("full/thesis.tex").touch()
    Path("broken/config.json").write_text("{")
    content = {"experiment": "weather", "commit": "c", "config": {}}
    Path("foreign/config.json").write_text(json.dumps(content))
    Path("started/config.json").write_text(json.dumps({**content, "experiment": "sinusoid"}))
    before = sorted(tmp_path.rglob("*"))
    assert main(arguments) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("error: ")
    assert sentence in message
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--posterior.depth", "3"], "Unrecognized options: --posterior.depth"),
        (["--posterior.width", "wide"], "invalid literal for int()"),
        (["--posterior.capacity", "0"], "capacity must be at least 1, got 0"),
        (["--device", "abacus"], "device must be one that works here, got abacus"),
    ],
)
def test_bad_fields_are_refused_before_anything_is_written(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "sinusoid", *arguments]) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert len(message.splitlines()) == 1
    assert sentence in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Expected one of {list, run, pretrain, report, scorecard, assess, monitor}"),
        (["train"], "Expected one of {list, run, pretrain, report, scorecard, assess, monitor}"),
        (["list", "all"], "unrecognized arguments: all"),
        (["report"], "DIR must be the folder of a run, got nothing"),
        (["assess", "--nc", "digits"], "Missing from neural-complexity assess: --train PATH"),
        (["assess", "--nc", "digits", "--method", "hope"], "invalid choice 'hope'"),
    ],
)
def test_words_that_are_no_command_get_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert sentence in line
    assert len(line) < 200


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(ValueError, match="nowhere must be the folder of a run"):
        main(["report", "nowhere", "--debug"])


@pytest.mark.parametrize("room", [100, 30_000])
def test_without_room_on_disk_there_is_one_sentence_and_no_half_written_file(
    tmp_path: Path, room: int
) -> None:
    """A limit on file sizes fails the same calls as a full disk: the config, then the bank."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    folder = tmp_path / "run"
    done = command("run", "sinusoid", *TINY, "--out", str(folder), preexec_fn=limit)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: [Errno")
    whole = [path for path in folder.rglob("*") if path.is_file()]
    left = {path.name for path in whole if "tensorboard" not in path.parts}
    assert left <= {"config.json"}
    if room == 100:
        assert not folder.exists()
    else:  # with room again, the same folder goes on
        assert main(["run", "sinusoid", "--resume", str(folder)]) == 0
