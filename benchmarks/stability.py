"""In how many of 20 seeds a meta-training learns, and what its learners do meanwhile.

Run as `ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 python benchmarks/stability.py`. For each seed
it prints NC's loss on held-out plain learners after training, divided by that before, and the
largest mean loss of learners that any iteration put into the bank. With `--rows FILE` the direct
head is trained as by the `cpu` preset of `sinusoid` instead, five minutes each (`--iterations 60`:
one minute, with a weight that rises five times as fast): one line of JSON per seed, with R2 on
held-out plain learners; seeds that the file has are not trained again.
"""

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from neural_complexity import MetaLearner, NeuralComplexity, Recipe, Sinusoids, mlp, stream
from neural_complexity.experiments import sinusoid
from neural_complexity.experiments.base.comparison import sinusoid_recipe
from neural_complexity.experiments.base.rows import commit
from neural_complexity.experiments.base.training import Setup, validation_r2
from neural_complexity.meta.nc_loss import nc_loss
from neural_complexity.meta.trainer import MetaTraining

FAMILY = Sinusoids(train_points=5, test_points=7)
RECIPE = Recipe(make=partial(mlp, 1, (8, 8), 1), steps=3, lr=0.05)
BAR = 0.9  # of the loss before, which a run that learned is below


def learner(head: str, seed: int, **sizes: int) -> MetaLearner:
    """Returns the meta-learner of `tests/meta/test_trainer.py`."""
    torch.manual_seed(seed)
    units = FAMILY.sample(64, stream(seed, "units"))
    nc = NeuralComplexity.for_tasks(units, head=head, width=16)
    fixed: dict[str, Any] = {"seed": seed, "lr": 0.01, "capacity": 5000, "batch": 64, "updates": 12}
    return MetaLearner(nc, FAMILY, RECIPE, **{**fixed, **sizes})


def measure(head: str, seed: int) -> tuple[float, float]:
    """Returns NC's loss after training over that before, and the largest mean loss of a bank."""
    meta = learner(head, seed, iterations=50, tasks=64)
    probe = learner(head, seed, iterations=1, tasks=128)
    probe.iterate()
    snapshot, Y_te = probe.bank.sample(500, stream(1, "probe"))
    with torch.no_grad():
        before = nc_loss(meta.nc, snapshot, Y_te).item()
    largest = 0.0
    while not meta.done:
        meta.iterate()
        rows, targets = meta.bank.sample(500, stream(2, "look"))
        largest = max(largest, (rows.H_te - targets).square().mean().item())
    with torch.no_grad():
        return nc_loss(meta.nc, snapshot, Y_te).item() / before, largest


def measure_preset(seed: int, iterations: int) -> dict[str, Any]:
    """Trains the direct head as by the `cpu` preset and returns a row about it."""
    training = replace(sinusoid.PRESETS["cpu"]().direct, iterations=iterations)
    setup = Setup(family=Sinusoids(), recipe=sinusoid_recipe(), seed=seed, device="cpu")
    learners = setup.validation_learners(512)
    nc, inputs = setup.network(training, "direct")
    settings = MetaTraining(**training.learning())
    meta = MetaLearner(nc, setup.family, setup.recipe, seed=seed, training=settings, inputs=inputs)
    plain, largest, worst = validation_r2(learners, nc), 0.0, 1.0
    while not meta.done:
        meta.iterate()
        rows, targets = meta.bank.sample(500, stream(2, "look"))
        largest = max(largest, (rows.H_te - targets).square().mean().item())
        if meta.iteration % 5 == 0 and meta.iteration >= iterations / 2:
            worst = min(worst, validation_r2(learners, nc))
    return {
        "preset": "cpu",
        "head": "direct",
        "seed": seed,
        "iterations": meta.iteration,
        "R2 before": plain,
        "R2 after": validation_r2(learners, nc),
        "worst R2 of the second half": worst,
        "largest mean loss of the bank": largest,
        "commit": commit(),
    }


def preset_rows(path: Path, seeds: range, iterations: int) -> None:
    """Appends the rows of all seeds that a file does not have."""
    known = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for seed in set(seeds) - {row["seed"] for row in known}:
        row = measure_preset(seed, iterations)
        print(row, flush=True)
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def main() -> None:
    """Prints a table of seeds and a summary per head."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--iterations", type=int, default=300)
    arguments = parser.parse_args()
    seeds = range(arguments.seeds)
    torch.set_num_threads(1)
    if arguments.rows is not None:
        return preset_rows(arguments.rows, seeds, arguments.iterations)
    torch.set_default_dtype(torch.float64)
    for head in ("direct", "posterior"):
        found = [measure(head, seed) for seed in seeds]
        print(head, " ".join(f"{ratio:.3f}/{loss:.1f}" for ratio, loss in found))
        ratios = sorted(ratio for ratio, _ in found)
        learned = sum(ratio < BAR for ratio in ratios)
        print(
            f"{head}: {learned} of {len(found)} below {BAR}; median {ratios[len(ratios) // 2]:.3f},"
            f" worst {ratios[-1]:.3f}; largest mean loss {max(loss for _, loss in found):.1f}"
        )


if __name__ == "__main__":
    main()
