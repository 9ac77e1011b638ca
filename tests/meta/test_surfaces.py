from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from neural_complexity.learners.recipe import Recipe
from neural_complexity.learners.surface import surface
from neural_complexity.meta.surfaces import _expanded, gap_measure
from neural_complexity.model.complexity import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.snapshot import gap, take_snapshot
from neural_complexity.task import Task


@pytest.mark.parametrize("head", ["posterior", "direct"])
def test_in_the_centre_are_the_learners_own_losses(head: str, task: Task, recipe: Recipe) -> None:
    nc = NeuralComplexity.for_tasks(task, head=head, width=8)
    h = recipe.train(task, stream(0, "learners"))
    snapshot = take_snapshot(h, task)
    own = {
        "train loss": nc.loss(snapshot.H_tr, task.Y_tr).mean(dim=1),
        "test loss": nc.loss(snapshot.H_te, task.Y_te).mean(dim=1),
        "gap": gap(nc.loss, snapshot, task.Y_te),
        "NC": nc.predict(*snapshot.tensors()),
    }
    own["regularized loss"] = own["train loss"] + own["NC"]
    for b in range(2):
        measure = gap_measure(nc, task[b : b + 1])
        values = surface(h.one(b), measure, generator=stream(b), size=3, chunk=4).values
        assert set(values) == set(own)
        for name, value in values.items():
            torch.testing.assert_close(value[1, 1], own[name][b].detach())
            assert value.std() > 0


def test_only_the_one_task_of_the_learner_is_taken(task: Task) -> None:
    nc = NeuralComplexity.for_tasks(task, width=8)
    with pytest.raises(ValueError, match="task must be one task, got 6"):
        gap_measure(nc, task)
    wide = task.X_tr[:1].expand(-1, -1, 2)
    with pytest.raises(ValueError, match="X_tr must be"):
        gap_measure(nc, Task(wide, task.Y_tr[:1], wide, task.Y_tr[:1]))


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
