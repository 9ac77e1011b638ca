"""An iteration of meta-training beside another busy process, over one on a quiet machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from neural_complexity.cores import COUNTS, POLICY, free_cores, hold_memory, passive_threads
from neural_complexity.experiments.base.training import Setup
from neural_complexity.experiments.sinusoid import PRESETS
from neural_complexity.meta.trainer import MetaLearner, MetaTraining
from neural_complexity.tasks.families import Sinusoids
from timing import Ratio, seconds_each, show

ITERATIONS, ROUNDS = 4, 3  # timed in each process; processes of each kind


def iteration_seconds(preset: str) -> float:
    """Returns the best time of an iteration of `run sinusoid`, with the threads of this process."""
    hold_memory()
    config = PRESETS[preset]()
    own = config.posterior
    setup = Setup(Sinusoids(), config.recipe(), 0, "cpu", units=64)
    nc, _ = setup.network(own, "posterior")
    # None is the last, and all learners are regularized: each iteration costs the same.
    plan = MetaTraining(**{**own.learning(), "iterations": 10**6, "ramp": 0.0})
    meta = MetaLearner(nc, setup.family, setup.recipe, seed=0, training=plan)
    return seconds_each(meta.iterate, rounds=ITERATIONS, warmup=1)[0]


@contextmanager
def busy_process() -> Iterator[None]:
    """Keeps one core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measured(preset: str, way: str) -> float:
    """Measures in a process of its own: OpenMP reads its settings when it is loaded."""
    line = [sys.executable, __file__, preset, way]
    with passive_threads() if way == "commands" else nullcontext():
        own = {n: v for n, v in os.environ.items() if n not in COUNTS}
        done = subprocess.run(line, env=own, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def main(preset: str) -> None:
    # As commands start, and what torch does by itself: a thread for each core, all of which spin.
    kinds = [(way, load) for way in ("commands", "torch") for load in ("quiet", "busy")]
    best = dict.fromkeys(kinds, float("inf"))
    for _ in range(ROUNDS):
        for way, load in kinds:
            with busy_process() if load == "busy" else nullcontext():
                best[way, load] = min(best[way, load], measured(preset, way))
    note = ", ".join(f"{way}, {load} {s * 1e3:.0f} ms" for (way, load), s in best.items())
    ours, theirs = (best[way, "busy"] / best[way, "quiet"] for way in ("commands", "torch"))
    cost = best["commands", "quiet"] / best["torch", "quiet"]
    show(
        [
            Ratio("iteration beside a busy process over alone", ours, "<= 3", ours <= 3, note),
            Ratio("the same with threads as torch starts them", theirs, "none", True, ""),
            Ratio("iteration alone: as commands start over torch", cost, "<= 1.1", cost <= 1.1, ""),
        ]
    )


if __name__ == "__main__":
    if POLICY in os.environ and len(sys.argv) < 3:
        raise SystemExit(f"{POLICY} must not be set, got {os.environ[POLICY]}")
    if len(sys.argv) < 3:
        main(*(sys.argv[1:] or ["cpu"]))
    else:
        if sys.argv[2] == "commands" and (free := free_cores()) is not None:
            torch.set_num_threads(free)
        print(iteration_seconds(sys.argv[1]))
