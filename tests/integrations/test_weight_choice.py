from functools import partial

import pytest
import torch

from neural_complexity.integrations.weight_choice import RegularizedTraining
from neural_complexity.learners.fit import Recipe, evaluate
from neural_complexity.learners.networks import mlp
from neural_complexity.losses import cross_entropy
from neural_complexity.model.card import Card
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import raw


def regularized(points: int, seed: int = 0, head: str = "posterior") -> RegularizedTraining:
    """An NC that sees ten points at most, and points of three classes."""
    options = {"loss": "cross_entropy", "symmetric": True, "metric": True, "head": head}
    nc = NeuralComplexity(3, 3, width=8, heads=2, **options)
    nc.card = Card(context_size=10)
    X, Y = torch.randn(points, 3), torch.arange(points) % 3
    recipe = Recipe(make=partial(mlp, 3, (8,), 3), loss=cross_entropy, steps=5, lr=0.1)
    return RegularizedTraining(X, Y, recipe, batch=8, seed=seed, nc=nc, classes=3, floor=None)


@pytest.mark.parametrize("n", [2, 5, 40])
def test_without_other_inputs_nc_judges_on_points_that_it_does_not_see(n: int) -> None:
    own = regularized(40, seed=n)
    task, seen = own.arrange(torch.arange(n), torch.arange(0))
    known, judged = set(raw(seen.X_tr)[0].tolist()), set(raw(task.X_te)[0].tolist())
    assert known | judged <= set(range(n))
    assert not known & judged
    assert len(known) == min(10, n - -(-n // 4))
    assert len(judged) == -(-n // 4)
    assert torch.equal(raw(task.X_te), raw(seen.X_te))
    assert torch.equal(seen.Y_tr[0], own.Y[raw(seen.X_tr)[0]])
    if n == 40:
        other, _ = regularized(40, seed=1).arrange(torch.arange(n), torch.arange(0))
        assert not torch.equal(raw(other.X_te), raw(task.X_te))


@pytest.mark.parametrize("head", ["posterior", "direct"])
def test_a_penalty_speaks_for_the_points_that_it_judges_on(head: str) -> None:
    own = regularized(40, head=head)
    points = torch.arange(40)
    task, seen = own.arrange(points[:30], points[30:])
    encode = own.encoder(seen)
    h = own.train(task)
    whole = own.penalty(encode, task, 0.5)
    assert whole is not None
    snapshot = evaluate(h, task)
    assert whole(h, snapshot).item() == pytest.approx(0.5 * own.gap(encode, task, h))
    assert own.penalty(encode, task, 0.0) is None
    inductive, seen = own.arrange(points, points[:0])  # a quarter of the training points
    part = own.penalty(own.encoder(seen), inductive, 0.5)
    assert part is not None
    again = evaluate(h, inductive)
    gap = own.gap(own.encoder(seen), inductive, h)
    assert part(h, again).item() == pytest.approx(0.5 * gap / 4)
