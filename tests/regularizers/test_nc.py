import pytest
import torch

from neural_complexity.learners.recipe import Recipe
from neural_complexity.model.complexity import NeuralComplexity
from neural_complexity.regularizers.nc import nc_penalty
from neural_complexity.seeding import stream
from neural_complexity.snapshot import take_snapshot
from neural_complexity.task import Task


@pytest.fixture(params=["posterior", "direct"])
def nc(request: pytest.FixtureRequest, task: Task) -> NeuralComplexity:
    return NeuralComplexity.for_tasks(task, head=request.param, width=16)


def test_the_penalty_is_the_weighted_prediction(nc: NeuralComplexity, task: Task) -> None:
    snapshot = take_snapshot(torch.cos, task)
    predicted = nc.predict(*snapshot.tensors())
    weights = torch.linspace(0, 1, len(task))
    h = torch.nn.Identity()
    torch.testing.assert_close(
        nc_penalty(nc, task, weight=2.0, safeguard=False)(h, snapshot), 2 * predicted
    )
    torch.testing.assert_close(
        nc_penalty(nc, task, weight=weights, safeguard=False)(h, snapshot), weights * predicted
    )


def test_below_the_floor_there_is_no_gradient(nc: NeuralComplexity, task: Task) -> None:
    scale = torch.tensor(1.0, requires_grad=True)
    snapshot = take_snapshot(lambda X: scale * X, task)
    predicted = nc.predict(*snapshot.tensors())
    floor = predicted.median().item()
    penalty = nc_penalty(nc, task, floor=floor, safeguard=False)(torch.nn.Identity(), snapshot)
    torch.testing.assert_close(penalty, predicted.clamp(min=floor))
    below = (penalty * (predicted < floor)).sum()
    assert torch.autograd.grad(below, scale, retain_graph=True)[0] == 0
    assert torch.autograd.grad(penalty.sum(), scale)[0] != 0


def test_inductive_penalties_judge_h_on_the_given_inputs_alone(
    nc: NeuralComplexity, task: Task
) -> None:
    X = torch.randn_like(task.X_te)
    h = torch.nn.Tanh()
    other = Task(task.X_tr, task.Y_tr, X, task.Y_te)
    inductive = nc_penalty(nc, task, X_unlabelled=X)(h, take_snapshot(h, task))
    transductive = nc_penalty(nc, other)(h, take_snapshot(h, other))
    torch.testing.assert_close(inductive, transductive)


def test_what_nc_cannot_judge_is_refused_at_once(nc: NeuralComplexity, task: Task) -> None:
    with pytest.raises(ValueError, match="X_te must be finite, got NaN or infinity"):
        nc_penalty(nc, task, X_unlabelled=torch.full_like(task.X_te, torch.nan))
    with pytest.raises(TypeError, match="X_te must be torch.float64 like NC, got torch.float32"):
        nc_penalty(nc, task, X_unlabelled=task.X_te.float())
    with pytest.raises(ValueError, match="weight must be one number or one per task"):
        nc_penalty(nc, task, weight=torch.ones(len(task), 1))


def test_regularizing_leaves_nc_untouched(nc: NeuralComplexity, task: Task, recipe: Recipe) -> None:
    before = {name: value.clone() for name, value in nc.state_dict().items()}
    recipe.train(task, stream(0, "h"), regularizer=nc_penalty(nc, task))
    assert all(parameter.grad is None for parameter in nc.parameters())
    assert all(torch.equal(before[name], value) for name, value in nc.state_dict().items())


def test_weight_zero_learns_what_no_regularizer_learns(
    nc: NeuralComplexity, task: Task, recipe: Recipe
) -> None:
    plain = recipe.train(task, stream(0, "h"))
    zero = recipe.train(task, stream(0, "h"), regularizer=nc_penalty(nc, task, weight=0.0))
    assert all(
        torch.equal(a, b) for a, b in zip(plain.parameters(), zero.parameters(), strict=True)
    )
