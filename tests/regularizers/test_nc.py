from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from conftest import convolutional, flat
from neural_complexity.learners.batched import BatchedLearner, stack
from neural_complexity.learners.fit import Recipe
from neural_complexity.losses import Categorical, cross_entropy
from neural_complexity.model.cached import Encoder, cache, embed_store
from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.regularizers.nc import minibatch_penalty, nc_penalty
from neural_complexity.regularizers.trust import trust
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, take_snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.images import FewShot


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


@pytest.fixture(params=["posterior", "direct"])
def image_nc(request: pytest.FixtureRequest, few_shot: FewShot) -> NeuralComplexity:
    return NeuralComplexity.for_tasks(
        few_shot.sample(16, stream(0, "units")).loaded(),
        head=request.param,
        loss="cross_entropy",
        symmetric=True,
        width=8,
        channels=4,
        image_layers=2,
    )


@pytest.mark.parametrize("make", [flat, convolutional])
def test_on_images_the_penalty_is_the_weighted_prediction_and_reaches_every_learner(
    image_nc: NeuralComplexity, few_shot: FewShot, make: Callable[[], nn.Module]
) -> None:
    task = few_shot.sample(4, stream(1, "x")).loaded()
    h = stack(make, 4, stream(0, "h"))
    snapshot = take_snapshot(h, task)
    penalty = nc_penalty(image_nc, task, weight=2.0, safeguard=False)(h, snapshot)
    torch.testing.assert_close(penalty, 2 * image_nc.predict(*snapshot.tensors()))
    together = torch.autograd.grad(penalty.sum(), list(h.parameters()))
    for b in range(4):
        row = slice(b, b + 1)
        state = {name: value[row].detach().clone() for name, value in h.state().items()}
        alone = BatchedLearner(make(), state)
        own = nc_penalty(image_nc, task[row], weight=2.0, safeguard=False)
        value = own(alone, take_snapshot(alone, task[row]))
        torch.testing.assert_close(value, penalty[row])
        gradients = torch.autograd.grad(value.sum(), list(alone.parameters()))
        for gradient, all_rows in zip(gradients, together, strict=True):
            torch.testing.assert_close(gradient, all_rows[row])
            assert gradient.abs().sum() > 0


def test_on_images_regularizing_changes_learners_and_leaves_nc_untouched(
    image_nc: NeuralComplexity, few_shot: FewShot, image_recipe: Recipe
) -> None:
    task = few_shot.sample(4, stream(1, "x")).loaded()
    before = {name: value.clone() for name, value in image_nc.state_dict().items()}
    plain = image_recipe.train(task, stream(0, "h"))
    penalties = {
        weight: nc_penalty(image_nc, task, weight=weight, safeguard=False) for weight in (0.0, 1.0)
    }
    zero, one = (
        image_recipe.train(task, stream(0, "h"), regularizer=penalty)
        for penalty in penalties.values()
    )
    for a, b, c in zip(plain.parameters(), zero.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)  # summed in another order
        assert not torch.allclose(a, c)
    assert all(parameter.grad is None for parameter in image_nc.parameters())
    assert all(torch.equal(before[name], value) for name, value in image_nc.state_dict().items())


def test_on_images_inductive_penalties_judge_h_on_the_given_inputs_alone(
    image_nc: NeuralComplexity, few_shot: FewShot
) -> None:
    task, other = (few_shot.sample(4, stream(k, "x")).loaded() for k in (1, 2))
    h = stack(flat, 4, stream(0, "h"))
    X = other.X_te[:, :4]
    mixed = Task(task.X_tr, task.Y_tr, X, other.Y_te[:, :4])
    inductive = nc_penalty(image_nc, task, X_unlabelled=X, safeguard=False)
    transductive = nc_penalty(image_nc, mixed, safeguard=False)
    torch.testing.assert_close(
        inductive(h, take_snapshot(h, task)), transductive(h, take_snapshot(h, mixed))
    )


