import io
from pathlib import Path

import pytest
from rich.console import Console

from neural_complexity.experiments.base.run_folder import RunFolder
from neural_complexity.progress import ProgressDisplay

NEWS = ("posterior", 3, 12, 6.0, {"loss": 0.25, "R2": float("nan"), "bank": 1200, "dropped": 0})


def test_a_terminal_shows_a_bar_with_time_left_and_metrics(tmp_path: Path) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=140)
    with ProgressDisplay(console, RunFolder(tmp_path).tensorboard) as display:
        display(*NEWS)
    shown = screen.getvalue()
    for fact in ("posterior", "3/12", "18 s left", "loss 0.2500", "R2 -", "bank 1,200"):
        assert fact in shown


def test_elsewhere_there_are_a_few_plain_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ProgressDisplay(Console(file=io.StringIO()), RunFolder(tmp_path).tensorboard) as display:
        display(*NEWS)  # too early for a line
        display("posterior", 12, 12, 24.0, {"loss": 0.125})
    assert capsys.readouterr().err.splitlines() == ["posterior 12/12  done  loss 0.1250"]
