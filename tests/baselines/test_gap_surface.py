from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from torch import Tensor

from neural_complexity.baselines.gap_surface import _expanded, gap_measure
from neural_complexity.learners.batched import surface
from neural_complexity.learners.fit import Recipe
from neural_complexity.losses import squared_error
from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.snapshot import gap, take_snapshot
from neural_complexity.task import Task

HEADS: tuple[Literal["posterior", "direct"], ...] = ("posterior", "direct")


def test_in_the_centre_are_the_learners_own_losses(task: Task, recipe: Recipe) -> None:
    networks: dict[str, NeuralComplexity] = {}
    for head in HEADS:
        networks[head] = NeuralComplexity.for_tasks(task, head=head, width=8)
    loss = recipe.loss
    h = recipe.train(task, stream(0, "learners"))
    snapshot = take_snapshot(h, task)
    own = {
        "train loss": loss(snapshot.H_tr, task.Y_tr).mean(dim=1),
        "test loss": loss(snapshot.H_te, task.Y_te).mean(dim=1),
        "gap": gap(loss, snapshot, task.Y_te),
    }
    for name, nc in networks.items():
        own[f"NC, {name}"] = nc.predict(*snapshot.tensors())
        own[f"regularized loss, {name}"] = own["train loss"] + own[f"NC, {name}"]
    for b in range(2):
        measure = gap_measure(networks, task[b : b + 1], loss=loss)
        values = surface(h.one(b), measure, generator=stream(b), size=3, chunk=4)
        assert set(values) == {"alpha", "beta", *own}
        for name, value in own.items():
            torch.testing.assert_close(values[name][1, 1], value[b].detach())
            assert values[name].std() > 0


def test_the_task_is_encoded_once_for_the_whole_plane(
    task: Task, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    nc = NeuralComplexity.for_tasks(task, width=8)
    seen = []
    encode = nc.encode

    def counted(X_tr: Tensor, Y_tr: Tensor, X_te: Tensor, *, classes: int | None) -> Context:
        seen.append(len(X_tr))
        return encode(X_tr, Y_tr, X_te, classes=classes)

    monkeypatch.setattr(nc, "encode", counted)
    h = recipe.train(task[:1], stream(0, "learners")).one(0)
    measure = gap_measure({"nc": nc}, task[:1], loss=recipe.loss)
    surface(h, measure, generator=stream(0), size=3, chunk=2)
    assert seen == [1]


def test_only_the_one_task_of_the_learner_is_taken(task: Task) -> None:
    nc = NeuralComplexity.for_tasks(task, width=8)
    with pytest.raises(ValueError, match="task must be one task, got 6"):
        gap_measure({"nc": nc}, task, loss=squared_error)
    wide = task.X_tr[:1].expand(-1, -1, 2)
    fits_not = Task(wide, task.Y_tr[:1], wide, task.Y_tr[:1])
    with pytest.raises(ValueError, match="X_tr must be"):
        gap_measure({"nc": nc}, fits_not, loss=squared_error)


@dataclass(frozen=True)
class Leaf:
    x: Tensor
    name: str


@dataclass(frozen=True)
class Tree:
    leaf: Leaf
    y: Tensor | None


def test_what_is_expanded_keeps_its_shape_and_its_memory() -> None:
    x = torch.randn(1, 2, 3)
    found = _expanded(Tree(Leaf(x, "a"), None), 5)
    assert isinstance(found, Tree)
    assert found.leaf.x.shape == (5, 2, 3)
    assert found.leaf.x.data_ptr() == x.data_ptr()
    assert found.y is None
    assert found.leaf.name == "a"