def test_a_step_against_the_posterior_penalty_alone_moves_logits_to_the_belief(
    few_shot: FewShot,
) -> None:
    """What NC is for: at weight 1 the penalty takes training loss out and test loss in."""
    nc = NeuralComplexity.for_tasks(
        few_shot.sample(16, stream(0, "units")).loaded(),
        loss="cross_entropy",
        width=8,
        channels=4,
        image_layers=2,
    )
    task = few_shot.sample(4, stream(1, "x")).loaded()
    belief = nc.belief(task.X_tr, task.Y_tr, task.X_te)
    assert isinstance(belief, Categorical)
    H_te = torch.randn(4, 6, 3, requires_grad=True)
    H_tr = torch.randn(4, 6, 3)

    def objective(H: Tensor) -> Tensor:
        snapshot = Snapshot(task.X_tr, task.Y_tr, H_tr, task.X_te, H)
        penalty = nc_penalty(nc, task, safeguard=False)(nn.Identity(), snapshot)
        return cross_entropy(H_tr, task.Y_tr).mean(dim=1) + penalty

    (pull,) = torch.autograd.grad(objective(H_te).sum(), H_te)
    torch.testing.assert_close(pull, (H_te.softmax(dim=-1) - belief.probabilities).detach() / 6)
    expected = cross_entropy.expected(H_te, belief).mean(dim=1)
    torch.testing.assert_close(objective(H_te), expected)


def test_a_symmetric_nc_regularizes_learners_of_other_numbers_of_classes(
    image_nc: NeuralComplexity, few_shot: FewShot
) -> None:
    task = FewShot(few_shot.images, ways=5, shots=1, queries=1).sample(2, stream(0, "x")).loaded()
    H_tr, H_te = torch.randn(2, 5, 5), torch.randn(2, 5, 5)
    snapshot = Snapshot(task.X_tr, task.Y_tr, H_tr, task.X_te, H_te)
    penalty = nc_penalty(image_nc, task, classes=5, safeguard=False)
    torch.testing.assert_close(
        penalty(nn.Identity(), snapshot), image_nc.predict(*snapshot.tensors())
    )
    with pytest.raises(ValueError, match="Y_tr must be from 0 to 2, got 0 to 4"):
        nc_penalty(image_nc, task, safeguard=False)
    H_tr, H_te = torch.randn(2, 5, 7), torch.randn(2, 5, 7)
    more = Snapshot(task.X_tr, task.Y_tr, H_tr, task.X_te, H_te)
    with pytest.raises(ValueError, match="logits must be of the 5 classes that .*, got 7"):
        penalty(nn.Identity(), more)


def test_one_shot_tasks_cannot_be_safeguarded(
    image_nc: NeuralComplexity, few_shot: FewShot
) -> None:
    once = FewShot(few_shot.images, ways=few_shot.ways, shots=1, queries=2)
    with pytest.raises(ValueError, match="safeguard must have two training points of some class"):
        nc_penalty(image_nc, once.sample(2, stream(0, "x")).loaded())


def test_labels_are_safeguarded_where_a_class_has_two_points(
    image_nc: NeuralComplexity, few_shot: FewShot
) -> None:
    twice = FewShot(few_shot.images, ways=few_shot.ways, shots=2, queries=2)
    task = twice.sample(3, stream(0, "x")).loaded()
    snapshot = take_snapshot(lambda X: torch.randn(*X.shape[:2], few_shot.ways), task)
    ways = few_shot.ways
    full = nc_penalty(image_nc, task, safeguard=False, classes=ways)(nn.Identity(), snapshot)
    part = nc_penalty(image_nc, task, classes=ways)(nn.Identity(), snapshot)
    share = trust(image_nc, task.X_tr, task.Y_tr, classes=ways)
    torch.testing.assert_close(part, share.square() * full)
    assert ((share >= 0) & (share <= 1)).all()


def test_a_context_at_hand_is_used(image_nc: NeuralComplexity, few_shot: FewShot) -> None:
    task = few_shot.sample(4, stream(1, "x")).loaded()
    h = stack(flat, 4, stream(0, "h"))
    context = image_nc.encode(task.X_tr, (task.Y_tr + 1) % 3, task.X_te)  # another one
    context = Context(task.Y_tr, context.state)
    snapshot = take_snapshot(h, task)
    given = nc_penalty(image_nc, task, safeguard=False, context=context)(h, snapshot)
    expected = image_nc.points(context, snapshot.H_tr, snapshot.H_te).mean(dim=1)
    torch.testing.assert_close(given, expected)


