import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from neural_complexity.meta.optimizer import ScheduledAdam, warmup_cosine


@given(progress=st.floats(0, 1), warmup=st.floats(0.01, 0.9))
def test_the_learning_rate_rises_then_falls_to_zero(progress: float, warmup: float) -> None:
    assert 0 <= warmup_cosine(progress, warmup=warmup, decay=True) <= 1
    assert warmup_cosine(0.0, warmup=warmup, decay=True) == 0.04
    assert warmup_cosine(warmup, warmup=warmup, decay=True) == 1
    assert warmup_cosine(1.0, warmup=warmup, decay=True) < 1e-12
    assert warmup_cosine(progress, warmup=0.0, decay=False) == 1  # the paper's


def steps(optimizer: ScheduledAdam, count: int) -> None:
    for _ in range(count):
        optimizer.step(optimizer.module(torch.ones(3, 2)).square().sum())


@given(st.integers(0, 6))
def test_resumed_steps_are_those_of_one_go(done: int) -> None:
    def make() -> ScheduledAdam:
        torch.manual_seed(0)
        return ScheduledAdam(nn.Linear(2, 1), 0.1, lambda step: 1 / (1 + step))

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
    optimizer = ScheduledAdam(module, 0.1)
    steps(optimizer, 2)
    assert torch.equal(module.bias, before)
    with pytest.raises(FloatingPointError, match="loss must be finite, got nan at update 2"):
        optimizer.step(module.weight.sum() * torch.nan)
