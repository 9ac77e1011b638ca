import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neural_complexity.convert.module_copy import evaluation_copy


class Odd(nn.Module):
    """Holds modules, what is bound to them and what cannot be copied, outside of its children."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.noise = nn.Linear(2, 2), nn.Dropout()
        self.steps: dict[str, Any] = {"all": [self.linear, self.noise], "bound": (self.step,)}
        self.later = partial(Odd.step, self)
        self.locks, self.calls = [threading.Lock()], 0
        self.kept: list[Tensor] = []
        self.register_forward_hook(self.check)

    def step(self, X: Tensor) -> Tensor:
        assert not self.training
        return X

    def check(self, module: nn.Module, *_: Any) -> None:
        assert module is self
        assert not self.noise.training

    def forward(self, X: Tensor) -> Tensor:
        self.calls += 1
        self.kept.append(self.linear(X))  # not a leaf of its graph, which deepcopy refuses
        with self.locks[0], torch.enable_grad():
            self.linear(X).sum().backward()
        for step in self.steps["all"]:
            X = step(X)
        return self.later(self.steps["bound"][0](X))


def test_a_copy_is_asked_and_the_module_stays_as_it_is() -> None:
    model = Odd()
    model.kept.append(model.linear(torch.ones(1, 2)))
    copy: Any = evaluation_copy(model)
    torch.testing.assert_close(copy(torch.ones(3, 2)), model.linear(torch.ones(3, 2)))
    assert (model.calls, len(model.kept), model.linear.weight.grad) == (0, 1, None)
    assert all(module.training for module in model.modules())
    assert copy.linear.weight.data_ptr() == model.linear.weight.data_ptr()


def test_gradients_go_to_the_module_if_they_are_to() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    evaluation_copy(model, learns=True)(torch.ones(1, 2)).sum().backward()
    assert model[0].weight.grad is not None
    assert model[1].num_batches_tracked == 0


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "change", [torch.jit.script, torch.fx.symbolic_trace, nn.utils.weight_norm, nn.DataParallel]
)
def test_modules_of_every_kind_can_be_copied(change: Any) -> None:
    model = change(nn.Linear(2, 2) if change is nn.utils.weight_norm else Noisy())
    model(torch.ones(4, 2))  # after which some keep tensors of a graph
    copy = evaluation_copy(model)
    torch.testing.assert_close(copy(torch.ones(4, 2)), copy(torch.ones(4, 2)))
    assert all(module.training for module in model.modules())


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.noise = nn.Linear(2, 2), nn.Dropout()

    def forward(self, X: Tensor) -> Tensor:
        return self.noise(self.linear(X))  # type: ignore[no-any-return]


class Waiting(Noisy):
    """Answers when two threads ask at once, in which each sees what the other does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.barrier = nn.BatchNorm1d(2), threading.Barrier(2, timeout=60)

    def forward(self, X: Tensor) -> Tensor:
        self.barrier.wait()
        self.norm(X)
        H = super().forward(X)
        self.barrier.wait()
        return H


def test_threads_may_ask_at_once_while_the_module_trains() -> None:
    model, X = Waiting(), torch.ones(3, 2)
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(lambda: evaluation_copy(model)(X))
        model(X)  # in training mode
        torch.testing.assert_close(asked.result(), model.linear(X))
        assert all(module.training for module in model.modules())
        assert model.norm.num_batches_tracked == 1
        first, second = (pool.submit(lambda: evaluation_copy(model)(X)) for _ in range(2))
        torch.testing.assert_close(first.result(), second.result())
    assert all(module.training for module in model.modules())
    assert model.norm.num_batches_tracked == 1


def test_what_cannot_be_copied_is_told_in_one_sentence() -> None:
    class Refusing(nn.Linear):
        def __deepcopy__(self, memo: Any) -> nn.Module:
            raise RuntimeError("there is one of us.\nAlways")

    sentence = "must be a module that copy.deepcopy can copy, .*, got RuntimeError: there is one"
    with pytest.raises(ValueError, match=sentence):
        evaluation_copy(Refusing(1, 1))
