import pickle
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from conftest import labelled_snapshot
from neural_complexity.learners.batched import stack
from neural_complexity.learners.fit import fit
from neural_complexity.learners.networks import mlp
from neural_complexity.losses import squared_error
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.regularizers.lazy import every, lazy_penalty
from neural_complexity.regularizers.loop import NCRegularizer
from neural_complexity.regularizers.nc import nc_penalty
from neural_complexity.regularizers.penalties import oracle_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, take_snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids

HEADS = ("posterior", "direct")


def labelled_task() -> Task:
    seen = labelled_snapshot()
    return Task(seen.X_tr, seen.Y_tr, seen.X_te, torch.zeros(seen.H_te.shape[:2]).long())


def on_labels(head: str) -> tuple[NeuralComplexity, Task]:
    task, sizes = labelled_task(), dict[str, Any](width=16, heads=2)
    return NeuralComplexity.for_tasks(task, head=head, loss="cross_entropy", **sizes), task


def on_numbers(head: str) -> tuple[NeuralComplexity, Task]:
    task = Sinusoids(train_points=5, test_points=7).sample(6, stream(0, "test tasks"))
    return NeuralComplexity.for_tasks(task, head=head, width=16), task


def predictions(task: Task, outputs: int, seed: int) -> Snapshot:
    """Those of some learners, which gradients are asked of."""
    drawing = torch.Generator().manual_seed(seed)
    H_tr, H_te = (
        torch.randn(*X.shape[:2], outputs, generator=drawing).requires_grad_()
        for X in (task.X_tr, task.X_te)
    )
    return Snapshot(task.X_tr, task.Y_tr, H_tr, task.X_te, H_te)


def slopes(penalty: Tensor, snapshot: Snapshot) -> list[Tensor]:
    return list(torch.autograd.grad(penalty.sum(), [snapshot.H_tr, snapshot.H_te]))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("make", [on_labels, on_numbers])
@pytest.mark.parametrize("floor", [None, 0.0])
def test_it_is_exact_where_nc_is_asked(make: Any, head: str, floor: float | None) -> None:
    nc, task = make(head)
    own = lazy_penalty(nc, task, steps=2, weight=0.7, floor=floor)
    usual = nc_penalty(nc, task, weight=0.7, safeguard=False, floor=floor)
    for step in range(5):
        snapshot = predictions(task, nc.outputs, step)
        told, true = (p(nn.Identity(), snapshot) for p in (own, usual))
        if step % 2 == 0:
            torch.testing.assert_close(told, true)
            torch.testing.assert_close(slopes(told, snapshot), slopes(true, snapshot))
        elif head == "direct":
            assert not torch.isclose(told, true).all()


@given(st.integers(1, 4), st.integers(0, 99), st.sampled_from([on_labels, on_numbers]))
def test_beliefs_need_not_be_asked_again(steps: int, seed: int, make: Any) -> None:
    nc, task = make("posterior")
    own, usual = lazy_penalty(nc, task, steps=steps), nc_penalty(nc, task, safeguard=False)
    for step in range(steps + 1):
        snapshot = predictions(task, nc.outputs, seed + step)
        told, true = (p(nn.Identity(), snapshot) for p in (own, usual))
        torch.testing.assert_close(told, true)
        torch.testing.assert_close(slopes(told, snapshot), slopes(true, snapshot))


def test_nc_is_asked_as_seldom_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    nc, task = on_numbers("direct")
    asked, losses = list[Tensor](), nc.losses

    def ask(*given: Any) -> Tensor:
        asked.append(losses(*given))
        return asked[-1]

    monkeypatch.setattr(nc, "losses", ask)
    h = stack(partial(mlp, 1, (4,), 1), len(task), stream(0, "learners"))
    fit(h, task, steps=7, lr=0.01, regularizer=lazy_penalty(nc, task, steps=3))
    assert len(asked) == 3


def test_learners_lose_little_by_a_lazy_penalty(single_precision: None) -> None:
    task = Sinusoids().sample(256, stream(0, "lazy"))
    nc = NeuralComplexity.pretrained("sinusoid-direct")

    def ended(penalty: Any) -> float:
        h = stack(partial(mlp, 1, (40, 40), 1), len(task), stream(0, "learners"))
        fit(h, task, loss=squared_error, steps=16, lr=0.01, regularizer=penalty)
        end = take_snapshot(h, task)
        return squared_error(end.H_te, task.Y_te).mean().item()

    plain, oracle = ended(None), ended(oracle_penalty(squared_error, task.Y_te))
    shares = [
        (plain - ended(lazy_penalty(nc, task, steps=steps))) / (plain - oracle) for steps in (1, 16)
    ]
    assert shares[0] > 0.95
    assert shares[1] > shares[0] - 0.04


def test_a_weight_in_turns_adds_up(task: Task) -> None:
    for weight in (every(3, 0.5), pickle.loads(pickle.dumps(every(3, 0.5)))):
        assert [weight(done) for done in range(7)] == [1.5, 0, 0, 1.5, 0, 0, 1.5]
    nc = NeuralComplexity.for_tasks(task, width=16)
    always, seldom = (
        NCRegularizer(nc, weight=weight, safeguard=False) for weight in (0.5, every(3, 0.5))
    )
    model = nn.Linear(1, 1)
    told = [
        [p(model, task.X_tr[0], task.Y_tr[0], task.X_te[0]).item() for _ in range(4)]
        for p in (always, seldom)
    ]
    assert told[1] == pytest.approx([3 * told[0][0], 0, 0, 3 * told[0][0]])


@pytest.mark.parametrize("steps", [0, -1])
def test_there_must_be_steps(steps: int, task: Task) -> None:
    nc = NeuralComplexity.for_tasks(task, width=16)
    with pytest.raises(ValueError, match=f"steps must be at least 1, got {steps}"):
        every(steps)
    with pytest.raises(ValueError, match=f"steps must be at least 1, got {steps}"):
        lazy_penalty(nc, task, steps=steps)
