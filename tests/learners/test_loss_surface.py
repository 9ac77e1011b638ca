from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from neural_complexity.learners.batched import PlacedLearner, stack
from neural_complexity.learners.loss_surface import Measure, filter_normalised, surface
from neural_complexity.learners.networks import mlp
from neural_complexity.seeding import stream


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 2),
    )


MAKERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: mlp(3, (5, 5), 2), (3,)),
    "mlp with dropout": (lambda: mlp(3, (5,), 2, noise=lambda _: nn.Dropout(0.5)), (3,)),
    "convolutions and batch norm": (convolutional, (1, 4, 4)),
}


def made(name: str) -> tuple[nn.Module, Tensor]:
    """Gives a module whose batch statistics are not those it began with, and inputs."""
    make, shape = MAKERS[name]
    h, X = make(), torch.randn(7, *shape)
    h.train()
    for _ in range(3):
        h(X)
    return h, X


def mean_output(X: Tensor) -> Measure:
    def measure(copies: PlacedLearner) -> dict[str, Tensor]:
        K = len(next(copies.parameters()))
        H = copies(X.expand(K, *X.shape))  # (K, points, C)
        return {"first": H[..., 0].mean(dim=1), "square": H.square().mean(dim=(1, 2))}

    return measure


def measured(h: nn.Module, X: Tensor, **options: int | float) -> dict[str, Tensor]:
    return surface(h, mean_output(X), generator=stream(0, "directions"), **options)  # type: ignore[arg-type]


def test_every_filter_moves_by_its_own_length_and_biases_stay() -> None:
    h, _ = made("convolutions and batch norm")
    parameters = {name: p.detach() for name, p in h.named_parameters()}
    directions = filter_normalised(parameters, stream(0, "d"))
    assert set(directions) == set(parameters)
    for name, direction in directions.items():
        value = parameters[name]
        if value.ndim < 2:
            assert not direction.any()
            continue
        lengths = [[f.norm().item() for f in tensor] for tensor in (direction, value)]
        assert lengths[0] == pytest.approx(lengths[1])
        assert len(lengths[0]) == value.shape[0]
        cosine = (direction * value).sum() / value.square().sum()
        assert abs(cosine) < 0.9  # not the parameters themselves


def test_a_filter_of_zeros_stays_and_directions_are_drawn_from_the_generator() -> None:
    weight = torch.randn(4, 6)
    weight[2] = 0.0
    first, again, other = (
        filter_normalised({"w": weight}, stream(seed, "d"))["w"] for seed in (0, 0, 1)
    )
    assert not first[2].any()
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


@pytest.mark.parametrize("name", MAKERS)
def test_the_surface_is_that_of_modules_placed_one_by_one(name: str) -> None:
    h, X = made(name)
    found = measured(h, X, size=5, radius=0.7, chunk=4)
    assert found["alpha"].tolist() == pytest.approx([-0.7, -0.35, 0.0, 0.35, 0.7])
    generator = stream(0, "directions")
    theta = {n: p.detach() for n, p in h.named_parameters()}
    d1, d2 = (filter_normalised(theta, generator) for _ in range(2))
    h.eval()
    expected = torch.empty(2, 5, 5)
    for i, alpha in enumerate(found["alpha"]):
        for j, beta in enumerate(found["beta"]):
            moved = {n: v + alpha * d1[n] + beta * d2[n] for n, v in theta.items()}
            H = functional_call(h, moved, (X,)).detach()
            expected[:, i, j] = torch.stack([H[:, 0].mean(), H.square().mean()])
    torch.testing.assert_close(found["first"], expected[0])
    torch.testing.assert_close(found["square"], expected[1])
    assert expected[1].std() > 1e-3  # it does move


@pytest.mark.parametrize("name", MAKERS)
def test_the_module_is_in_the_centre_and_stays_as_it_was(name: str) -> None:
    h, X = made(name)
    next(iter(h.children())).eval()  # a mixture of modes
    before = {n: t.clone() for n, t in h.state_dict().items()}
    modes = [m.training for m in h.modules()]
    found = measured(h, X, size=7)
    assert found["alpha"][3] == 0 == found["beta"][3]
    assert modes == [m.training for m in h.modules()]
    assert all(torch.equal(before[n], t) for n, t in h.state_dict().items())
    assert not any(v.requires_grad for v in found.values())
    own = h.eval()(X).detach()
    torch.testing.assert_close(found["first"][3, 3], own[:, 0].mean())


@pytest.mark.parametrize("chunk", [1, 7, 25, 100])
def test_the_chunk_changes_nothing_but_bounds_the_copies(chunk: int) -> None:
    h, X = made("mlp")
    seen = []

    def measure(copies: PlacedLearner) -> dict[str, Tensor]:
        seen.append(len(next(copies.parameters())))
        return mean_output(X)(copies)

    found = surface(h, measure, generator=stream(0, "directions"), size=5, chunk=chunk)
    whole = measured(h, X, size=5)
    assert max(seen) <= chunk
    assert sum(seen) == 25
    torch.testing.assert_close(found, whole)


def test_scaling_one_layer_up_and_the_next_down_leaves_the_surface_alone() -> None:
    h, X = made("mlp")
    assert isinstance(h, nn.Sequential)
    before = measured(h, X, size=5)
    with torch.no_grad():
        for parameter in h[0].parameters():
            parameter.mul_(8.0)
        h[2].weight.div_(8.0)  # type: ignore[operator]
    torch.testing.assert_close(measured(h, X, size=5), before)


def test_one_of_many_learners_is_a_module_of_its_own() -> None:
    for name, (make, shape) in MAKERS.items():
        h = stack(make, 3, stream(0, name))
        X = torch.randn(3, 6, *shape)
        h.eval()
        module = h.one(1)
        assert type(module) is type(make())
        assert not module.training
        torch.testing.assert_close(module(X[1]), h(X)[1])
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(1.0)
        assert not torch.allclose(module(X[1]), h(X)[1])  # the batch kept its own
        assert all(p.requires_grad and p.is_leaf for p in module.parameters())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"size": 1}, "size must be at least 2, got 1"),
        ({"chunk": 0}, "chunk must be at least 1, got 0"),
        ({"radius": 0.0}, "radius must be positive, got 0.0"),
        ({"radius": float("nan")}, "radius must be positive, got nan"),
    ],
)
def test_impossible_planes_are_refused(options: dict[str, int | float], sentence: str) -> None:
    h, X = made("mlp")
    with pytest.raises(ValueError, match=sentence):
        measured(h, X, **options)


def test_modules_without_filters_and_wrong_measures_are_refused() -> None:
    h, X = made("mlp")
    with pytest.raises(ValueError, match="h must have a parameter with filters, got none"):
        measured(nn.BatchNorm1d(3), X)
    with pytest.raises(ValueError, match=r"one value per copy, got shape \(\) for 9 copies as x"):
        surface(h, lambda _: {"x": torch.zeros(())}, generator=stream(0), size=3)
