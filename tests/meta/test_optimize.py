from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from neural_complexity.meta.optimize import Optimization, ScheduledOptimizer, Status, optimize
from neural_complexity.seeding import stream
from neural_complexity.workspace import Workspace


class KilledError(Exception):
    pass


def train_line(
    folder: Path | None, stop_after: int | None = None, **change: Any
) -> tuple[nn.Linear, list[Status]]:
    settings = Optimization(**{"updates": 50, "lr": 0.01, "warmup": 0.1, **change})
    torch.manual_seed(0)
    module = nn.Linear(2, 1)
    module.bias.requires_grad_(False)

    def loss(update: int) -> Tensor:
        X = torch.randn(8, 2, generator=stream(0, "x", update))
        error: Tensor = module(X) - X.sum(dim=1, keepdim=True)
        return error.square().mean()

    def callback(stage: str, done: int, total: int, *_: object) -> None:
        assert (stage, total) == ("a line", settings.updates)
        if done == stop_after:
            raise KilledError

    work = Workspace(folder, repr(settings))
    return module, optimize(module, loss, settings, stage="a line", work=work, callback=callback)


@pytest.mark.parametrize("decay", [False, True])
def test_it_is_adam_with_the_scheduled_rate(decay: bool) -> None:
    module, history = train_line(None, decay=decay)
    torch.manual_seed(0)
    twin = nn.Linear(2, 1)
    adam = torch.optim.Adam([twin.weight], lr=0.01)
    settings = Optimization(updates=50, lr=0.01, warmup=0.1, decay=decay)
    for update in range(50):
        adam.param_groups[0]["lr"] = 0.01 * settings.lr_factor(update)
        X = torch.randn(8, 2, generator=stream(0, "x", update))
        loss = (twin(X) - X.sum(dim=1, keepdim=True)).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    torch.testing.assert_close(module.weight, twin.weight)
    assert torch.equal(module.bias, twin.bias)  # it asked for no gradient
    assert [status.iteration for status in history] == list(range(2, 51, 2))
    assert history[-1].loss == pytest.approx(loss.item())


@pytest.mark.parametrize("stops", [[1], [2], [7, 8], [49, 50]])
def test_resumed_equals_uninterrupted(tmp_path: Path, stops: list[int]) -> None:
    module, history = train_line(None)
    for stop in stops:
        with pytest.raises(KilledError):
            train_line(tmp_path, stop_after=stop)
    resumed, again = train_line(tmp_path)
    assert torch.equal(resumed.weight, module.weight)
    assert [status.loss for status in again] == [status.loss for status in history]
    assert [s.seconds for s in again] == sorted(s.seconds for s in again)
    finished, _ = train_line(tmp_path, stop_after=1)  # would die if it went on
    assert torch.equal(finished.weight, module.weight)
    with pytest.raises(ValueError, match="must be of the same settings, got one of others"):
        train_line(tmp_path, lr=0.02)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="updates must be at least 1, got 0"):
        Optimization(updates=0, lr=0.1)
    with pytest.raises(FloatingPointError, match="the loss must be finite, got .* at update 1"):
        train_line(None, lr=1e200, warmup=0.0)


def steps(optimizer: ScheduledOptimizer, count: int) -> None:
    for _ in range(count):
        optimizer.step(optimizer.module(torch.ones(3, 2)).square().sum())


@given(st.integers(0, 6), st.booleans())
def test_resumed_steps_are_those_of_one_go(done: int, muon: bool) -> None:
    def make() -> ScheduledOptimizer:
        torch.manual_seed(0)
        layer = nn.Linear(2, 3)
        own = [p for p in layer.parameters() if muon and p.ndim == 2]
        return ScheduledOptimizer(layer, 0.1, lambda step: 1 / (1 + step), matrices=own)

    whole, first, second = make(), make(), make()
    steps(whole, 6)
    steps(first, done)
    second.load(first.state(), done)
    steps(second, 6 - done)
    for a, b in zip(whole.module.parameters(), second.module.parameters(), strict=True):
        assert torch.equal(a, b)


def test_frozen_parameters_stay_and_a_loss_that_is_not_finite_is_told() -> None:
    module = nn.Linear(2, 1)
    module.bias.requires_grad_(False)
    before = module.bias.clone()
    optimizer = ScheduledOptimizer(module, 0.1, lambda _: 1.0)
    steps(optimizer, 2)
    assert torch.equal(module.bias, before)
    with pytest.raises(FloatingPointError, match="loss must be finite, got nan at update 2"):
        optimizer.step(module.weight.sum() * torch.nan)


def test_muon_moves_matrices_by_orthogonal_steps_and_adam_the_rest() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    before = {name: p.detach().clone() for name, p in layer.named_parameters()}
    own = [p for p in layer.parameters() if p.ndim == 2]
    optimizer = ScheduledOptimizer(layer, 0.1, lambda _: 1.0, matrices=own)
    optimizer.step(layer(torch.randn(64, 4)).pow(4).mean())
    singular = torch.linalg.svdvals(layer.weight.detach() - before["weight"])
    assert singular.max() / singular.min() < 2  # those of the gradient differ much more
    moved = (layer.bias.detach() - before["bias"]).abs()
    assert moved.tolist() == pytest.approx([0.1] * 4, rel=1e-3)  # Adam's first step


def test_losses_in_parts_are_one_loss() -> None:
    X = torch.randn(6, 2)
    layers = []
    for parts in (1, 3):
        torch.manual_seed(0)
        layer = nn.Linear(2, 1)
        optimizer = ScheduledOptimizer(layer, 0.1, lambda _: 1.0, clip=0.1)
        for _ in range(3):
            losses = (layer(part).square().sum() for part in X.chunk(parts))
            value = optimizer.step(next(losses) if parts == 1 else losses)
        layers.append((layer.weight.detach(), torch.tensor(value)))
    for whole, summed in zip(*layers, strict=True):
        torch.testing.assert_close(whole, summed)


def test_gradients_are_cut_to_their_largest_norm() -> None:
    layer = nn.Linear(2, 1)
    optimizer = ScheduledOptimizer(layer, 0.1, lambda _: 1.0, clip=0.5)
    optimizer.step(1e6 * layer(torch.ones(1, 2)).square().sum())
    norm = torch.cat([p.grad.flatten() for p in layer.parameters() if p.grad is not None]).norm()
    assert norm.item() == pytest.approx(0.5, rel=1e-4)
