import pickle
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

from neural_complexity.learners.networks import mlp
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.regularizers import loop as penalty_module
from neural_complexity.regularizers.loop import NCRegularizer
from neural_complexity.regularizers.nc import trust
from neural_complexity.seeding import stream

Batch = tuple[Tensor, Tensor, Tensor]


def small_nc(
    *, labels: bool = True, head: Any = "posterior", inputs: Any = 3, outputs: int = 4, **more: Any
) -> NeuralComplexity:
    options: dict[str, Any] = {"loss": "cross_entropy", "symmetric": True, "metric": True}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return NeuralComplexity(
            inputs,
            outputs,
            head=head,
            width=8,
            heads=2,
            channels=4,
            image_layers=2,
            **({**options, **more} if labels else more),
        )


def minibatch(
    *, labels: bool = True, M: int = 12, N: int = 7, C: int = 4, seed: int = 0, shape: Any = (3,)
) -> Batch:
    g = stream(seed, "minibatch")
    x, x_unlabelled = (torch.randn(n, *shape, generator=g) for n in (M, N))
    y = torch.arange(M) % C if labels else torch.randn(M, C, generator=g)
    return x, y, x_unlabelled


KINDS = [(labels, head) for labels in (True, False) for head in ("posterior", "direct")]


def gradients(value: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(value, list(model.parameters()), retain_graph=True))


@pytest.mark.parametrize(("labels", "head"), KINDS)
def test_the_penalty_is_the_weighted_prediction(labels: bool, head: str) -> None:
    nc, model = small_nc(labels=labels, head=head), mlp(3, (5,), 4)
    x, y, u = minibatch(labels=labels)
    gap = nc.predict(x[None], y[None], model(x)[None], u[None], model(u)[None]).squeeze(0)
    value = NCRegularizer(nc, weight=2.0, floor=None, safeguard=False)(model, x, y, u)
    torch.testing.assert_close(value, 2 * gap)
    for a, b in zip(gradients(value, model), gradients(2 * gap, model), strict=True):
        torch.testing.assert_close(a, b)
        assert a.abs().sum() > 0
    own = trust(nc, x[None], y[None]).squeeze(0)
    value = NCRegularizer(nc, weight=2.0, floor=None)(model, x, y, u)
    torch.testing.assert_close(value, 2 * own**2 * gap)
    high = gap.item() + 1
    value = NCRegularizer(nc, weight=1.0, floor=high, safeguard=False)(model, x, y, u)
    assert value.item() == pytest.approx(high)
    assert all((g == 0).all() for g in gradients(value, model))


@pytest.mark.parametrize(("labels", "head"), KINDS)
def test_with_training_points_these_are_what_nc_knows(labels: bool, head: str) -> None:
    nc, model = small_nc(labels=labels, head=head), mlp(3, (5,), 4)
    X, Y, _ = minibatch(labels=labels, M=20, seed=5)
    x, y, u = minibatch(labels=labels)
    known = (X[None], Y[None], model(X)[None], u[None], model(u)[None])
    expected = nc.predict_loss(*known) - nc.loss(model(x)[None], y[None]).mean(dim=1)
    penalty = NCRegularizer(nc, weight=1.0, floor=None, X_tr=X.numpy(), y_tr=Y.numpy())
    value = penalty(model, x, y, u)
    own = trust(nc, X[None], Y[None]).item()
    assert penalty.trust == pytest.approx(own)
    torch.testing.assert_close(value, own**2 * expected.squeeze(0))
    penalty(model, *minibatch(labels=labels, M=3, seed=9))
    assert penalty.trust == pytest.approx(own)  # measured once
    assert penalty.tests == 1


def test_nc_is_shown_as_many_training_points_as_it_was_trained_with() -> None:
    nc, model = small_nc(), mlp(3, (5,), 4)
    nc.card = replace(nc.card, context_size=6)
    X, Y, _ = minibatch(M=50)
    penalties = [NCRegularizer(nc, safeguard=False, X_tr=X, y_tr=Y, seed=s) for s in (0, 0, 1)]
    seen: list[Tensor] = []
    for penalty in penalties:
        look = penalty.nc.context

        def spy(E_tr: Tensor, *rest: Any, _to: Any = look, **more: Any) -> Any:
            seen.append(E_tr)
            return _to(E_tr, *rest, **more)

        penalty.nc.context = spy  # type: ignore[method-assign]
        penalty(model, *minibatch())
    assert seen[0].shape == (1, 6, 3)
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])


