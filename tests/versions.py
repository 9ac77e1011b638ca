"""Runs a part of the tests with other versions of what is required, in a throw-away environment.

`python tests/versions.py floors` takes the lowest that pyproject.toml allows, `newest` whatever pip
finds today. PyTorch is the pinned one both times: others come with gigabytes of CUDA.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("tensorboard", "tables", "lightning", "onnx", "weightwatcher")
# What touches these packages: files, frames, estimators, pages, command line and extras.
PART = ["test_public.py", "test_files.py", "test_cli.py", "test_progress.py", "convert"]
PART += ["assessment", "baselines", "integrations", "model/test_export.py", "model/test_shipped.py"]
PART += ["regularizers/test_loop.py", "tasks/test_image_datasets.py"]
PART += ["experiments/base/test_plots.py", "experiments/base/test_run_folder.py"]


def main(which: str) -> int:
    """Installs the versions, runs the part and returns its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        limits, venv = Path(folder, "limits.txt"), Path(folder, "venv")
        python = str(venv / "bin" / "python")
        limits.write_text("\n".join([pinned_torch(), *(floors() if which == "floors" else [])]))
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        pip = [python, "-m", "pip", "--quiet"]
        package = f"{ROOT}[{','.join(EXTRAS)}]"
        asked = ["install", "--constraint", str(limits), package, "pytest", "hypothesis"]
        subprocess.run([*pip, *asked], check=True)
        subprocess.run([*pip, "freeze"], check=True)
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        variables.pop("PYTHONPATH", None)
        # Other versions of what they are made with warn of what is not ours.
        command = [
            python,
            "-m",
            "pytest",
            "-o",
            "filterwarnings=",
            "-p",
            "no:cacheprovider",
            *(f"tests/{p}" for p in PART),
        ]
        return subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode


def pinned_torch() -> str:
    """Returns the line of constraints.txt that pins PyTorch."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def floors() -> list[str]:
    """Returns the lowest version of everything but PyTorch that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    every = [*project["dependencies"], *(line for name in EXTRAS for line in extras[name])]
    return [re.sub(">=", "==", line) for line in every if not line.startswith("torch>")]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
