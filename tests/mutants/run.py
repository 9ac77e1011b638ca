"""Counts how many deliberate bugs are caught: `python tests/mutants/run.py [part of a name ...]`.

Each is applied to a copy of the package, on which the tests that must fail are run. Exits with 1 if
fewer than 95 % are caught.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutants.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("src", "tests", "pyproject.toml", "docs", "README.md", "examples", "benchmarks")
BAR = 0.95
PASSED, FAILED = 0, 1  # exit codes of pytest; others mean that no test was run


def main() -> None:
    """Applies the bugs one by one and prints what was caught."""
    chosen = [m for m in MUTANTS if not sys.argv[1:] or any(w in m.name for w in sys.argv[1:])]
    caught = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            copy_part = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy_part(ROOT / name, copy / name)
        for mutant in chosen:
            start = time.perf_counter()
            code = try_mutant(copy, mutant)
            caught += code == FAILED
            said = {PASSED: "MISSED", FAILED: "caught"}.get(code, f"BROKEN (pytest {code})")
            print(f"{said}  {mutant.name}  {time.perf_counter() - start:.0f} s", flush=True)  # noqa: T201
    print(f"{caught} of {len(chosen)} caught")  # noqa: T201
    sys.exit(caught < BAR * len(chosen))


def try_mutant(copy: Path, mutant: Mutant) -> int:
    """Returns the exit code of pytest on a package with one bug, which is then undone."""
    path = copy / "src" / "neural_complexity" / mutant.file
    text = path.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.name}: {text.count(mutant.old)} places in {path}"
    path.write_text(text.replace(mutant.old, mutant.new))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    variables = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [*command, *mutant.tests.split()],
            cwd=copy,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        path.write_text(text)
    if done.returncode not in (PASSED, FAILED) or os.environ.get("SHOW"):
        print(done.stdout[-3000:], done.stderr[-1000:])  # noqa: T201
    return done.returncode


if __name__ == "__main__":
    main()
