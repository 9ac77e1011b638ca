import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("module", "words"), [("tyro", ["list"]), ("torch", ["report", "run"])])
def test_an_interrupt_while_importing_ends_quietly(
    tmp_path: Path, module: str, words: list[str]
) -> None:
    interrupt = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / f"{module}.py").write_text(interrupt)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "neural_complexity.entry", *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