def test_images_and_targets_without_an_axis_for_one_output_are_understood() -> None:
    image_nc = small_nc(inputs=(1, 7, 7))
    x, y, u = minibatch(shape=(1, 7, 7))
    model = nn.Sequential(nn.Flatten(), nn.Linear(49, 4))
    gap = image_nc.predict(x[None], y[None], model(x)[None], u[None], model(u)[None]).squeeze(0)
    penalty = partial(NCRegularizer, weight=1.0, floor=None, safeguard=False)
    torch.testing.assert_close(penalty(image_nc)(model, x, y, u), gap)
    nc, line = small_nc(labels=False, outputs=1), mlp(3, (5,), 1)
    x, y, u = minibatch(labels=False, C=1)
    gap = nc.predict(x[None], y[None], line(x)[None], u[None], line(u)[None]).squeeze(0)
    flat: Callable[[Tensor], Tensor] = lambda x: line(x).squeeze(1)  # noqa: E731
    torch.testing.assert_close(penalty(nc)(flat, x, y.squeeze(1), u), gap)


class Careless(nn.Module):
    """Draws noise and writes to its buffers in any mode, in place and anew."""

    count: Tensor
    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("last", torch.zeros(3))
        self.fails = False

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.last = x.detach().mean(dim=0)
        if self.fails:
            raise RuntimeError("out of order")
        return dropout(x, 0.1, training=True) + 0 * self.count


def eventful() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Sequential(
            nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 4)
        )


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_judging_leaves_no_trace(mode: Any) -> None:
    careless = Careless()
    model = nn.Sequential(careless, *eventful())
    model[2].eval()  # as somebody who freezes a layer does
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    last = careless.last
    state = torch.get_rng_state()
    penalty = NCRegularizer(small_nc(), safeguard=False, mode=mode)
    for fails in (False, True):
        careless.fails = fails
        if fails:
            with pytest.raises(RuntimeError, match="out of order"):
                penalty(model, *minibatch())
        else:
            assert penalty(model, *minibatch()).isfinite()
        assert modes == [module.training for module in model.modules()]
        assert torch.equal(state, torch.get_rng_state())
        assert careless.last is last
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert penalty.calls == 1


def test_the_model_is_judged_as_it_trains_or_as_it_will_be_used() -> None:
    model, (x, y, u) = eventful(), minibatch()
    model(torch.randn(20, 3))  # so that there are statistics
    nc = small_nc()

    def gap(H: Tensor, H_te: Tensor) -> Tensor:
        return nc.predict(x[None], y[None], H[None], u[None], H_te[None]).squeeze(0)

    used = NCRegularizer(nc, weight=1.0, safeguard=False, floor=None, mode="eval")(model, x, y, u)
    trained = NCRegularizer(nc, weight=1.0, safeguard=False, floor=None)(model, x, y, u)
    assert all(module.training for module in model.modules())
    noisy = []
    for inputs in (x, u):  # each with the noise that comes next, which is given back
        with torch.random.fork_rng(devices=[]):
            noisy.append(deepcopy(model)(inputs))
    torch.testing.assert_close(trained, gap(*noisy))
    model.eval()
    torch.testing.assert_close(used, gap(model(x), model(u)))
    assert used != trained


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_statistics_may_move_between_judging_and_the_gradient(mode: Any) -> None:
    model, (x, y, u) = eventful(), minibatch()
    penalty = NCRegularizer(small_nc(), safeguard=False, floor=None, mode=mode)
    value = penalty(model, x, y, u)
    own = gradients(value, model)
    loss = cross_entropy(model(x), y)  # writes to the running statistics
    usual = gradients(loss, model)
    (loss + value).backward()
    for parameter, a, b in zip(model.parameters(), own, usual, strict=True):
        torch.testing.assert_close(parameter.grad, a + b)


Make = Callable[[nn.Module], list[torch.optim.Optimizer]]


def _two(model: nn.Module) -> list[torch.optim.Optimizer]:
    first, *rest = model.parameters()
    return [torch.optim.SGD([first], lr=0.1), torch.optim.AdamW(rest, lr=0.01)]


OPTIMIZERS: dict[str, Make] = {
    "momentum": lambda m: [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)],
    "groups": lambda m: [
        torch.optim.Adam([{"params": [p], "lr": 0.1 / p.ndim} for p in m.parameters()])
    ],
    "two optimizers": _two,
}


