import math

import pytest
import torch

from neural_complexity.learners.batched import BatchedLearner, stack
from neural_complexity.learners.fit import Recipe
from neural_complexity.regularizers.norms import NORMS, norm_penalty, weighted_l1_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, take_snapshot
from neural_complexity.task import Task


@pytest.fixture
def h(recipe: Recipe) -> BatchedLearner:
    return stack(recipe.make, 6, stream(0, "h"))


@pytest.fixture
def snapshot(h: BatchedLearner, task: Task) -> Snapshot:
    return take_snapshot(h, task)


def by_hand(name: str, weights: list[torch.Tensor], biases: list[torch.Tensor]) -> float:
    """Computes a norm of one learner, matrix by matrix."""
    if name == "L1":
        return sum(p.abs().sum().item() for p in weights + biases)
    if name == "L2":
        return sum(p.pow(2).sum().item() for p in weights + biases)
    if name == "Frobenius":
        return math.prod(float(torch.linalg.matrix_norm(W)) for W in weights)
    if name == "L1,inf":  # of a matrix, the largest sum of absolute values in a row
        return math.prod(float(torch.linalg.matrix_norm(W, math.inf)) for W in weights)
    if name == "L3,1.5":
        rows = [(W.abs() ** 3).sum(dim=1) ** (1 / 3) for W in weights]
        return math.prod(float((r**1.5).sum() ** (1 / 1.5)) for r in rows)
    assert name == "orthogonal"
    return sum((W @ W.T - torch.eye(len(W))).abs().sum().item() for W in weights)


@pytest.mark.parametrize("name", NORMS)
def test_each_norm_is_that_of_each_learner_alone(
    name: str, h: BatchedLearner, snapshot: Snapshot
) -> None:
    penalty = norm_penalty(name, 0.3)(h, snapshot)
    for b in range(6):
        own = [p[b].detach() for p in h.parameters()]
        weights, biases = ([p for p in own if p.ndim == n] for n in (2, 1))
        assert penalty[b].item() == pytest.approx(0.3 * by_hand(name, weights, biases))


@pytest.mark.parametrize("name", NORMS)
def test_norms_grow_with_the_parameters_and_have_gradients(
    name: str, h: BatchedLearner, snapshot: Snapshot
) -> None:
    penalty = norm_penalty(name, 1.0)
    before = penalty(h, snapshot)
    gradients = torch.autograd.grad(before.sum(), list(h.parameters()), allow_unused=True)
    assert any(g is not None and g.abs().sum() > 0 for g in gradients)
    with torch.no_grad():
        for p in h.parameters():
            p.mul_(5)
    assert (penalty(h, snapshot) > before).all()


def test_equal_weights_make_the_weighted_norm_the_plain_one(
    h: BatchedLearner, snapshot: Snapshot
) -> None:
    weights = [torch.full(p.shape[1:], 0.7) for p in h.parameters()]
    torch.testing.assert_close(
        weighted_l1_penalty(weights)(h, snapshot), norm_penalty("L1", 0.7)(h, snapshot)
    )


def test_unknown_norms_are_refused() -> None:
    with pytest.raises(ValueError, match="norm must be one of L1, .*, got L7"):
        norm_penalty("L7", 1.0)
