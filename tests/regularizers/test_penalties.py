import math
from functools import partial

import pytest
import torch

from neural_complexity.learners.batched import BatchedLearner, stack
from neural_complexity.learners.fit import Recipe, evaluate
from neural_complexity.learners.networks import mlp
from neural_complexity.losses import squared_error
from neural_complexity.regularizers.penalties import (
    NORMS,
    VariationalDropout,
    norm_penalty,
    oracle_penalty,
    variational_penalty,
    weighted_l1_penalty,
)
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, take_snapshot
from neural_complexity.task import Task

make = partial(mlp, 1, (30, 30), 1, noise=VariationalDropout)


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


def test_noise_has_mean_one_and_the_variance_alpha() -> None:
    layer = VariationalDropout(3, alpha=0.25)
    out = layer(torch.full((100_000, 3), 2.0))
    assert (out.mean(dim=0) - 2).abs().max() < 0.02
    assert (out.var(dim=0) - 4 * 0.25).abs().max() < 0.03
    layer.eval()
    assert torch.equal(layer(torch.ones(5, 3)), torch.ones(5, 3))


def test_learners_with_noise_start_from_the_same_weights_as_those_without(task: Task) -> None:
    noisy = stack(make, len(task), stream(0, "h"))
    plain = stack(partial(mlp, 1, (30, 30), 1), len(task), stream(0, "h"))
    assert torch.equal(evaluate(noisy, task).H_te, evaluate(plain, task).H_te)


def test_the_penalty_is_the_distance_from_the_prior(task: Task) -> None:
    """Against the integral that the cubic approximates, up to its constant."""
    alphas = torch.tensor([0.05, 0.2, 0.5, 0.9])
    noise = torch.randn(400_000)
    values = []
    for alpha in alphas.tolist():
        layer = partial(VariationalDropout, alpha=alpha)
        h = stack(partial(mlp, 1, (1,), 1, noise=layer), len(task), stream(0, "h"))
        values.append(variational_penalty(h, take_snapshot(h, task))[0].item())
    # KL = -0.5 log alpha + E log |1 + sqrt(alpha) e| + constant, e ~ N(0, 1).
    true = -0.5 * alphas.log() + torch.stack(
        [(1 + alpha.sqrt() * noise).abs().log().mean() for alpha in alphas]
    )
    M = task.X_tr.shape[1]
    found = torch.tensor(values) * M
    torch.testing.assert_close(found - found[0], true - true[0], atol=0.03, rtol=0)


def test_the_penalty_keeps_the_noise_alive(task: Task) -> None:
    recipe = Recipe(make=make, steps=40, lr=0.02)

    def alpha(h: BatchedLearner) -> float:
        state = h.state()
        found = [v for name, v in state.items() if name.endswith("dropout_rho")]
        return torch.cat(found, dim=1).sigmoid().mean().item()

    without = recipe.train(task, stream(0, "h"))
    held = recipe.train(
        task, stream(0, "h"), regularizer=lambda h, snapshot: 5.0 * variational_penalty(h, snapshot)
    )
    assert alpha(without) < alpha(held)


def test_learners_without_such_layers_are_refused(task: Task, recipe: Recipe) -> None:
    h = stack(recipe.make, len(task), stream(0, "h"))
    with pytest.raises(ValueError, match="learners must have VariationalDropout layers, got none"):
        variational_penalty(h, take_snapshot(h, task))


@pytest.mark.parametrize("alpha", [0.0, 1.0, -3.0])
def test_impossible_noise_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match=f"alpha must be between 0 and 1, got {alpha}"):
        VariationalDropout(3, alpha=alpha)


def test_with_the_oracle_learners_descend_their_test_loss(task: Task, recipe: Recipe) -> None:
    oracle = oracle_penalty(squared_error, task.Y_te)
    snapshot = take_snapshot(torch.cos, task)
    objective = squared_error(snapshot.H_tr, task.Y_tr).mean(dim=1) + oracle(
        torch.nn.Identity(), snapshot
    )
    torch.testing.assert_close(objective, squared_error(snapshot.H_te, task.Y_te).mean(dim=1))
    # Swapping the sets, plain learning descends the same loss.
    swapped = Task(task.X_te, task.Y_te, task.X_tr, task.Y_tr)
    with_oracle = recipe.train(task, stream(0, "h"), regularizer=oracle)
    plain = recipe.train(swapped, stream(0, "h"))
    for a, b in zip(with_oracle.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)
