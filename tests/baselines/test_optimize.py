from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neural_complexity.baselines.optimize import Optimization, optimize
from neural_complexity.meta.trainer import Status
from neural_complexity.seeding import stream
from neural_complexity.workspace import Workspace


class KilledError(Exception):
    pass


def train(
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
    module, history = train(None, decay=decay)
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
    module, history = train(None)
    for stop in stops:
        with pytest.raises(KilledError):
            train(tmp_path, stop_after=stop)
    resumed, again = train(tmp_path)
    assert torch.equal(resumed.weight, module.weight)
    assert [status.loss for status in again] == [status.loss for status in history]
    assert [s.seconds for s in again] == sorted(s.seconds for s in again)
    finished, _ = train(tmp_path, stop_after=1)  # would die if it went on
    assert torch.equal(finished.weight, module.weight)
    with pytest.raises(ValueError, match="must be of the same settings, got one of others"):
        train(tmp_path, lr=0.02)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="updates must be at least 1, got 0"):
        Optimization(updates=0, lr=0.1)
    with pytest.raises(FloatingPointError, match="the loss must be finite, got .* at update 1"):
        train(None, lr=1e200, warmup=0.0)
