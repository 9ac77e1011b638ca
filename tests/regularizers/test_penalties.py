import math
import pickle
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, kstest
from torch import Tensor

from conftest import flat
from neural_complexity.learners.batched import BatchedLearner, stack
from neural_complexity.learners.fit import Recipe, evaluate, fit
from neural_complexity.learners.networks import mlp
from neural_complexity.losses import Loss, cross_entropy, smoothed_cross_entropy, squared_error
from neural_complexity.regularizers.penalties import (
    NORMS,
    VariationalDropout,
    mixup,
    norm_penalty,
    oracle_penalty,
    variational_penalty,
    weighted_l1_penalty,
)
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, take_snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.images import FewShot

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


# Mixup.


sizes = st.integers(1, 6)


class Watched(BatchedLearner):
    """Learners that remember what they were shown and what they said."""

    shown: Tensor
    said: Tensor

    def forward(self, X: Tensor) -> Tensor:
        self.shown, self.said = X, super().forward(X)
        return self.said


def unit_inputs(B: int, M: int, C: int) -> tuple[Watched, Task]:
    """Makes tasks whose point i is the i-th unit vector: a mixed input is the weights in it."""
    h = stack(partial(mlp, M, (5,), C), B, stream(0, "h"))
    state = {name: value.detach() for name, value in h.state().items()}
    X, Y = torch.eye(M).expand(B, M, M), torch.randint(C, (B, M))
    return Watched(mlp(M, (5,), C), state), Task(X, Y, X, Y)


@given(
    B=sizes,
    M=sizes,
    C=sizes,
    alpha=st.floats(1e-9, 1e6),
    loss=st.sampled_from([cross_entropy, smoothed_cross_entropy(0.1)]),
)
def test_the_objective_is_the_loss_of_mixed_inputs_for_mixed_targets(
    B: int, M: int, C: int, alpha: float, loss: Loss
) -> None:
    h, task = unit_inputs(B, M, C)
    value = mixup(loss, alpha)(h, task)
    assert value.shape == (B,)
    W, H = h.shown, h.said  # (B, M, M), (B, M, C)
    losses = torch.stack(
        [loss(H, task.Y_tr[:, j : j + 1].expand(B, M)) for j in range(M)], dim=-1
    )  # (B, M, M): of mixed input i for target j
    torch.testing.assert_close(value, (W * losses).sum(dim=2).mean(dim=1))
    # Each point is mixed with one other, no two with the same, in one proportion for each task.
    for sums in (W.sum(dim=1), W.sum(dim=2)):
        torch.testing.assert_close(sums, torch.ones(B, M))
    for w in W:
        other = w[~torch.eye(M, dtype=torch.bool)]
        other = other[other > 0]
        assert other.numel() <= M
        torch.testing.assert_close(other, other[:1].expand_as(other))


@pytest.mark.parametrize("alpha", [0.4, 1.0, 20.0])
def test_shares_are_beta_distributed_and_partners_uniform(alpha: float) -> None:
    h, task = unit_inputs(4000, 3, 2)
    mixup(cross_entropy, alpha)(h, task)
    partners = h.shown[:, 0, 1:] > 0  # of the first point, where it is not its own
    assert (partners.double().mean(dim=0) - 1 / 3).abs().max() < 4 * (2 / 9 / 4000) ** 0.5
    mixed = partners.any(dim=1)
    assert kstest(h.shown[mixed, 0, 0].numpy(), beta(alpha, alpha).cdf).pvalue > 1e-3


def test_towards_zero_it_trains_as_without(task: Task, recipe: Recipe) -> None:
    # Shares of 0 and 1 alone: all inputs, if in another order, with their own targets.
    plain, mixed, strong = (stack(recipe.make, len(task), stream(0, "h")) for _ in range(3))
    options = {"loss": squared_error, "steps": 5, "lr": 0.05}
    fit(plain, task, **options)  # type: ignore[arg-type]
    fit(mixed, task, objective=mixup(squared_error, 1e-6), **options)  # type: ignore[arg-type]
    fit(strong, task, objective=mixup(squared_error, 1.0), **options)  # type: ignore[arg-type]
    for name, value in plain.state().items():
        torch.testing.assert_close(mixed.state()[name], value)
    assert not torch.allclose(strong.state()["0.weight"], plain.state()["0.weight"])


def test_single_precision_takes_any_alpha() -> None:
    torch.set_default_dtype(torch.float32)
    for alpha in (1e-20, 1e-3, 1e20):
        h, task = unit_inputs(100, 4, 2)
        assert mixup(cross_entropy, alpha)(h, task).isfinite().all()
        mean = float(h.shown.diagonal(dim1=1, dim2=2).mean())
        assert 0.5 < mean < 0.75  # of shares around 1/2, and of points mixed with themselves


def test_the_recipes_generator_decides_what_is_mixed(task: Task, recipe: Recipe) -> None:
    mixing = Recipe(make=recipe.make, steps=3, lr=0.05, objective=mixup(squared_error, 1.0))
    before = torch.get_rng_state()
    a, b, c = (mixing.train(task, stream(seed, "h"))(task.X_te) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_points_are_looked_up_before_they_are_mixed(few_shot: FewShot) -> None:
    task = few_shot.sample(4, stream(0, "x"))
    objective = mixup(cross_entropy, 1.0)
    recipe = Recipe(make=flat, loss=cross_entropy, steps=3, lr=0.5, objective=objective)
    a, b = (recipe.train(t, stream(0, "h")) for t in (task, task.loaded()))
    for name, value in b.state().items():
        assert torch.equal(a.state()[name], value)


def test_it_can_be_sent_to_another_process() -> None:
    h, task = unit_inputs(2, 3, 2)
    objective = mixup(cross_entropy, 0.7)
    values = []
    for one in (objective, pickle.loads(pickle.dumps(objective))):
        torch.manual_seed(5)
        values.append(one(h, task))
    assert torch.equal(*values)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_alpha_is_positive(alpha: float) -> None:
    with pytest.raises(ValueError, match=f"alpha must be positive and finite, got {alpha}"):
        mixup(cross_entropy, alpha)
