from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import huber_loss

from conftest import random_snapshot
from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta.train import MetaLearner, lr_factor, nc_loss
from neural_complexity.model.complexity import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.snapshot import gap, point_gaps
from neural_complexity.tasks.sinusoid import Sinusoids

family = Sinusoids(train_points=5, test_points=7)


def learner(recipe: Recipe, head: str = "posterior", **options: object) -> MetaLearner:
    torch.manual_seed(0)
    nc = NeuralComplexity.for_tasks(family.sample(64, stream(0, "units")), head=head, width=16)
    settings = {
        "seed": 0,
        "iterations": 6,
        "updates": 4,
        "batch": 16,
        "tasks": 8,
        "lr": 0.01,
        "capacity": 200,
    }
    return MetaLearner(nc, family, recipe, **{**settings, **options})  # type: ignore[arg-type]


def test_supervision_per_set_is_the_papers_huber_loss_on_the_gap() -> None:
    nc, s, Y_te = (
        NeuralComplexity(2, 1, head="direct"),
        random_snapshot(B=20),
        torch.randn(20, 5, 1),
    )
    delta = gap(nc.loss, s, Y_te) - nc.predict(*s.tensors())
    assert delta.abs().min() < 1 < delta.abs().max()  # both branches of Eq. (5)
    huber = torch.where(delta.abs() <= 1, delta.square() / 2, delta.abs() - 0.5)
    torch.testing.assert_close(nc_loss(nc, s, Y_te, supervision="set"), huber.mean())


def test_supervision_per_point_has_one_target_per_test_point() -> None:
    nc, s, Y_te = NeuralComplexity(2, 1), random_snapshot(), torch.randn(3, 5, 1)
    points = huber_loss(nc.predict_points(*s.tensors()), point_gaps(nc.loss, s, Y_te))
    torch.testing.assert_close(nc_loss(nc, s, Y_te, belief_weight=0.0), points)
    belief = huber_loss(nc.belief(s.X_tr, s.Y_tr, s.X_te).mean, Y_te)
    torch.testing.assert_close(nc_loss(nc, s, Y_te, belief_weight=0.5), points + 0.5 * belief)


@given(progress=st.floats(0, 1), warmup=st.floats(0.01, 0.9))
def test_the_learning_rate_rises_then_falls_to_zero(progress: float, warmup: float) -> None:
    assert 0 <= lr_factor(progress, warmup=warmup, decay=True) <= 1
    assert lr_factor(0.0, warmup=warmup, decay=True) == 0.04
    assert lr_factor(warmup, warmup=warmup, decay=True) == 1
    assert lr_factor(1.0, warmup=warmup, decay=True) < 1e-12
    assert lr_factor(progress, warmup=0.0, decay=False) == 1  # the paper's


def test_the_weight_of_nc_rises_linearly_from_zero_to_one(recipe: Recipe) -> None:
    meta = learner(recipe, iterations=6, ramp=0.5)
    weights = []
    while not meta.done:
        weights.append(meta.weight)
        meta.iterate()
    assert weights == pytest.approx([0, 1 / 3, 2 / 3, 1, 1, 1])
    assert meta.bank.count == 6 * 8 * (recipe.steps + 1)


@pytest.mark.parametrize("head", ["posterior", "direct"])
def test_nc_learns(recipe: Recipe, head: str) -> None:
    meta = learner(recipe, head, iterations=50, updates=12, batch=64, tasks=64, capacity=5000)
    probe = learner(recipe, head, tasks=128, capacity=5000)
    probe.iterate()
    snapshot, Y_te = probe.bank.sample(500, stream(1, "probe"))
    with torch.no_grad():
        before = nc_loss(meta.nc, snapshot, Y_te)
        while not meta.done:
            with torch.enable_grad():
                meta.iterate()
        assert nc_loss(meta.nc, snapshot, Y_te) < 0.9 * before


# Values of this very run when the test was written. A change of them is a change of the method's
# numbers and belongs in the changelog.
REFERENCE = {
    "posterior": [
        7.1676691153,
        5.7574076147,
        4.8454735933,
        4.625460305,
        6.6202332728,
        6.3233020731,
    ],
    "direct": [5.0569073282, 4.2988015799, 3.2084984458, 3.2917890393, 4.5702489457, 4.4334820275],
}


@pytest.mark.parametrize("head", REFERENCE)
def test_a_seeded_tiny_run_reproduces_its_stored_values(recipe: Recipe, head: str) -> None:
    meta = learner(recipe, head)
    losses = []
    while not meta.done:
        meta.iterate()
        losses.append(meta.loss)
    assert losses == pytest.approx(REFERENCE[head], rel=1e-6)


def test_a_loss_that_is_not_finite_stops_training(recipe: Recipe) -> None:
    meta = learner(recipe)
    with torch.no_grad():
        next(meta.nc.parameters()).fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="NC's loss must be finite, got nan at update 0"):
        meta.iterate()


def test_going_on_needs_the_bank(recipe: Recipe, tmp_path: Path) -> None:
    state = learner(recipe).state()
    with pytest.raises(ValueError, match="resuming needs the folder of the bank"):
        learner(recipe, resume=state)