def train(
    model: nn.Module, optimizers: list[torch.optim.Optimizer], penalty: Any, steps: range
) -> None:
    for step in steps:
        torch.manual_seed(step)
        x, y, u = minibatch(seed=step)
        loss = cross_entropy(model(x), y)
        if penalty is not None:
            loss = loss + penalty(model, x, y, u)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()


def equal(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weight_zero_trains_bit_for_bit_as_no_regularizer(name: str) -> None:
    models = [eventful() for _ in range(4)]
    nc = small_nc()
    silent = NCRegularizer(nc, weight=0.0)
    silent._penalty = None  # type: ignore[method-assign, assignment]  # not even asked
    penalties = [
        None,
        silent,
        NCRegularizer(nc, weight=lambda calls: 0.0 * calls),
        NCRegularizer(nc),
    ]
    for model, penalty in zip(models, penalties, strict=True):
        train(model, OPTIMIZERS[name](model), penalty, range(4))
    assert equal(models[0], models[1])
    assert equal(models[0], models[2])
    assert not equal(models[0], models[3])
    # Regularizing changes what is learned, and disturbs nothing else.
    assert models[0][1].num_batches_tracked == models[3][1].num_batches_tracked


def test_training_that_is_resumed_goes_on_as_if_it_had_not_stopped() -> None:
    nc = small_nc()
    nc.card = replace(nc.card, context_size=8)
    X, Y, _ = minibatch(M=20, seed=77)
    given_points: list[dict[str, Any]] = [{}, {"X_tr": X, "y_tr": Y}]
    for more in given_points:
        make = partial(NCRegularizer, nc, weight=lambda calls: 0.5 + calls / 10, **more)
        whole, part = eventful(), eventful()
        for model, cuts in ((whole, [range(14)]), (part, [range(7), range(7, 12), range(12, 14)])):
            (optimizer,) = OPTIMIZERS["momentum"](model)
            state = make().state_dict()
            for steps in cuts:
                penalty = make()
                penalty.load_state_dict(state)
                train(model, [optimizer], penalty, steps)
                state = penalty.state_dict()
            assert state["calls"] == 14
        assert equal(whole, part)
    with pytest.raises(ValueError, match="state must hold calls, trust, tests, got none"):
        make().load_state_dict({})


def test_penalties_of_minibatches_add_up() -> None:
    model, penalty = mlp(3, (5,), 4), NCRegularizer(small_nc(), floor=None, safeguard=False)
    batches = [minibatch(seed=seed) for seed in range(3)]
    values = [penalty(model, *batch) for batch in batches]
    total = gradients(torch.stack(values).sum(), model)
    for batch in batches:
        penalty(model, *batch).backward()
    for parameter, gradient in zip(model.parameters(), total, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient)


def test_trust_is_the_mean_over_the_first_minibatches() -> None:
    nc, model = small_nc(), mlp(3, (5,), 4)
    penalty = NCRegularizer(nc)
    batches = [minibatch(seed=seed) for seed in range(12)]
    each = [trust(nc, x[None], y[None]).item() for x, y, _ in batches]
    for i, batch in enumerate(batches):
        penalty(model, *batch)
        tested = each[: min(i + 1, 10)]
        assert penalty.trust == pytest.approx(sum(tested) / len(tested))
    assert len(set(each)) > 1


def test_one_point_of_each_class_cannot_be_tested() -> None:
    nc, model = small_nc(), mlp(3, (5,), 4)
    once = minibatch(M=4)
    with pytest.raises(ValueError, match="the safeguard must have two training points of some"):
        NCRegularizer(nc)(model, *once)
    with pytest.raises(ValueError, match="the safeguard must have two training points of some"):
        NCRegularizer(nc, X_tr=once[0], y_tr=once[1])(model, *minibatch())
    penalty = NCRegularizer(nc)
    penalty(model, *minibatch())
    found = penalty.trust
    penalty(model, *once)
    assert (penalty.tests, penalty.trust) == (1, found)
    assert NCRegularizer(nc, safeguard=False)(model, *once).isfinite()


def test_an_nc_that_is_not_trusted_keeps_quiet() -> None:
    nc, model = small_nc(labels=False), mlp(3, (5,), 4)
    x, y, u = minibatch(labels=False, M=1)
    penalty = NCRegularizer(nc)
    assert penalty(model, x, y, u) == 0
    assert penalty.trust == 0


@pytest.mark.parametrize("head", ["posterior", "direct"])
def test_nc_gets_no_gradients(head: str) -> None:
    nc, model = small_nc(head=head), mlp(3, (5,), 4)
    before = deepcopy(nc.state_dict())
    X, Y, _ = minibatch(M=20)
    plain, known = partial(NCRegularizer, nc), partial(NCRegularizer, nc, X_tr=X, y_tr=Y)
    for penalty in (plain(), known(), plain(safeguard=False), known(safeguard=False)):
        penalty(model, *minibatch()).backward()
        for own in (nc, penalty.nc):
            assert all(p.grad is None for p in own.parameters())
            assert all(torch.equal(before[k], v) for k, v in own.state_dict().items())
    assert all(p.requires_grad for p in nc.parameters())
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("head", ["posterior", "direct"])
def test_nc_computes_in_its_own_precision(head: str) -> None:
    nc, model = small_nc(head=head).float(), mlp(3, (5,), 4).float()
    x, y, u = minibatch()
    x, u = x.float(), u.float()
    penalty = NCRegularizer(nc, weight=1.0, floor=None, safeguard=False)
    X, Y, _ = minibatch(M=20)
    penalty_known = NCRegularizer(nc, weight=1.0, floor=None, X_tr=X, y_tr=Y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(x)
        value = penalty(model, x, y, u)
        known = penalty_known(model, x, y, u)
    assert rough.dtype == torch.bfloat16
    assert value.dtype == known.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        H, H_te = model(x).float(), model(u).float()
    exact = nc.predict(x[None], y[None], H[None], u[None], H_te[None]).squeeze(0)
    torch.testing.assert_close(value, exact)
    (rough.float().mean() + value + known).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_models_of_another_precision_are_judged_alike() -> None:
    nc, (x, y, u) = small_nc(), minibatch()
    model = mlp(3, (5,), 4)
    value = NCRegularizer(nc, safeguard=False)(model, x, y, u)
    rough = NCRegularizer(nc.float(), safeguard=False)(model, x, y, u)
    assert (value.dtype, rough.dtype) == (torch.float64, torch.float32)
    torch.testing.assert_close(value, rough.double(), rtol=1e-4, atol=1e-5)
    assert all(g.dtype == torch.float64 for g in gradients(rough, model))
    half = deepcopy(model).bfloat16()
    value = NCRegularizer(nc, safeguard=False)(half, x.bfloat16(), y, u.bfloat16())
    assert all(g.isfinite().all() for g in gradients(value, half))


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_models_are_judged_alike() -> None:
    plain = eventful()
    compiled: Any = torch.compile(deepcopy(plain), backend="eager", dynamic=False)
    penalty = NCRegularizer(small_nc(), safeguard=False, floor=None)
    used = NCRegularizer(small_nc(), safeguard=False, floor=None, mode="eval")
    x, y, u = minibatch(N=12)
    found = []
    for model in (plain, compiled):
        torch.manual_seed(0)
        loss = cross_entropy(model(x), y)
        value = penalty(model, x, y, u) + used(model, x, y, u)
        (loss + value).backward()
        assert all(module.training for module in model.modules())
        found.append(value)
    torch.testing.assert_close(*found)
    for a, b in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    for own, its in zip(plain.buffers(), compiled.buffers(), strict=True):
        torch.testing.assert_close(own, its)


def test_nc_follows_the_inputs_to_their_device() -> None:
    X, Y, _ = minibatch(M=20)
    penalty = NCRegularizer(small_nc(), X_tr=X, y_tr=Y)
    penalty._move(torch.device("meta"))
    assert penalty._fixed is not None
    assert {t.device.type for t in (*penalty.nc.parameters(), *penalty._fixed)} == {"meta"}


def test_an_nc_that_is_not_trusted_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penalty_module, "proof", lambda *_, **__: torch.zeros(1))
    model, (x, y, u) = mlp(3, (5,), 4), minibatch()
    ask = NCRegularizer(small_nc(), X_tr=x, y_tr=y)
    with pytest.warns(UserWarning, match="NC is not trusted .* on the scale that it was made with"):
        assert ask(model, x, y, u) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ask(model, x, y, u) == 0


def test_what_does_not_fit_is_refused_in_one_sentence() -> None:
    nc, model = small_nc(), mlp(3, (5,), 4)
    x, y, u = minibatch()
    ask = NCRegularizer(nc, safeguard=False)
    wrong: Any = "both"
    fixed = NCRegularizer(small_nc(symmetric=False), safeguard=False)
    knows = NCRegularizer(nc, safeguard=False, X_tr=x, y_tr=torch.arange(12))
    assert ask(mlp(3, (), 5), x, y, u).isfinite()  # a symmetric NC judges any number of classes
    cases: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: ask(model, x[:, :2], y, u), ValueError, r"^x must be \(points, 3\), got shape"),
        (lambda: ask(model, x, y, u * torch.nan), ValueError, "^x_unlabelled must be finite, got"),
        (lambda: ask(model, x, y, u.to("meta")), ValueError, "^x_unlabelled must be on cpu like x"),
        (lambda: ask(model, x, y[:-1], u), ValueError, "^y must be one for each of the 12 points"),
        (lambda: ask(model, x, y + 1, u), ValueError, "^y must hold labels from 0 to 3, got 1 to"),
        (lambda: ask(model, [[0.0] * 3], y, u), TypeError, "^x must be a torch.Tensor, got list"),  # type: ignore[arg-type]
        (lambda: fixed(mlp(3, (), 5), x, y, u), ValueError, r"^model\(x\) must be \(12, 4\), got"),
        (
            lambda: ask(torch.Tensor.sum, x, y, u),
            ValueError,
            r"^model\(x\) must be \(12, classes\)",
        ),
        (lambda: ask(lambda x: x / 0, x, y, u), ValueError, r"^model\(x\) must be finite, got NaN"),
        (
            lambda: knows(model, x, y, u),
            ValueError,
            r"^model\(x\) must have a column for every lab",
        ),
        (lambda: ask(str, x, y, u), TypeError, r"^model\(x\) must be a tensor of real"),  # type: ignore[arg-type]
        (
            lambda: NCRegularizer(nc, weight=-1.0),
            ValueError,
            "^weight must be a number that is not",
        ),
        (
            lambda: NCRegularizer(nc, mode=wrong),
            ValueError,
            "^mode must be train or eval, got both",
        ),
        (lambda: NCRegularizer(nc, X_tr=x), ValueError, "^X_tr and y_tr must be given together"),
        (lambda: NCRegularizer(nc, X_tr=x, y_tr=["a"] * 12), TypeError, "^y_tr must hold numbers"),
        (
            lambda: NCRegularizer(model),  # type: ignore[arg-type]
            TypeError,
            "^nc must be a NeuralComplexity, a path or a name, got Sequential",
        ),
        (lambda: NCRegularizer("cosine"), ValueError, "^nc must be a safetensors file or one of"),
        (lambda: ask(model(x), x, y, u), TypeError, "^model must be a module or a fun.* got Ten"),
    ]
    for call, kind, message in cases:
        with pytest.raises(kind, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
        assert not str(caught.value).endswith(".")


NCS = {
    (labels, head, symmetric): small_nc(
        labels=labels,
        head=head,
        **({"symmetric": symmetric} if labels else {}),
    ).float()
    for labels, head in KINDS
    for symmetric in ((True, False) if labels else (False,))
}
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8]
STRANGE = [None, "cat", ["cat", "dog"], 3.0, [[1.0, 2.0, 3.0]]]


