from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from conftest import precision
from measured import changed, classes_of_points, classifiers, permuted, rescaled
from neural_complexity.baselines.measures import (
    confidence,
    loss_gradients,
    margins,
    perturbation,
    representation,
)
from neural_complexity.baselines.measures.catalogue import (
    MEASURES,
    RESCALING_INVARIANT,
    nc_measure,
)
from neural_complexity.baselines.measures.chosen_points import few
from neural_complexity.learners.batched import BatchedLearner, PlacedLearner, State
from neural_complexity.learners.networks import image_cnn, mlp, resnet
from neural_complexity.model.judgement import judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import Embeddings, indexed
from neural_complexity.snapshot import take_snapshot
from neural_complexity.task import Task

Trio = tuple[BatchedLearner, BatchedLearner, Task]
each_measure = pytest.mark.parametrize("name", MEASURES)
draw = perturbation.draw
# Noise belongs to places, not to units: in another order they have other noise of the same kind.
NOISY = [n for n in MEASURES if n in ("sharpness", "sharpness, magnitude-aware")]
NOISY += [n for n in MEASURES if n.startswith("pac-bayes") and "worst" not in n]
NOISY += ["perturbed disagreement"]


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perturbation, "DRAWS", 4)
    monkeypatch.setattr(confidence, "COPIES", 4)


@pytest.fixture(scope="module")
def trio() -> Trio:
    with precision(torch.float64):
        task = classes_of_points()
        return *classifiers(task), task


def alone(h: BatchedLearner, b: int) -> BatchedLearner:
    return changed(h, lambda state: {name: value[b : b + 1] for name, value in state.items()})


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_there_are_as_many_as_promised() -> None:
    assert len(MEASURES) >= 34
    assert set(RESCALING_INVARIANT) <= set(MEASURES)
    assert all(name == name.lower() for name in MEASURES)


@each_measure
def test_each_is_one_finite_number_for_each_learner(name: str, trio: Trio) -> None:
    value = MEASURES[name](*trio)
    assert value.shape == (3,)
    assert value.isfinite().all()
    assert not value.requires_grad


@each_measure
def test_a_learner_alone_measures_what_it_does_among_others(name: str, trio: Trio) -> None:
    h, initial, task = trio
    together = MEASURES[name](h, initial, task)
    for b in range(3):
        value = MEASURES[name](alone(h, b), alone(initial, b), task[b : b + 1])
        close(value, together[b : b + 1])


