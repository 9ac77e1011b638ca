import re
from dataclasses import replace
from pathlib import Path

import pytest

from neural_complexity.cli import main
from neural_complexity.experiments.base.rows import Row, write_rows
from neural_complexity.experiments.base.run_folder import RunFolder
from neural_complexity.experiments.base.scorecard import scorecard
from neural_complexity.experiments.sinusoid import EXPERIMENT
from neural_complexity.meta.scores import Estimate

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "docs" / "results"


def make_run(path: Path, rows: list[Row]) -> RunFolder:
    folder = RunFolder(path)
    paper = EXPERIMENT.presets["paper"]()
    folder.start("sinusoid", replace(paper, steps=3, direct=replace(paper.direct, width=64)))
    write_rows(path / "rows.jsonl", rows)
    return folder


def row(value: float, paper: float | None, **keys: str | float) -> Row:
    return Row.of("sinusoid", 0, "test loss", Estimate(value, 0.5, 9), paper, **keys)


def test_each_head_has_its_column_and_settings_are_compared_with_the_papers(tmp_path: Path) -> None:
    rows = [
        row(4.0, 4.5, method="none", step=1),
        row(3.0, None, method="oracle", step=1),
        row(2.0, None, method="NC", head="posterior", step=1),  # found by its keys
        row(1.0, 1.5, method="NC", head="direct", step=1),
        row(7.0, 8.0, method="L2", train_images=10),
    ]
    behind, table = scorecard([make_run(tmp_path / "some", rows)])
    assert table.rows == (
        ("test loss: none, step 1", "4.50", "4.00 ± 0.50", ""),
        ("test loss: NC, step 1", "1.50", "1.00 ± 0.50", "2.00 ± 0.50"),
        ("test loss: L2, train_images 10", "8.00", "7.00 ± 0.50 †", ""),
    )
    assert "steps 3 (16); direct: width 64 (1024)." in table.note
    nc = "50,000 updates of 512; 2,560,000 learners of 3 steps"
    assert behind.rows == (("some", "8192", "3", nc, nc),)


def test_runs_say_whose_ncs_they_take() -> None:
    names = ("sinusoid", "capacity", "maml", "own", "ablation", "search")
    behind, *_ = scorecard([RunFolder(RESULTS / name) for name in names])
    told = {name: ncs for name, _, _, *ncs in behind.rows}
    assert set(told["capacity"]) == {"of runs/single-fashion-mnist"}
    assert told["maml"][0] == (
        "shipped; on other tasks: 3,200 updates of 128; 25,600 learners of 16 steps"
    )
    assert set(told["own"]) == {"for 5min"}
    assert told["ablation"][0] == "of runs/omniglot"
    assert "updates of" in told["ablation"][1]
    assert set(told["search"]) == {"see the run's own page"}


def test_runs_without_numbers_of_the_paper_are_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "some", [row(3.0, None, method="oracle")])
    with pytest.raises(
        ValueError, match="DIR must be runs of which the paper has numbers, got some"
    ):
        scorecard([folder])
    with pytest.raises(ValueError, match="got nothing"):
        scorecard([])


def test_a_run_is_compared_with_the_preset_of_its_own_learners() -> None:
    _, table = scorecard([RunFolder(RESULTS / "single-cifar-10")])
    assert "preset paper-resnet" in table.note
    assert "learner ResNet" not in table.note
    _, table = scorecard([RunFolder(RESULTS / "regularizers")])
    assert table.note.endswith("NCs: the shipped ones, of run sinusoid.")


def test_the_committed_scorecard_is_what_the_command_writes(tmp_path: Path) -> None:
    out = tmp_path / "scorecard.md"
    scored = re.findall(r"^SCORED [:+]= (.*)$", (ROOT / "Makefile").read_text(), flags=re.M)
    runs = [str(RESULTS / name) for name in " ".join(scored).split()]
    assert main(["scorecard", *runs, "--out", str(out)]) == 0
    assert out.read_text() == (RESULTS / "scorecard.md").read_text()
