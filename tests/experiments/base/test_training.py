from dataclasses import replace
from functools import partial

import pytest
import torch

from neural_complexity.experiments.base.training import (
    Setup,
    Training,
    ours,
    train_network,
    validation_r2,
)
from neural_complexity.learners.fit import Recipe, Trajectory
from neural_complexity.learners.networks import mlp
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.workspace import Workspace

TINY = ours(width=8, heads=2, batch=8, tasks=8, updates=2, iterations=2, capacity=100)
SETUP = Setup(
    family=Sinusoids(),
    recipe=Recipe(make=partial(mlp, 1, (8,), 1), steps=3, lr=0.01),
    seed=0,
    device="cpu",
    units=64,
)


def test_an_nc_starts_from_another_of_the_same_architecture() -> None:
    start, _ = SETUP.network(TINY, "posterior")
    with torch.no_grad():
        for parameter in start.parameters():
            parameter.add_(0.1)
    setup = replace(SETUP, start=start)
    nc, _ = setup.network(TINY, "posterior")
    assert nc is not start
    weights = start.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in nc.state_dict().items())
    with pytest.raises(ValueError, match="must have the architecture of its settings"):
        setup.network(replace(TINY, width=16), "posterior")


def test_training_is_validated_by_r2_on_other_tasks_unless_told_otherwise() -> None:
    told: list[tuple[str, int, int]] = []

    def callback(stage: str, done: int, total: int, *_: object) -> None:
        told.append((stage, done, total))

    nc, history = train_network(TINY, "direct", SETUP, Workspace(None), callback)
    assert told == [("direct", 1, 2), ("direct", 2, 2)]
    own = validation_r2(SETUP.validation_learners(TINY.validation_tasks), nc)
    assert history[-1].r2 == pytest.approx(own)
    again, other = train_network(
        TINY, "direct", SETUP, Workspace(None), name="mine", validate=lambda _: 0.5
    )
    assert [score.r2 for score in other] == [0.5, 0.5]
    weights = nc.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in again.state_dict().items())


def test_learners_that_diverged_do_not_count_and_one_says_nothing() -> None:
    learners = SETUP.validation_learners(4)
    nc, _ = SETUP.network(TINY, "posterior")
    loss = learners.loss_te.clone()
    loss[-1, 0] = torch.inf
    some = Trajectory(learners.loss_tr, loss, learners.end, learners.gap)
    rest = learners[torch.tensor([1, 2, 3])]
    assert validation_r2(some, nc) == pytest.approx(validation_r2(rest, nc))
    assert validation_r2(learners[torch.tensor([1])], nc) != validation_r2(rest, nc)  # NaN


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"capacity": 0}, "capacity must be at least 1, got 0"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"lr": float("inf")}, "lr must be positive"),
        ({"encoder_layers": 0}, "encoder_layers must be at least 1, got 0"),
        ({"decoder_layers": 0}, "decoder_layers must be at least 1, got 0"),
        ({"warmup": 1.0}, "warmup must be from 0 to below 1, got 1.0"),
        ({"belief_weight": -1.0}, "belief_weight must be at least 0, got -1.0"),
        ({"width": 30}, "width must be a multiple of heads, got width=30, heads=8"),
    ],
)
def test_impossible_trainings_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Training(**change)  # type: ignore[arg-type]