@st.composite
def tensors(draw: st.DrawFn, points: int, rest: tuple[int, ...], whole: int | None = None) -> Any:
    """Draws points, mostly sound; `whole` numbers below it if that is given."""
    if draw(st.integers(0, 49)) == 49:
        return draw(st.sampled_from(STRANGE))
    if draw(st.integers(0, 29)) == 29:
        rest = draw(st.sampled_from([(), (1,), (3,), (4,), (0,), (1, 3, 3), (2, 2)]))
    g = stream(draw(st.integers(0, 99)), "values")
    if whole is not None and draw(st.integers(0, 19)) < 19:
        values = torch.randint(
            -1 if draw(st.integers(0, 19)) == 19 else 0, whole, (points, *rest), generator=g
        )
        return values.to(draw(st.sampled_from([torch.int64, torch.int32, torch.float64])))
    scale = draw(st.sampled_from([1.0, 1.0, 1.0, 1.0, 0.0, 1e4, 1e30, 1e300]))
    values = scale * torch.randn(points, *rest, generator=g, dtype=torch.float64)
    if draw(st.integers(0, 19)) == 19 and values.numel():
        values.view(-1)[0] = draw(st.sampled_from([torch.nan, torch.inf]))
    return values.to(draw(st.sampled_from(DTYPES)))


