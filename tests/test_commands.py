import pytest

from neural_complexity import commands
from neural_complexity.cli import Run, main


def test_help_on_a_run_names_its_presets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "tables", "--help"])
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--preset smoke|cpu|gpu" in told


def test_a_run_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="NAME must be one of ablation"):
        commands.run(Run("sinus"), [])
