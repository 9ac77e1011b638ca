"""Meta-training from one worker to ten thousand: measured constants, and a simulation with them.

`python scaling.py measure` measures times, on a machine that does nothing else, and `lags` what a
lag costs in accuracy, on any; both write rows. `write` draws the tables of `docs/scaling.md`.
"""

import heapq
import json
import os
import pickle
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

import collectors
from neural_complexity.assessment.report import Table, to_markdown
from neural_complexity.cores import hold_memory
from neural_complexity.experiments.base.experiment import load_experiment
from neural_complexity.experiments.base.rows import commit
from neural_complexity.experiments.base.training import Setup, minutes, validation_r2
from neural_complexity.files import write_text
from neural_complexity.meta.bank import MemoryBank, to_arrays
from neural_complexity.meta.executor import CollectionQueue, ProcessPool
from neural_complexity.meta.trainer import MetaLearner, MetaTraining, meta_train
from neural_complexity.snapshot import Snapshot
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.tasks.splits import own_digits, split_tasks
from timing import seconds_each

DOCS = Path(__file__).parent.parent / "docs"
ROWS, PAGE = DOCS / "results" / "scaling.jsonl", DOCS / "scaling.md"
MARKS = "<!-- tables -->\n", "<!-- end of tables -->\n"
LINK = 125e6  # bytes per second of the trainer's network, 1 Gbit/s
LAGS, SEEDS = (0, 1, 4, 16, 64), (0, 1, 2)
WORKERS = (1, 2, 10, 100, 10_000)
GPU = 50  # cores that update NC as fast: assumed, not measured
TRAINERS = {"1 trainer": 1, "2 trainers": 2, "8 trainers": 8, "a GPU": GPU, "8 GPUs": 8 * GPU}


@dataclass(frozen=True)
class Costs:
    """What one iteration costs."""

    collect: float  # seconds of a worker
    update: float  # seconds of the trainer, for all updates of an iteration
    seam: float  # seconds of the trainer to publish, submit and take
    version_bytes: int  # of NC's weights, to a worker
    collection_bytes: int  # back

    def alone(self) -> float:
        """Returns the seconds of an iteration in one process."""
        return self.collect + self.update


def simulate(costs: Costs, workers: int, lag: int, *, trainers: int = 1) -> float:
    """Returns the seconds of an iteration, in the long run, with workers on other machines.

    A job goes to the worker that is free first. Weights go out and collections come in one after
    another, over a link of `LINK` bytes per second each way. Trainers share all updates equally.
    """
    jobs = 20 * max(workers, lag + 1)
    free, out, back, end = [0.0] * workers, 0.0, 0.0, 0.0
    starts, arrivals = list[float](), list[float]()
    for index in range(jobs):
        starts.append(end)  # now the version of this iteration is published
        for job in range(len(arrivals), min(jobs, index + lag + 1)):
            asked = max(starts[max(0, job - lag)], heapq.heappop(free))
            out = max(asked, out) + costs.version_bytes / LINK
            heapq.heappush(free, out + costs.collect)
            back = max(out + costs.collect, back) + costs.collection_bytes / LINK
            arrivals.append(back)
        end = max(end, arrivals[index]) + costs.seam + costs.update / trainers
    half = jobs // 2
    return (end - starts[half]) / (jobs - half)


def measure_costs(rounds: int) -> tuple[Costs, int]:
    """Measures an iteration of one dataset's NC on one core, where collecting is half of it."""
    updates = collectors.balance()
    queues = [CollectionQueue(collectors.collector()) for _ in range(2)]
    alone, both = (collectors.learner(q, 0, n) for q, n in zip(queues, (0, updates), strict=True))
    collecting, whole = seconds_each(alone.iterate, both.iterate, rounds=rounds)
    with ProcessPool() as pool:
        passing = collectors.seam_seconds(alone, pool, rounds=10 * rounds)
    rows = alone.collections.take(alone.iteration)
    sizes = len(pickle.dumps(alone.nc)), sum(a.nbytes for a in to_arrays(*rows).values())
    return Costs(collecting, whole - collecting, passing, *sizes), updates


def measure_workers(updates: int, workers: int, iterations: int) -> float:
    """Returns the seconds of an iteration with worker processes on this machine."""
    with ProcessPool(workers) as pool:
        queue = CollectionQueue(collectors.collector(), pool)
        meta = collectors.learner(queue, 2 * workers, updates)
        for _ in range(2 * workers + 1):
            meta.iterate()
        start = time.perf_counter()
        for _ in range(iterations):
            meta.iterate()
        return (time.perf_counter() - start) / iterations


def measure_lag(lag: int, seed: int, iterations: int) -> float:
    """Returns R2 on held-out learners of sinusoids after a training with a lag."""
    config = load_experiment("sinusoid").presets["cpu"]()
    setup = Setup(Sinusoids(), config.recipe(), seed, "cpu")
    training = minutes(iterations=iterations)
    nc, inputs = setup.network(training, "posterior")
    own = MetaTraining(**training.learning(), lag=lag)
    learner = MetaLearner(nc, setup.family, setup.recipe, seed=seed, training=own, inputs=inputs)
    score = partial(validation_r2, setup.validation_learners(training.validation_tasks))
    return meta_train(learner, score)[-1].r2


