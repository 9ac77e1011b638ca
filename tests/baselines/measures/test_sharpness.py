import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from measured import classes_of_points, classifiers
from neural_complexity.baselines.measures import sharpness
from neural_complexity.baselines.measures.catalogue import Measure
from neural_complexity.baselines.measures.layers import evaluated, weights
from neural_complexity.baselines.measures.perturbation import (
    Scale,
    random_radius,
    worst_radius,
)
from neural_complexity.learners.batched import BatchedLearner, PlacedLearner
from neural_complexity.losses import cross_entropy
from neural_complexity.task import Task

Trio = tuple[BatchedLearner, BatchedLearner, Task]


@pytest.fixture
def trio() -> Trio:
    task = classes_of_points(B=2)
    return *classifiers(task), task


def vectors(h: BatchedLearner) -> torch.Tensor:
    return torch.cat([p.flatten(1) for p in weights(h).values()], dim=1)  # (B, n)


def bound(KL: torch.Tensor, M: int = 20) -> list[float]:
    return ((KL + math.log(2 * math.sqrt(M) / 0.05)) / (2 * M)).sqrt().tolist()


@pytest.mark.parametrize("scale", [torch.ones_like, torch.abs])
def test_sharpness_is_the_inverse_square_of_a_radius(scale: Scale, trio: Trio) -> None:
    h, initial, task = trio
    for measure, radius in (
        (sharpness.random_sharpness, random_radius),
        (sharpness.worst_sharpness, worst_radius),
    ):
        expected = radius(evaluated(h), task, scale) ** -2
        torch.testing.assert_close(measure(h, initial, task, scale=scale), expected)


@pytest.mark.parametrize("origin", [False, True])
@pytest.mark.parametrize("worst", [False, True])
def test_bounds_have_the_divergence_of_gaussians(origin: bool, worst: bool, trio: Trio) -> None:
    h, initial, task = trio
    search = worst_radius if worst else random_radius
    w = vectors(h)
    n = w.shape[1]
    prior = torch.zeros_like(w) if origin else vectors(initial)
    within = math.sqrt(2 * math.log(2 * n)) if worst else 1.0
    sigma = (search(evaluated(h), task, torch.ones_like) / within).unsqueeze(1)
    KL = kl_divergence(Normal(w, sigma), Normal(prior, sigma)).sum(dim=1)
    value = sharpness.pac_bayes(h, initial, task, origin=origin, worst=worst)
    assert value.tolist() == pytest.approx(bound(KL))

    sigma = (search(evaluated(h), task, torch.abs) / within).unsqueeze(1)
    v = (sigma * w).square() + 1e-6
    s = (v + (w - prior).square()).mean(dim=1, keepdim=True).sqrt()
    KL = kl_divergence(Normal(w, v.sqrt()), Normal(prior, s)).sum(dim=1)
    value = sharpness.pac_bayes_magnitude(h, initial, task, origin=origin, worst=worst)
    assert value.tolist() == pytest.approx(bound(KL))
    for other in (0.9, 1.1):  # no prior of another variance is better
        assert (kl_divergence(Normal(w, v.sqrt()), Normal(prior, other * s)).sum(dim=1) > KL).all()


@pytest.mark.parametrize("adaptive", [False, True])
def test_sharpness_is_the_rise_of_the_loss_uphill(adaptive: bool, trio: Trio) -> None:
    h, initial, task = trio
    measure = sharpness.adaptive_sharpness if adaptive else sharpness.sam_sharpness
    for b, value in enumerate(measure(h, initial, task).tolist()):
        one = h.one(b)
        before = cross_entropy(one(task.X_tr[b]).unsqueeze(0), task.Y_tr[b : b + 1]).mean()
        parameters = list(one.parameters())
        slopes = torch.autograd.grad(before, parameters)
        units = [p.detach().abs() if adaptive else torch.ones_like(p) for p in parameters]
        scaled = [unit * g for unit, g in zip(units, slopes, strict=True)]
        length = torch.cat([g.flatten() for g in scaled]).norm()
        with torch.no_grad():
            for p, unit, g in zip(parameters, units, scaled, strict=True):
                p.add_((0.5 if adaptive else 0.05) * unit * g / length)
            after = cross_entropy(one(task.X_tr[b]).unsqueeze(0), task.Y_tr[b : b + 1]).mean()
        assert value == pytest.approx(after.item() - before.item())


def test_shared_radii_change_no_measure_and_are_searched_once(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Scale]()

    def counted(h: PlacedLearner, task: Task, scale: Scale) -> torch.Tensor:
        asked.append(scale)
        return random_radius(h, task, scale)

    monkeypatch.setattr(sharpness, "random_radius", counted)
    h, initial, task = trio
    other = classifiers(task, steps=5)[0]
    measures: list[Measure] = [sharpness.random_sharpness, sharpness.pac_bayes]
    measures.append(sharpness.pac_bayes_magnitude)
    alone = [measure(own, initial, task) for own in (h, other) for measure in measures]
    asked.clear()
    with sharpness.shared_radii():
        shared = [measure(own, initial, task) for own in (h, other) for measure in measures]
    assert [v.tolist() for v in shared] == [v.tolist() for v in alone]
    assert asked == [torch.ones_like, torch.abs] * 2
    sharpness.random_sharpness(h, initial, task)  # searches again: h may have changed
    assert len(asked) == 5