@settings(max_examples=60)
@given(st.data())
def test_whatever_comes_gives_a_finite_penalty_or_one_clear_sentence(data: st.DataObject) -> None:
    pick: Callable[[list[Any]], Any] = lambda values: data.draw(st.sampled_from(values))  # noqa: E731
    labels, _, symmetric = kind = pick(list(NCS))
    M, N = pick([12, 12, 12, 2, 1, 0]), pick([7, 7, 7, 7, 1, 0])
    C = pick([4, 1, 2, 10, 1000]) if symmetric else pick([4, 4, 4, 4, 1, 5])
    x, u = data.draw(tensors(M, (3,))), data.draw(tensors(N, (3,)))
    y = data.draw(tensors(M, () if labels else (C,), C if labels else None))
    known = {}
    if pick([False, False, True]):
        known = {"X_tr": data.draw(tensors(9, (3,)))}
        known["y_tr"] = data.draw(tensors(9, () if labels else (C,), C if labels else None))
    torch.manual_seed(0)
    layer = nn.Linear(3, C).to(torch.float64)
    size = pick([1.0, 1.0, 1.0, 1.0, 1.0, 1e30, torch.nan])

    def model(x: Tensor) -> Tensor:
        logits: Tensor = size * layer(x.to(torch.float64).reshape(len(x), 3))
        return logits

    try:
        penalty = NCRegularizer(NCS[kind], safeguard=data.draw(st.booleans()), **known)
        value = penalty(model, x, y, u)
    except (TypeError, ValueError) as error:
        text = str(error)
        assert " must " in text, text
        assert ", got " in text, text
        assert "\n" not in text, text
    else:
        assert value.shape == ()
        assert value.isfinite()
        value.backward()
        # A penalty of predictions this large may have a gradient that is too large for a float.
        if size == 1.0 and layer.weight.grad is not None:
            assert not layer.weight.grad.isnan().any()


