"""Attacks the library for some minutes: `python tests/chaos/run.py [--minutes 20] [--seed 0]`.

Writes a line for each attack to a log, shows a table, and exits with 1 if anything failed. Attacks
on runs and attacks by fuzzed inputs are two processes. `--only kills` makes some of the attacks.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # a fork has one thread
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from chaos.children import Attempt, Tally, fuzz
from chaos.damage import flip_bits, send_hostile
from chaos.kills import Target, attack, double, fill_disk, kill, kill_workers
from chaos.odd_calls import call_oddly
from chaos.runs import WORKERS, works
from chaos.specimens import collect
from neural_complexity.experiments.base.rows import commit

BATCH = 400  # fuzzed inputs of one child
# Attacks, and their shares of the time that is left when their turn comes.
ON_RUNS = {"kills": 0.55, "kills of workers": 0.35, "two at once": 0.5, "full disk": 1.0}
BY_INPUTS = {"flipped bits": 0.5, "hostile headers": 0.5, "odd calls": 1.0}


def main() -> None:
    """Makes all attacks and says what failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[*ON_RUNS, *BY_INPUTS])
    parser.add_argument("--work", nargs="*", help="names of experiments, or meta_learn")
    parser.add_argument("--log", type=Path, default=Path("chaos.jsonl"))
    given = parser.parse_args()
    print(f"seed {given.seed}, commit {commit()}, {given.minutes} minutes", flush=True)  # noqa: T201
    given.log.unlink(missing_ok=True)
    campaign(given.minutes, given.seed, given.log, only=given.only, work=given.work)
    tallies = [json.loads(line) for line in given.log.read_text().splitlines()]
    print(summary(tallies))  # noqa: T201
    sys.exit(any(tally["failed"] for tally in tallies) or len(tallies) < len(given.only))


def campaign(
    minutes: float, seed: int, log: Path, *, only: list[str], work: list[str] | None = None
) -> None:
    """Makes attacks in two processes, and appends a line for each to a log."""
    torch.set_num_threads(1)
    until, lanes = time.perf_counter() + 60 * minutes, []
    for lane in (partial(attack_runs, work), attack_by_inputs):
        pid = os.fork()
        if not pid:
            folder = Path(tempfile.mkdtemp(prefix="chaos-", dir=_memory_folder()))
            code = 1
            try:
                lane(folder, seed, until, only, partial(append, log))
                code = 0
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                sys.stderr.flush()
                os._exit(code)
        lanes.append(pid)
    for pid in lanes:
        os.waitpid(pid, 0)


def _memory_folder() -> str | None:
    """Returns where files are not on a disk, if there is such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def append(log: Path, tally: Tally) -> None:
    """Appends a line to the log."""
    print(f"{tally.attack}: {tally.tried} tried, {tally.failed} failed", flush=True)  # noqa: T201
    with log.open("a") as file:
        file.write(json.dumps({**asdict(tally), "commit": commit()}) + "\n")


def attack_runs(
    names: list[str] | None,
    folder: Path,
    seed: int,
    until: float,
    only: list[str],
    done: Callable[[Tally], None],
) -> None:
    """Kills runs, doubles them, and fills their disk."""
    chosen = {name: share for name, share in ON_RUNS.items() if name in only}
    if not chosen:
        return
    targets = list(map(Target, works(folder, names)))
    attacks = {"kills": kill, "kills of workers": kill_workers}
    attacks |= {"two at once": double, "full disk": fill_disk}
    for name, share in chosen.items():
        tally, start = Tally(name, seed), time.perf_counter()
        which = [t for t in targets if (t.work.name == WORKERS) == (attacks[name] is kill_workers)]
        attack(tally, which, folder, start + share * (until - start), attacks[name])
        tally.spent = round(time.perf_counter() - start, 1)
        done(tally)


def attack_by_inputs(
    folder: Path, seed: int, until: float, only: list[str], done: Callable[[Tally], None]
) -> None:
    """Fuzzes whatever reads files or arguments."""
    makers: dict[str, Callable[[], Attempt]] = {
        "flipped bits": lambda: flip_bits(collect(folder), folder, seed),
        "hostile headers": lambda: send_hostile(folder, seed),
        "odd calls": lambda: call_oddly(seed),
    }
    for name, share in BY_INPUTS.items():
        if name in only:
            tally, start, number = Tally(name, seed), time.perf_counter(), 0
            attempt, end = makers[name](), start + share * (until - start)
            while time.perf_counter() < end:
                threads = 4 if name == "odd calls" else 1
                fuzz(tally, attempt, range(number, number + BATCH), threads=threads)
                number += BATCH
            tally.spent = round(time.perf_counter() - start, 1)
            done(tally)


def summary(tallies: list[dict[str, object]]) -> str:
    """Returns a table of the attacks."""
    lines = [f"{'attack':18} {'tried':>8} {'failed':>7} {'most s':>7} {'most MB':>8}  counted"]
    for t in tallies:
        numbers = f"{t['tried']:>8} {t['failed']:>7} {t['seconds']:>7} {t['megabytes']:>8}"
        lines.append(f"{t['attack']:18} {numbers}  {t['counts'] or ''}")
        failures = t["failures"]
        assert isinstance(failures, dict)
        lines += [f"    {count} x {first}" for count, first in failures.values()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