def row_bytes() -> dict[str, int]:
    """Returns the bytes of a bank's row, by experiment; images and labels are whole numbers."""
    few = load_experiment("omniglot").presets["cpu"]()
    single = load_experiment("single").presets["cpu"]()

    def row(M: int, N: int, outputs: int, inputs: torch.Tensor) -> int:
        """Inputs and targets are like these, (), or (D,)."""
        X_tr, X_te = (inputs.expand(1, points, *inputs.shape) for points in (M, N))
        H_tr, H_te = (torch.zeros(1, points, outputs) for points in (M, N))
        Y_tr, Y_te = (X_tr, X_te) if inputs.ndim == 0 else (H_tr, H_te)
        snapshot = Snapshot(X_tr, Y_tr, H_tr, X_te, H_te)
        return MemoryBank(snapshot, Y_te, capacity=1).row_bytes

    family, image = Sinusoids(), torch.tensor(0)
    shown = few.ways * few.shots, few.ways * few.train_queries
    digits = split_tasks(*own_digits()[:2])
    found = {
        "on sinusoids, and all families of harm": row(
            family.train_points, family.test_points, 1, torch.zeros(1)
        ),
        "omniglot": row(*shown, few.ways, image),
        "own, and digits and images of measures": row(digits.M, digits.N, 10, image),
    }
    for head in ("posterior", "direct"):
        own = getattr(single, head)
        found[f"single, {head} head"] = row(own.M, own.N, 10, image)
    return found


def measure(rounds: int = 4, iterations: int = 12) -> None:
    """Measures seconds and bytes; minutes of a quiet machine."""
    hold_memory()
    torch.set_num_threads(1)
    costs, updates = measure_costs(rounds)
    rows: list[dict[str, Any]] = [{"what": "costs", "updates": updates, **asdict(costs)}]
    for workers in (1, 2):
        seconds = measure_workers(updates, workers, iterations)
        own = {"workers": workers, "cores": os.cpu_count()}
        rows.append({"what": "workers", **own, "seconds": seconds})
    rows += [{"what": "row", "experiment": n, "bytes": size} for n, size in row_bytes().items()]
    replace(rows)


def lags(iterations: int = 120) -> None:
    """Measures accuracy by lag with several seeds; an hour of one core."""
    torch.set_num_threads(1)
    cases = [{"lag": lag, "seed": seed} for seed in SEEDS for lag in LAGS]
    replace(
        [{"what": "lag", **own, "r2": measure_lag(**own, iterations=iterations)} for own in cases]
    )


def replace(rows: list[dict[str, Any]]) -> None:
    """Writes rows in the place of all of the same kinds."""
    kinds = {row["what"] for row in rows}
    kept = [row for row in read() if row["what"] not in kinds]
    new = [{**row, "commit": commit()} for row in rows]
    write_text(ROWS, "".join(json.dumps(row) + "\n" for row in kept + new))


def read() -> list[dict[str, Any]]:
    """Returns all rows."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def tables(rows: list[dict[str, Any]]) -> list[Table]:
    """Returns the tables of the page."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_kind.setdefault(row["what"], []).append(row)
    costs = Costs(**{f.name: by_kind["costs"][0][f.name] for f in fields(Costs)})
    constants = (
        ("a collection", f"{costs.collect:.3f} s", f"{costs.collection_bytes / 1e6:.2f} MB back"),
        (f"{by_kind['costs'][0]['updates']} updates of NC", f"{costs.update:.3f} s", ""),
        ("a version of NC's weights", "", f"{costs.version_bytes / 1e6:.2f} MB to a worker"),
        ("the seam: publish, submit, take", f"{costs.seam * 1e3:.1f} ms", ""),
    )
    compared, scaled = [], []
    for row in by_kind["workers"]:
        # A machine does no more than its cores can.
        limit = costs.alone() / row["cores"]
        predicted = max(limit, simulate(costs, row["workers"], 2 * row["workers"]))
        off = f"{100 * (predicted / row['seconds'] - 1):+.0f} %"
        speed = f"{costs.alone() / row['seconds']:.2f}"
        cells = (f"{row['seconds']:.3f} s", f"{predicted:.3f} s", off, speed)
        compared.append((str(row["workers"]), *cells))
    for workers in WORKERS:
        times = [simulate(costs, workers, 2 * workers, trainers=n) for n in TRAINERS.values()]
        scaled.append((f"{workers:,}", *(f"{costs.alone() / seconds:,.1f}" for seconds in times)))
    r2 = [[row["r2"] for row in by_kind["lag"] if row["lag"] == lag] for lag in LAGS]
    by_lag = tuple(
        (str(lag), *(f"{v:.4f}" for v in own)) for lag, own in zip(LAGS, r2, strict=True)
    )
    sizes = tuple((row["experiment"], f"{row['bytes']:,}") for row in by_kind["row"])
    link = f"A link of {LINK * 8e-9:.0f} Gbit/s at the trainer; a lag of twice the workers. "
    link += f"A trainer is one core; a GPU is assumed to be as fast as {GPU} of them."
    return [
        Table("What an iteration costs, on one core", ("what", "time", "bytes"), constants),
        Table(
            "An iteration with workers of this machine",
            ("workers", "measured", "simulated", "off by", "times one process"),
            tuple(compared),
            "Simulated is the simulation, or what all cores together can do if that is slower.",
        ),
        Table(
            "Iterations per second, over those of one process; simulated",
            ("workers", *TRAINERS),
            tuple(scaled),
            link,
        ),
        Table(
            "R2 on held-out learners of sinusoids, by lag",
            ("lag", *(f"seed {seed}" for seed in SEEDS)),
            by_lag,
        ),
        Table("Bytes of a row of the bank", ("experiment", "bytes"), sizes),
    ]


def write() -> None:
    """Draws the tables of the page from the rows."""
    found = tables(read())
    before, rest = PAGE.read_text().split(MARKS[0])
    text = "\n".join(map(to_markdown, found))
    write_text(PAGE, f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{rest.split(MARKS[1])[1]}")


if __name__ == "__main__":
    commands: dict[str, Callable[[], None]] = {"measure": measure, "lags": lags, "write": write}
    commands[sys.argv[1]]()
