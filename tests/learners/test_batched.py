from collections.abc import Callable

import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor, nn
from torch.func import functional_call

from conftest import convolutional, flat
from neural_complexity.learners.batched import (
    BatchedLearner,
    Measure,
    PlacedLearner,
    filter_normalised,
    join,
    stack,
    surface,
)
from neural_complexity.learners.networks import mlp
from neural_complexity.seeding import stream


class Orthogonal(nn.Module):
    """An initialisation that no elementwise fill can repeat."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        nn.init.orthogonal_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out


class Mixed(nn.Module):
    """Parameters that come to be in unusual ways."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled = nn.Parameter(torch.randn(3) * 0.1)
        self.fixed = nn.Parameter(torch.linspace(0, 1, 3))
        self.truncated = nn.Parameter(
            nn.init.trunc_normal_(torch.empty(64), std=0.3, a=-0.4, b=0.4)
        )
        self.partly = nn.Parameter(torch.empty(64).uniform_(-1, 1))
        with torch.no_grad():
            self.partly[:32].fill_(7.0)
        self.register_buffer("steps", torch.arange(3.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scaled + self.fixed + self.partly[0] * self.truncated[0]


class Tricky(nn.Module):
    """Initialisations that look like elementwise fills and are not."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Parameter(torch.empty(3).fill_(1.0))
        self.drawn = nn.Parameter(torch.empty(3))
        self.rare = nn.Parameter(torch.bernoulli(torch.full((3,), 0.02)))
        self.listed = nn.Parameter(torch.empty(3).uniform_(0, 1))
        self.written = nn.Parameter(torch.empty(3).uniform_(0, 1))
        with torch.no_grad():
            self.shared.mul_(torch.rand(()))
            nn.init.constant_(self.drawn, torch.rand(()).item())
            torch._foreach_mul_([self.listed], 100.0)
            self.written.detach().numpy()[:] = 7.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.shared


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv1d(2, 4, 2), nn.ReLU(), nn.BatchNorm1d(4))


def transformer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: mlp(3, (8, 8), 2),
    "conv": conv,
    "transformer": transformer,
    "embedding": lambda: nn.Embedding(5, 4, padding_idx=0),
    "lstm": lambda: nn.LSTM(3, 4),
    "orthogonal": Orthogonal,
    "mixed": Mixed,
    "bilinear": lambda: nn.Bilinear(3, 3, 2),
    "tricky": Tricky,
    "images": flat,
    "images, filters": convolutional,
}
FEATURES = {"transformer": (8,), "images": (1, 7, 7), "images, filters": (1, 7, 7)}


@pytest.mark.parametrize("name", MAKERS)
def test_stacked_initialisation_has_the_modules_own_distribution(name: str) -> None:
    make = MAKERS[name]
    stacked = stack(make, 400, stream(0, name)).state()
    torch.manual_seed(1)
    modules = [make() for _ in range(400)]
    own = {
        key: torch.stack([dict([*m.named_parameters(), *m.named_buffers()])[key] for m in modules])
        for key in stacked
    }
    for key, values in stacked.items():
        assert values.shape == own[key].shape
        # First and last element: a distribution may differ along a parameter.
        for index in (0, -1):
            mine, theirs = (
                t.detach().reshape(400, -1)[:, index].double() for t in (values, own[key])
            )
            if theirs.std() == 0:
                assert torch.equal(mine, theirs)
            else:
                assert ks_2samp(mine.numpy(), theirs.numpy(), method="asymp").pvalue > 1e-4, (
                    key,
                    index,
                )
        if own[key].reshape(400, -1).double().std(dim=0).max() > 0 and key != "rare":
            assert len(values.detach().unique(dim=0)) == 400, f"{key}: learners share their draw"


def test_orthogonal_learners_are_orthogonal_and_different() -> None:
    W = stack(Orthogonal, 5, stream(0, "x")).state()["linear.weight"]
    torch.testing.assert_close(W @ W.mT, torch.eye(3).expand(5, 3, 3))
    assert not torch.allclose(W[0], W[1])


def test_stacking_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    stack(Orthogonal, 3, stream(0, "x"))
    stack(MAKERS["mlp"], 3, stream(0, "x"))
    assert torch.equal(before, torch.get_rng_state())


def test_the_generator_decides_the_draw() -> None:
    a, b, c = (stack(MAKERS["mlp"], 3, stream(seed, "x")).state() for seed in (0, 0, 1))
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert not torch.equal(a["0.weight"], c["0.weight"])


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap has no rule for attention
@pytest.mark.parametrize(
    "name", ["mlp", "mixed", "orthogonal", "transformer", "images", "images, filters"]
)
def test_batched_learners_equal_separate_ones_and_so_do_their_gradients(name: str) -> None:
    make, B = MAKERS[name], 4
    h = stack(make, B, stream(0, "x"))
    X = torch.randn(B, 6, *FEATURES.get(name, (3,)))
    out = h(X)
    weights = torch.randn_like(out)
    (out * weights).sum().backward()
    template = make()
    for b in range(B):
        state = {key: value[b].detach().requires_grad_() for key, value in h.state().items()}
        alone = functional_call(template, state, (X[b],))
        torch.testing.assert_close(out[b], alone)
        names = [key for key, _ in template.named_parameters()]
        gradients = torch.autograd.grad(
            (alone * weights[b]).sum(), [state[key] for key in names], allow_unused=True
        )
        for key, gradient in zip(names, gradients, strict=True):
            batched = h.state()[key].grad
            if gradient is not None:
                assert batched is not None
                torch.testing.assert_close(batched[b], gradient)


def test_noise_differs_between_learners_and_is_off_in_eval() -> None:
    h = stack(lambda: nn.Sequential(nn.Linear(2, 50), nn.Dropout(0.5)), 2, stream(0, "x"))
    with torch.no_grad():
        for parameter in h.parameters():
            parameter.copy_(parameter[:1].expand_as(parameter))
    X = torch.ones(2, 1, 2)
    noisy = h.train()(X)
    assert not torch.equal(noisy[0], noisy[1])
    h.eval()
    assert torch.equal(h(X), h(X))
    assert torch.equal(h(X)[0], h(X)[1])


def test_batch_statistics_are_kept_per_learner_and_only_in_training() -> None:
    h = stack(lambda: nn.BatchNorm1d(2), 3, stream(0, "x"))
    X = torch.randn(3, 20, 2) * torch.tensor([1.0, 5.0, 9.0]).reshape(3, 1, 1)
    h(X)
    torch.testing.assert_close(h.state()["running_mean"], 0.1 * X.mean(dim=1))
    before = h.state()["running_mean"].clone()
    h.eval()(X)
    assert torch.equal(before, h.state()["running_mean"])


def test_frozen_parameters_are_not_trained() -> None:
    def make() -> nn.Module:
        net = mlp(1, (4,), 1)
        net[0].requires_grad_(False)
        return net

    h = stack(make, 2, stream(0, "x"))
    assert [tuple(p.shape) for p in h.parameters()] == [(2, 1, 4), (2, 1)]
    assert set(h.state()) == {"0.weight", "0.bias", "2.weight", "2.bias"}


@pytest.mark.parametrize("batch", [0, -1])
def test_no_learners_are_refused(batch: int) -> None:
    with pytest.raises(ValueError, match="batch must be at least 1"):
        stack(MAKERS["mlp"], batch, stream(0, "x"))


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"make must build a torch.nn.Module, got int"):
        stack(lambda: 3, 2, stream(0, "x"))  # type: ignore[arg-type,return-value]


def test_a_learner_is_a_module() -> None:
    h = stack(MAKERS["mlp"], 2, stream(0, "x"))
    assert isinstance(h, BatchedLearner)
    assert {p.shape[0] for p in h.parameters()} == {2}


# Planes of parameters around one module


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 2),
    )


PLACED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: mlp(3, (5, 5), 2), (3,)),
    "mlp with dropout": (lambda: mlp(3, (5,), 2, noise=lambda _: nn.Dropout(0.5)), (3,)),
    "convolutions and batch norm": (normalised, (1, 4, 4)),
}


def made(name: str) -> tuple[nn.Module, Tensor]:
    """Returns a module whose batch statistics are not those it began with, and inputs."""
    make, shape = PLACED[name]
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


@pytest.mark.parametrize("name", PLACED)
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


@pytest.mark.parametrize("name", PLACED)
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
    for name, (make, shape) in PLACED.items():
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


def test_modules_of_one_architecture_run_as_one() -> None:
    modules = [mlp(2, (4,), 3, noise=lambda _: nn.Dropout(0.5)) for _ in range(3)]
    h, X = join(modules), torch.randn(3, 5, 2)
    alone = torch.stack([module.eval()(x) for module, x in zip(modules, X, strict=True)])
    torch.testing.assert_close(h(X), alone)
    next(modules[0].parameters()).data.zero_()
    torch.testing.assert_close(h(X), alone)  # they are copies