def test_images_that_nc_cannot_judge_are_refused_at_once(
    image_nc: NeuralComplexity, few_shot: FewShot
) -> None:
    task = few_shot.sample(2, stream(0, "x")).loaded()
    with pytest.raises(ValueError, match=r"X_te must be \(tasks, points, 1, 7, 7\), got shape"):
        nc_penalty(image_nc, task, X_unlabelled=task.X_te.flatten(2))
    with pytest.raises(TypeError, match="X_te must be torch.float64 like NC, got torch.float32"):
        nc_penalty(image_nc, task, X_unlabelled=task.X_te.float())


@pytest.fixture(params=["posterior", "direct"])
def by_index(
    request: pytest.FixtureRequest, few_shot: FewShot
) -> tuple[NeuralComplexity, Task, Task, Encoder]:
    """An NC, tasks as images and as points, and what it knows of the points."""
    points = few_shot.sample(4, stream(0, "by number"))
    images = points.loaded()
    nc = NeuralComplexity.for_tasks(images, loss="cross_entropy", head=request.param, width=16)
    embeddings = embed_store(nc, few_shot.images, torch.arange(len(few_shot.images)))
    return nc, images, points, cache(nc, points, embeddings)


def test_by_index_the_penalty_is_the_same(
    by_index: tuple[NeuralComplexity, Task, Task, Encoder], image_recipe: Recipe
) -> None:
    nc, images, points, encode = by_index
    h = stack(image_recipe.make, len(images), stream(0, "h"))
    snapshot = take_snapshot(h, images)
    named = Snapshot(points.X_tr, points.Y_tr, snapshot.H_tr, points.X_te, snapshot.H_te)
    weights = torch.linspace(0, 2, len(images))
    for floor in (None, -0.1, 0.2):
        own = minibatch_penalty(nc, encode, weight=weights, floor=floor)(h, named)
        usual = nc_penalty(nc, images, weight=weights, floor=floor, safeguard=False)(h, snapshot)
        torch.testing.assert_close(own, usual)
        parameters = list(h.parameters())
        for a, b in zip(
            torch.autograd.grad(own.sum(), parameters, retain_graph=True),
            torch.autograd.grad(usual.sum(), parameters, retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(a, b)


def test_by_index_there_is_no_gradient_below_the_floor(
    by_index: tuple[NeuralComplexity, Task, Task, Encoder], image_recipe: Recipe
) -> None:
    nc, images, points, encode = by_index
    h = stack(image_recipe.make, len(images), stream(0, "h"))
    snapshot = take_snapshot(h, images)
    named = Snapshot(points.X_tr, points.Y_tr, snapshot.H_tr, points.X_te, snapshot.H_te)
    free = minibatch_penalty(nc, encode, floor=None)(h, named)
    floor = free.median().item()
    penalty = minibatch_penalty(nc, encode, floor=floor)(h, named)
    torch.testing.assert_close(penalty, free.clamp(min=floor))
    parameters = list(h.parameters())
    gradients = torch.autograd.grad(penalty.sum(), parameters)
    for gradient in gradients:
        size = gradient.flatten(1).norm(dim=1)
        assert (size[free < floor] == 0).all()
    assert (free < floor).any()
    total = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).sum(dim=0)
    assert (total[free > floor] > 0).all()


def test_the_papers_floor_is_the_default(
    by_index: tuple[NeuralComplexity, Task, Task, Encoder],
) -> None:
    nc, _, points, encode = by_index
    sharp = 30 * torch.nn.functional.one_hot(points.Y_te, 3).to(torch.get_default_dtype())
    flat_logits = torch.zeros(*points.Y_tr.shape, 3)
    named = Snapshot(points.X_tr, points.Y_tr, flat_logits, points.X_te, sharp)
    assert minibatch_penalty(nc, encode)(torch.nn.Identity(), named).min() >= -0.1
