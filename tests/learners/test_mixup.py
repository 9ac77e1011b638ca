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
from neural_complexity.learners.fit import fit
from neural_complexity.learners.mixup import mixup
from neural_complexity.learners.networks import mlp
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import Loss, SmoothedCrossEntropy, cross_entropy, squared_error
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.few_shot import FewShot

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
    loss=st.sampled_from([cross_entropy, SmoothedCrossEntropy(0.1)]),
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