def test_by_default_an_nc_for_tables_weighs_as_much_as_it_sees_of_the_training_rows() -> None:
    nc = small_nc(for_tables=True, symmetric=False, metric=False)
    nc.card = replace(nc.card, context_size=8)
    x, y, _ = minibatch(M=32)
    assert NCRegularizer(nc).weight == 1
    assert NCRegularizer(nc, X_tr=x, y_tr=y).weight == 0.25
    assert NCRegularizer(nc, X_tr=x[:8], y_tr=y[:8]).weight == 1
    assert NCRegularizer(nc, X_tr=x, y_tr=y, weight=0.5).weight == 0.5
    assert NCRegularizer(small_nc(), X_tr=x, y_tr=y).weight == 0.1


def pickled(penalty: NCRegularizer) -> NCRegularizer:
    return pickle.loads(pickle.dumps(penalty))  # type: ignore[no-any-return]


@pytest.mark.parametrize("change", [pickled, deepcopy])
@pytest.mark.parametrize("labels", [True, False])
def test_a_copy_goes_on_alike(change: Any, labels: bool) -> None:
    x, y, u = minibatch(labels=labels)
    penalty = NCRegularizer(small_nc(labels=labels), X_tr=x, y_tr=y, safeguard=False)
    model = nn.Linear(3, 4)
    penalty(model, x, y, u)
    copy = change(penalty)
    assert copy.state_dict() == penalty.state_dict()
    assert copy.nc is not penalty.nc
    torch.testing.assert_close(copy(model, x, y, u), penalty(model, x, y, u))


ODD: dict[str, Any] = {
    "sparse": lambda H: H.to_sparse(),
    "meta": lambda H: H.to("meta"),
    "nested": lambda H: torch.nested.nested_tensor(list(H)),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ODD)
def test_tensors_without_dense_values_are_told_in_one_sentence(kind: str) -> None:
    x, y, u = minibatch()
    net, penalty = nn.Linear(3, 4), NCRegularizer(small_nc(), safeguard=False)
    sentence = f"must be a dense tensor that holds values, got a {kind} tensor"
    with pytest.raises(TypeError, match=rf"model\(x\) {sentence}"):
        penalty(lambda x: ODD[kind](net(x)), x, y, u)
    with pytest.raises(TypeError, match=f"y {sentence}"):
        penalty(net, x, ODD[kind](y), u)
