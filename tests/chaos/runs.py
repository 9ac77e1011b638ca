"""Work that is killed, doubled and starved of disk: every experiment, `meta_learn`, workers."""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn
from torch.utils import tensorboard

from glyphs import write_zip
from neural_complexity import cli, commands
from neural_complexity.experiments.base.experiment import (
    Experiment,
    experiment_names,
    load_experiment,
)
from neural_complexity.files import read_json, read_tensors
from neural_complexity.learners.fit import Recipe
from neural_complexity.learners.networks import mlp
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.meta_learn import meta_learn
from neural_complexity.meta.meta_run import Plan
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.tasks.image_datasets import VARIABLE
from neural_complexity.tasks.splits import split_tasks
from neural_complexity.workspace import fingerprint

__all__ = ["NEEDED", "WORKERS", "Work", "leftovers", "works"]

WORKERS = "single with two workers"
META = "--{0}.iterations 3 --{0}.updates 1 --{0}.tasks 8 --{0}.validation-tasks 8 --{0}.batch 8"
TINY = "--{0}.iterations 3 --{0}.updates 1"
HEADS = f"{META.format('posterior')} {META.format('direct')}"
# Options of experiments beside their preset smoke, which would take too long to be killed often.
SHORTER = {
    "ablation": "--seeds 1 --eval-tasks 2 --steps 1 --ways 2",
    "bounds": "--eval-tasks 24 --calibration 40 --draws 2 --unlike 4 --digits-tasks 8"
    " --digits-steps 2 --digits-train 50 --digits-test 50",
    "curves": "--eval-tasks 8 --steps 4",
    "few_labels": "--names 'sklearn iris' --steps 2 --estimator-steps 2",
    "harm": f"--eval-tasks 4 --steps 2 {HEADS}",
    "maml": f"--eval-tasks 8 --steps 2 --maml.iterations 4 --maml.tasks 4 {HEADS}",
    "omniglot": "--eval-tasks 2 --steps 2 --ways 2",
    "own": "--longest 30 --learner-steps 2 --steps 2",
    "ood": "--eval-tasks 8 --long-tasks 8 --most-steps 4",
    "pretraining": "--updates 3 --tables 2 --checkpoints 3",
    "regularizers": "--eval-tasks 8 --metareg-iterations 2 --metareg-tasks 4",
    "search": "--eval-tasks 8 --trials 3 --iterations 4 --updates 2 --tasks 8",
    "simple": "--eval-tasks 16 --tuning-tasks 16",
    "single": "--meta-seeds 1 --tuning-learners 1 --widen 0 --eval-tasks 2 --steps 4"
    f" --split-steps 2 --cnn-updates 2 {TINY.format('posterior')} {TINY.format('direct')}",
    "sinusoid": f"--eval-tasks 16 --steps 2 {HEADS}",
    "surfaces": "--eval-tasks 2 --steps 2 --size 3",
    "tables": "--names 'sklearn iris' --kinds linear",
    "tilts": "--tables 4 --kinds linear --evaluations 2",
}
# Experiments that ask the networks of a run of another.
ASKING = {"capacity": "single", "dataset_size": "single", "single_curves": "single"}
ASKING |= {"tables": "pretraining"}
NEEDED = {"single", "pretraining"}  # stay where they are for those
PLAN = Plan(iterations=20, updates=2, learners=20, chosen_by=8)


@dataclass(frozen=True)
class Work:
    """Something that can be killed and gone on with, in a folder."""

    name: str
    go: Callable[[Path], int | None]  # begins, or goes on; returns an exit code
    left: Callable[[Path], object]  # what it leaves, the same bit by bit however often it is killed


def works(folder: Path, names: list[str] | None = None) -> list[Work]:
    """Returns all work; a folder is for what it needs."""
    for name in experiment_names():
        load_experiment(name)  # for all children at once
    assert commands
    assert tensorboard
    # Much of PyTorch is imported when the first learners learn.
    recipe = Recipe(make=partial(_make, 1, 1), steps=1, lr=0.1)
    recipe.train(Sinusoids().sample(2, stream(0, "tasks")), stream(0, "learners"))
    Experiment.draw = lambda *_: []  # type: ignore[method-assign]  # nearly all of a short run
    os.environ[VARIABLE] = str(folder)
    for part, seed in (("background", 0), ("evaluation", 1)):
        write_zip(folder / f"images_{part}.zip", classes=12, drawings=8, seed=seed)
    found = [Work(name, partial(_run, name, folder, ""), _left) for name in experiment_names()]
    found += [Work("meta_learn", _meta_learn, _left_by_meta_learn)]
    found += [Work(WORKERS, partial(_run, "single", folder, "--workers 2"), _left)]
    return [work for work in found if not names or work.name in names]


def _run(name: str, needed: Path, further: str, folder: Path) -> int:
    """Runs an experiment by its command, in a child."""
    if (folder / "config.json").exists():
        return cli.main(["run", name, "--resume", str(folder)])
    words = shlex.split(f"{SHORTER.get(name, '')} {further}")
    if name in ASKING:
        words += ["--networks", str(needed / ASKING[name])]
    return cli.main(["run", name, "--preset", "smoke", "--out", str(folder), *words])


def _left(folder: Path) -> object:
    """Returns rows, networks and tensors of a run, without the seconds that it took."""
    networks = {p.name: read_tensors(p)[0] for p in sorted(folder.glob("*.safetensors"))}
    facts = read_json(folder / "run.json")["history"]
    for statuses in facts.values():
        for status in statuses:
            status.pop("seconds", None)
    rows = (folder / "rows.jsonl").read_text()
    return rows, fingerprint(networks), facts


def _make(inputs: int = 2, outputs: int = 3) -> nn.Module:
    return mlp(inputs, (4,), outputs)


def _meta_learn(folder: Path) -> None:
    """Meta-learns a small NC, in a child."""
    random = np.random.default_rng(0)
    y = np.arange(90) % 3
    X = random.normal(size=(90, 2)) + 3 * np.eye(3, 2)[y]
    recipe = Recipe(make=_make, loss=cross_entropy, steps=8, lr=0.1)
    meta_learn(split_tasks(X, y), recipe, PLAN, folder=folder, width=8, heads=2, progress=False)


def _left_by_meta_learn(folder: Path) -> object:
    nc = NeuralComplexity.load(folder / "nc.safetensors")
    report = read_json(folder / "report.json")
    notes = {name: value for name, value in nc.card.notes.items() if name != "seconds"}
    calibration = nc.calibration and nc.calibration.tensors()
    return fingerprint(dict(nc.state_dict()), calibration), report, notes


def leftovers(folder: Path) -> list[str]:
    """Returns files in a folder of finished work that are of no use any more."""
    every = [path for path in folder.rglob("*") if path.is_file()]
    unused = [path for path in every if path.name.startswith(".") or "bank" in path.parts[-2:]]
    return sorted(path.name for path in unused)
