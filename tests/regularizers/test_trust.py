from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import one_hot

from conftest import labelled_snapshot
from neural_complexity.losses import Categorical, Gaussian
from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.regularizers.nc import nc_penalty
from neural_complexity.regularizers.trust import trust
from neural_complexity.seeding import stream
from neural_complexity.snapshot import take_snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids, StepFunctions


class Believer(NeuralComplexity):
    """Believes what it is told to, whatever it is shown."""

    def __init__(self, mean: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__(1, 1, width=8)
        self.mean = mean

    def context(
        self,
        E_tr: torch.Tensor,
        Y_tr: torch.Tensor,
        E_te: torch.Tensor,
        *,
        classes: int | None = None,
    ) -> Context:
        assert len(E_tr) == len(E_te)
        assert classes is None
        mean = self.mean(E_te)  # its units are those of the inputs
        return Context(Y_tr, Gaussian(mean, torch.full_like(mean, 0.5)))


def test_an_nc_that_knows_the_truth_is_trusted_and_one_that_errs_is_not(task: Task) -> None:
    # One sinusoid for all, so that the truth is a function of x.
    Y_tr = 2 * torch.sin(task.X_tr + 1)
    knows = Believer(lambda X: 2 * torch.sin(X + 1))
    torch.testing.assert_close(trust(knows, task.X_tr, Y_tr), torch.ones(len(task)))
    errs = Believer(lambda X: 2 * torch.sin(X + 1) + 20)
    assert torch.equal(trust(errs, task.X_tr, Y_tr), torch.zeros(len(task)))
    half = Believer(lambda X: 2 * torch.sin(X + 1) + 0.5)
    between = trust(half, task.X_tr, Y_tr)
    assert ((between > 0) & (between < 1)).any()


@given(st.integers(1, 25), st.integers(1, 3), st.integers(0, 1000))
def test_it_is_a_share_for_each_task_alone(points: int, features: int, seed: int) -> None:
    torch.set_default_dtype(torch.float64)
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(4, points, features, generator=generator)
    Y = torch.randn(4, points, 1, generator=generator)
    X[1] = X[1, :1]  # all the same
    Y[2] = 0.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        nc = NeuralComplexity(features, 1, width=8)
    found = trust(nc, X, Y)
    assert found.shape == (4,)
    assert ((found >= 0) & (found <= 1)).all()
    alone = torch.cat([trust(nc, X[b : b + 1], Y[b : b + 1]) for b in range(4)])
    torch.testing.assert_close(found, alone)
    if points == 1:
        assert not found.any()


def test_tasks_of_images_with_real_targets_can_be_tested_too() -> None:
    X, Y = torch.randn(4, 6, 1, 4, 4), torch.randn(4, 6, 1)
    nc = NeuralComplexity((1, 4, 4), 1, width=8, channels=4, image_layers=1)
    found = trust(nc, X, Y)
    assert found.shape == (4,)
    assert ((found >= 0) & (found <= 1)).all()
    alone = torch.cat([trust(nc, X[b : b + 1], Y[b : b + 1]) for b in range(4)])
    torch.testing.assert_close(found, alone)


def classifier(shape: tuple[int, ...], C: int = 3, **more: Any) -> NeuralComplexity:
    size = shape[0] if len(shape) == 1 else shape
    options: dict[str, Any] = {"width": 8, "channels": 4, "image_layers": 1, **more}
    return NeuralComplexity(size, C, loss="cross_entropy", symmetric=True, **options)


@pytest.mark.parametrize("shape", [(2,), (1, 4, 4)])
@pytest.mark.parametrize("head", ["posterior", "direct"])
@settings(max_examples=8)
@given(points=st.integers(4, 25), seed=st.integers(0, 1000))
def test_with_labels_it_is_a_share_for_each_task_alone(
    shape: tuple[int, ...], head: str, points: int, seed: int
) -> None:
    torch.set_default_dtype(torch.float64)
    s = labelled_snapshot(B=4, M=points, inputs=shape, seed=seed)  # three classes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        nc = classifier(shape, head=head)
    found = trust(nc, s.X_tr, s.Y_tr)
    assert ((found >= 0) & (found <= 1)).all()
    alone = torch.cat([trust(nc, s.X_tr[b : b + 1], s.Y_tr[b : b + 1]) for b in range(4)])
    torch.testing.assert_close(found, alone)
    # What classes are called does not matter, nor how many more of them there could be.
    names = torch.tensor([4, 0, 2])
    torch.testing.assert_close(
        trust(nc, s.X_tr, names[s.Y_tr], classes=5),
        trust(nc, s.X_tr, s.Y_tr, classes=5),
    )


class Oracle(NeuralComplexity):
    """Knows that the label is the sign of x, but of classes that it has not been shown nothing."""

    def context(
        self,
        E_tr: torch.Tensor,
        Y_tr: torch.Tensor,
        E_te: torch.Tensor,
        *,
        classes: int | None = None,
    ) -> Context:
        assert len(E_tr) == len(E_te)
        assert classes is None
        true = one_hot((E_te.squeeze(-1) > 0).long(), 2)
        shown = torch.stack([(Y_tr == c).any(dim=1) for c in range(2)], dim=1)  # (B, C)
        known = (true * shown.unsqueeze(1)).to(E_te.dtype)
        return Context(Y_tr, Categorical(100 * known))


@pytest.mark.parametrize("points", [4, 10, 30, 33])
@pytest.mark.parametrize("rare", [1, 2, 3])
def test_labels_that_nobody_could_know_are_not_held_against_nc(points: int, rare: int) -> None:
    nc = Oracle(1, 2, loss="cross_entropy", width=8)
    X = torch.randn(3, points, 1).abs()
    X[:, :rare] *= -1
    torch.testing.assert_close(trust(nc, X, (X.squeeze(-1) > 0).long()), torch.ones(3))


def test_a_task_with_one_point_of_each_class_is_not_trusted() -> None:
    nc = classifier((2,))
    X, Y = torch.randn(2, 3, 2), torch.tensor([[0, 1, 2], [0, 1, 1]])
    assert trust(nc, X, Y)[0] == 0
    with pytest.raises(ValueError, match="the safeguard must have two training points of some"):
        trust(nc, X[:1], Y[:1])
    with pytest.raises(ValueError, match="the safeguard must have two training points of some"):
        trust(nc, X[:, :1], Y[:, :1])


def test_targets_too_large_for_their_squares_are_not_trusted() -> None:
    torch.set_default_dtype(torch.float32)
    task = Sinusoids().sample(3, stream(0, "x"))
    nc = NeuralComplexity.pretrained("sinusoid")
    assert torch.equal(trust(nc, task.X_tr, 1e25 * task.Y_tr), torch.zeros(3))


def test_up_to_ten_points_their_order_does_not_matter(task: Task) -> None:
    for head in ("posterior", "direct"):
        nc = NeuralComplexity.for_tasks(task, head=head, width=16)
        order = torch.tensor([3, 1, 4, 0, 2])
        torch.testing.assert_close(
            trust(nc, task.X_tr, task.Y_tr), trust(nc, task.X_tr[:, order], task.Y_tr[:, order])
        )


def test_held_out_targets_are_not_shown(task: Task) -> None:
    """An NC that copies the nearest shown target is not taken in by its own points."""
    seen: list[tuple[int, int]] = []

    class Spy(Believer):
        def context(
            self,
            E_tr: torch.Tensor,
            Y_tr: torch.Tensor,
            E_te: torch.Tensor,
            *,
            classes: int | None = None,
        ) -> Context:
            for shown, held in zip(E_tr, E_te, strict=True):
                assert not (shown[:, None, 0] == held[None, :, 0]).any()
            seen.append((E_tr.shape[1], E_te.shape[1]))
            return super().context(E_tr, Y_tr, E_te, classes=classes)

    trust(Spy(torch.sin), task.X_tr, task.Y_tr)
    many = Sinusoids(train_points=23).sample(3, stream(0, "x"))
    trust(Spy(torch.sin), many.X_tr, many.Y_tr)
    assert seen == [(4, 1), (21, 2)]


@pytest.mark.parametrize("name", ["sinusoid", "sinusoid-direct"])
def test_the_shipped_ncs_trust_themselves_on_sinusoids_and_not_on_steps(name: str) -> None:
    torch.set_default_dtype(torch.float32)
    nc = NeuralComplexity.pretrained(name)
    own, other = (f.sample(200, stream(0, "x")) for f in (Sinusoids(), StepFunctions()))
    assert trust(nc, own.X_tr, own.Y_tr).mean() > 0.8
    assert trust(nc, other.X_tr, other.Y_tr).mean() < 0.1


def test_the_safeguard_multiplies_the_weight(task: Task) -> None:
    nc = NeuralComplexity.for_tasks(task, width=16)
    h, weights = torch.nn.Identity(), torch.linspace(0.1, 2, len(task))
    snapshot = take_snapshot(h, task)
    for weight in (3.0, weights):
        plain = nc_penalty(nc, task, weight=weight, safeguard=False)(h, snapshot)
        safe = nc_penalty(nc, task, weight=weight)(h, snapshot)
        torch.testing.assert_close(safe, plain * trust(nc, task.X_tr, task.Y_tr) ** 2)
