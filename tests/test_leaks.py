"""No experiment reports on what taught, chose or trained anything; no method is a dead letter."""

from collections import defaultdict
from typing import Any

import pytest
import torch

from golden.behaviour import EXPERIMENTS, smoke_config
from neural_complexity import (
    NeuralComplexity,
    Plan,
    Recipe,
    Sinusoids,
    meta_learn,
    mlp,
    split_tasks,
    stream,
)
from neural_complexity.experiments.base.comparison import evaluation_tasks
from neural_complexity.experiments.base.few_shot_images import draw_held_out_tasks
from neural_complexity.experiments.base.one_dataset import load_data
from neural_complexity.ledger import recording
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.collect import Job, SplitCollector
from smoke_runs import SmokeRuns

# Keys that say what a learner was trained with; all others say which learner, and on what.
METHOD = {"method", "head", "mode", "weight", "points", "strength", "trained_on", "safeguard"}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_is_reported_on_taught_chose_and_trained_nothing(
    name: str, smoke_runs: SmokeRuns
) -> None:
    assert smoke_runs.leaks(name) == []


@pytest.mark.parametrize("name", ["regularizers", "curves", "omniglot", "single", "sinusoid"])
def test_every_method_gives_other_learners_than_every_other_one(
    name: str, smoke_runs: SmokeRuns
) -> None:
    groups: dict[Any, dict[float, Any]] = defaultdict(dict)
    for row in smoke_runs(name).outcome.rows:
        if row.metric != "train loss" or row.keys.get("step") == 0:
            continue
        others = frozenset((k, v) for k, v in row.keys.items() if k not in METHOD)
        own = {k: v for k, v in row.keys.items() if k in METHOD}
        twin = groups[others].setdefault(row.value, own)
        assert twin is own, f"{own} and {twin} have the same training loss, {row.value}"
    assert groups


def digits(n: int = 240) -> tuple[Any, Any]:
    generator = stream(0, "points")
    X = torch.randn(n, 6, generator=generator)
    return X.numpy(), (X[:, 0] > 0).long().numpy()


def recipe(labels: bool = True) -> Recipe:
    if labels:
        return Recipe(make=lambda: mlp(6, (8,), 2), loss=cross_entropy, steps=6, lr=0.1)
    return Recipe(make=lambda: mlp(1, (8,), 1), steps=4, lr=0.05)


PLAN = Plan(iterations=2, updates=2, learners=16, chosen_by=8)


@pytest.mark.filterwarnings("ignore:NC c")  # it has learned next to nothing
def test_meta_learn_reports_on_points_that_neither_taught_nor_chose() -> None:
    with recording() as ledger:
        meta_learn(split_tasks(*digits()), recipe(), PLAN, progress=False, width=8)
    assert all(ledger.points(role) for role in ("learn", "choose", "hold"))
    assert not ledger.leaks()
    assert not ledger.points("learn") & ledger.points("choose")


@pytest.mark.filterwarnings("ignore:NC c")
def test_meta_learn_reports_on_tasks_that_neither_taught_nor_chose() -> None:
    tasks = Sinusoids(train_points=5, test_points=6).sample(40, stream(0, "x"))
    for given in (tasks, Sinusoids(train_points=5, test_points=6)):
        with recording() as ledger:
            meta_learn(given, recipe(labels=False), PLAN, progress=False, width=8)
        assert all(ledger.points(role) for role in ("learn", "choose", "hold"))
        assert not ledger.leaks()
        assert not ledger.points("learn") & ledger.points("choose")


def split_collection(**settings: Any) -> torch.Tensor:
    """Returns what learners of splits predict under an NC that has learned nothing."""
    splits = split_tasks(*digits(), train=80, test=40)
    torch.manual_seed(0)
    nc = NeuralComplexity.for_tasks(splits.sample(4, stream(0, "units")).loaded(), width=8)
    sizes = {"tasks": 3, "looks": 2, "batch": 16, "smallest": splits.M, "unlabelled": 16}
    collector = SplitCollector(splits=splits, recipe=recipe(), seed=0, **{**sizes, **settings})
    snapshot, _ = collector(nc, Job(0, 0, 1.0))
    return snapshot.H_te


def test_floor_and_spread_of_weights_reach_learners_of_splits() -> None:
    usual = split_collection(floor=None)
    assert not torch.equal(usual, split_collection(floor=None, spread_weights=False))
    # Below the floor NC says nothing, whatever its weight.
    quiet = split_collection(floor=1e6)
    assert not torch.equal(usual, quiet)
    assert torch.equal(quiet, split_collection(floor=1e6, spread_weights=False))


def test_other_seeds_have_other_tasks_and_images(glyph_folder: str) -> None:
    for name, draw in (
        ("curves", lambda config: evaluation_tasks(config).X_te),
        ("omniglot", lambda config: draw_held_out_tasks(config)[0].X_te),
        ("single", lambda config: load_data(config).held),
    ):
        data = {"data": glyph_folder} if name == "omniglot" else {}
        own, other = (draw(smoke_config(name, seed=seed, **data)) for seed in (0, 1))
        assert not torch.equal(own, other), name
