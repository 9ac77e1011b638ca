from functools import partial

import pytest
import torch

from neural_complexity.learners.batched import BatchedLearner, stack
from neural_complexity.learners.fit import Recipe, evaluate
from neural_complexity.learners.networks import mlp
from neural_complexity.regularizers.noise import VariationalDropout, variational_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import take_snapshot
from neural_complexity.task import Task

make = partial(mlp, 1, (30, 30), 1, noise=VariationalDropout)


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
        values.append(variational_penalty()(h, take_snapshot(h, task))[0].item())
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
    held = recipe.train(task, stream(0, "h"), regularizer=variational_penalty(weight=5.0))
    assert alpha(without) < alpha(held)


def test_learners_without_such_layers_are_refused(task: Task, recipe: Recipe) -> None:
    h = stack(recipe.make, len(task), stream(0, "h"))
    with pytest.raises(ValueError, match="learners must have VariationalDropout layers, got none"):
        variational_penalty()(h, take_snapshot(h, task))


@pytest.mark.parametrize("alpha", [0.0, 1.0, -3.0])
def test_impossible_noise_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match=f"alpha must be between 0 and 1, got {alpha}"):
        VariationalDropout(3, alpha=alpha)