def mirror_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets perturbations belong to units, not to their places."""

    def mirrored(h: PlacedLearner, i: int) -> State:
        return permuted(draw(h, i))

    for module in (perturbation, confidence):
        monkeypatch.setattr(module, "draw", mirrored)


@each_measure
def test_the_order_of_hidden_units_does_not_matter(
    name: str, trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    h, initial, task = trio
    before = MEASURES[name](h, initial, task)
    if name in NOISY:
        mirror_noise(monkeypatch)
    close(MEASURES[name](changed(h, permuted), changed(initial, permuted), task), before)


# The other noisy ones are made of these.
@pytest.mark.parametrize("name", ["sharpness", "perturbed disagreement"])
def test_with_many_draws_other_noise_hardly_matters(
    name: str, trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perturbation, "DRAWS", 256)
    monkeypatch.setattr(confidence, "COPIES", 256)
    h, initial, task = trio
    before = MEASURES[name](h, initial, task)
    after = MEASURES[name](changed(h, permuted), changed(initial, permuted), task)
    torch.testing.assert_close(after, before, rtol=0.25, atol=0.002)


@pytest.mark.parametrize("name", RESCALING_INVARIANT)
@pytest.mark.parametrize("c", [0.25, 8.0])
def test_rescaled_layers_measure_the_same_where_it_is_claimed(
    name: str, c: float, trio: Trio
) -> None:
    h, initial, task = trio
    after = MEASURES[name](changed(h, lambda state: rescaled(state, c)), initial, task)
    close(after, MEASURES[name](h, initial, task))


@pytest.mark.parametrize("name", sorted(set(MEASURES) - set(RESCALING_INVARIANT)))
def test_rescaled_layers_measure_differently_where_it_is_not(name: str, trio: Trio) -> None:
    h, initial, task = trio
    before = MEASURES[name](h, initial, task)
    after = MEASURES[name](changed(h, lambda state: rescaled(state, 8.0)), initial, task)
    assert ((after - before).abs() > 1e-3 * before.abs()).all()


@each_measure
def test_the_order_of_points_does_not_matter(name: str, trio: Trio) -> None:
    check_order_of_points(name, trio)


def check_order_of_points(name: str, trio: Trio) -> None:
    h, initial, task = trio
    train, test = torch.randperm(20), torch.randperm(8)
    other = Task(task.X_tr[:, train], task.Y_tr[:, train], task.X_te[:, test], task.Y_te[:, test])
    close(MEASURES[name](h, initial, other), MEASURES[name](h, initial, task))


@each_measure
def test_of_many_points_the_same_ones_are_chosen_in_any_order(
    name: str, trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (loss_gradients, margins, representation):
        monkeypatch.setattr(module, "MANY", 15)
    monkeypatch.setattr(loss_gradients, "GRADIENT_POINTS", 15)
    monkeypatch.setattr(few, "__defaults__", (15,))  # in the place of POINTS
    check_order_of_points(name, trio)


@each_measure
def test_inputs_may_be_points_of_a_store(name: str, trio: Trio) -> None:
    h, initial, task = trio
    store = Embeddings(torch.arange(84), torch.cat([task.X_tr, task.X_te], dim=1).flatten(0, 1))
    train, test = torch.arange(84).view(3, 28).split([20, 8], dim=1)
    points = Task(indexed(train, store), task.Y_tr, indexed(test, store), task.Y_te)
    assert torch.equal(MEASURES[name](h, initial, points), MEASURES[name](h, initial, task))


@each_measure
def test_test_targets_are_not_looked_at(name: str, trio: Trio) -> None:
    h, initial, task = trio
    blind = replace(task, Y_te=torch.full_like(task.Y_te, 10**6))
    assert torch.equal(MEASURES[name](h, initial, blind), MEASURES[name](h, initial, task))


@each_measure
def test_learners_are_left_as_they_are_and_measured_without_noise(name: str) -> None:
    task = classes_of_points(B=2)
    h, initial = classifiers(task, make=lambda: mlp(4, (6,), 3, noise=lambda _: nn.Dropout(0.5)))
    before = {n: v.detach().clone() for n, v in h.state().items()}
    values = [MEASURES[name](one.train(), initial.train(), task) for one in (h, h)]
    assert torch.equal(*values)
    assert h.template.training
    assert all(torch.equal(v, before[n]) for n, v in h.state().items())


@each_measure
@pytest.mark.parametrize(
    "make",
    [lambda: image_cnn((1, 4, 4), (3, 2), 3), lambda: resnet((1, 4, 4), 3, width=2, blocks=(1, 1))],
    ids=["convolutions", "batch normalization"],
)
def test_networks_with_filters_are_measured(name: str, make: Callable[[], nn.Module]) -> None:
    flat = classes_of_points(B=2, D=16)
    task = replace(flat, X_tr=flat.X_tr.view(2, 20, 1, 4, 4), X_te=flat.X_te.view(2, 8, 1, 4, 4))
    h, initial = classifiers(task, steps=3, make=make)
    if list(h.buffers()) and "path norm" in name:
        with pytest.raises(
            ValueError, match="needs a network of weights and biases alone, got buffers"
        ):
            MEASURES[name](h, initial, task)
    else:
        assert MEASURES[name](h, initial, task).isfinite().all()


@pytest.mark.slow
@settings(max_examples=6)
@given(
    sizes=st.tuples(*[st.integers(1, 4)] * 3, st.integers(2, 4)),
    hidden=st.lists(st.integers(1, 4), max_size=3),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 100.0]),
)
def test_values_are_finite(
    sizes: tuple[int, int, int, int], hidden: list[int], scale: float
) -> None:
    M, N, D, C = sizes
    task = classes_of_points(B=2, M=M, N=N, D=D, C=C, seed=M)
    task = replace(task, X_tr=scale * task.X_tr)
    h, initial = classifiers(task, hidden, steps=2, make=lambda: mlp(D, hidden, C))
    for one in (h, changed(h, lambda state: {n: 0 * v for n, v in state.items()})):
        for name, measure in MEASURES.items():
            value = measure(one, initial, task)
            assert value.shape == (2,), name
            assert value.isfinite().all(), name


SEES_LABELS = [
    name
    for name in MEASURES
    if name.startswith(
        ("sharp", "pac", "cross", "input", "output", "davies", "mixup", "fisher", "aug")
    )
]


@pytest.mark.parametrize("name", SEES_LABELS)
def test_targets_that_are_no_labels_are_refused(name: str, trio: Trio) -> None:
    h, initial, task = trio
    numbers = replace(
        task, Y_tr=task.Y_tr.unsqueeze(-1).double(), Y_te=task.Y_te.unsqueeze(-1).double()
    )
    with pytest.raises(ValueError, match="labels"):
        MEASURES[name](h, initial, numbers)


@pytest.mark.parametrize("head", ["posterior", "direct"])
def test_nc_is_a_measure(head: str, trio: Trio) -> None:
    h, initial, task = trio
    nc = NeuralComplexity.for_tasks(task, head=head, loss="cross_entropy", width=8)
    with torch.no_grad():
        expected = judge(nc, take_snapshot(h, task)).gap
    value = nc_measure(nc)(h, initial, task)
    assert torch.equal(value, expected)
    # It sees predictions alone, so that nothing matters that does not change these.
    others = changed(h, permuted), changed(h, lambda state: rescaled(state, 3.0))
    for other in others:
        close(nc_measure(nc)(other, initial, task), value)
    blind = replace(task, Y_te=torch.full_like(task.Y_te, 10**6))
    assert torch.equal(nc_measure(nc)(h, initial, blind), value)
    order = torch.randperm(20)
    mixed = replace(task, X_tr=task.X_tr[:, order], Y_tr=task.Y_tr[:, order])
    close(nc_measure(nc)(h, initial, mixed), value)
