from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import one_hot

from conftest import convolutional, flat, labelled_snapshot
from neural_complexity.beliefs import Categorical, Gaussian
from neural_complexity.learners.batched import BatchedLearner, stack
from neural_complexity.learners.fit import Recipe
from neural_complexity.losses import cross_entropy
from neural_complexity.model.cached import Encoder, cache, embed_store
from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.regularizers.nc import (
    minibatch_penalty,
    nc_penalty,
    proof,
    reliance,
    safeguard_factor,
    trust,
)
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, take_snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids, StepFunctions
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


class Believer(NeuralComplexity):
    """Believes what it is told to, whatever it is shown."""

    def __init__(self, mean: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__(1, 1, width=8)
        self.mean = mean

    def context(
        self,
        E_tr: torch.Tensor,
        Y_tr: torch.Tensor,
        E_te: torch.Tensor,
        *,
        classes: int | None = None,
    ) -> Context:
        assert len(E_tr) == len(E_te)
        assert classes is None
        mean = self.mean(E_te)  # its units are those of the inputs
        return Context(Y_tr, Gaussian(mean, torch.full_like(mean, 0.5)))


def test_an_nc_that_knows_the_truth_is_trusted_and_one_that_errs_is_not(task: Task) -> None:
    # One sinusoid for all, so that the truth is a function of x.
    Y_tr = 2 * torch.sin(task.X_tr + 1)
    knows = Believer(lambda X: 2 * torch.sin(X + 1))
    torch.testing.assert_close(trust(knows, task.X_tr, Y_tr), torch.ones(len(task)))
    errs = Believer(lambda X: 2 * torch.sin(X + 1) + 20)
    assert torch.equal(trust(errs, task.X_tr, Y_tr), torch.zeros(len(task)))
    half = Believer(lambda X: 2 * torch.sin(X + 1) + 0.5)
    between = trust(half, task.X_tr, Y_tr)
    assert ((between > 0) & (between < 1)).any()


@given(st.integers(1, 25), st.integers(1, 3), st.integers(0, 1000))
def test_it_is_a_share_for_each_task_alone(points: int, features: int, seed: int) -> None:
    torch.set_default_dtype(torch.float64)
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(4, points, features, generator=generator)
    Y = torch.randn(4, points, 1, generator=generator)
    X[1] = X[1, :1]  # all the same
    Y[2] = 0.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        nc = NeuralComplexity(features, 1, width=8)
    found = trust(nc, X, Y)
    assert found.shape == (4,)
    assert ((found >= 0) & (found <= 1)).all()
    alone = torch.cat([trust(nc, X[b : b + 1], Y[b : b + 1]) for b in range(4)])
    torch.testing.assert_close(found, alone)
    if points == 1:
        assert not found.any()


def test_tasks_of_images_with_real_targets_can_be_tested_too() -> None:
    X, Y = torch.randn(4, 6, 1, 4, 4), torch.randn(4, 6, 1)
    nc = NeuralComplexity((1, 4, 4), 1, width=8, channels=4, image_layers=1)
    found = trust(nc, X, Y)
    assert found.shape == (4,)
    assert ((found >= 0) & (found <= 1)).all()
    alone = torch.cat([trust(nc, X[b : b + 1], Y[b : b + 1]) for b in range(4)])
    torch.testing.assert_close(found, alone)


def classifier(shape: tuple[int, ...], C: int = 3, **more: Any) -> NeuralComplexity:
    size = shape[0] if len(shape) == 1 else shape
    options: dict[str, Any] = {"width": 8, "channels": 4, "image_layers": 1, **more}
    return NeuralComplexity(size, C, loss="cross_entropy", symmetric=True, **options)


@pytest.mark.parametrize("shape", [(2,), (1, 4, 4)])
@pytest.mark.parametrize("head", ["posterior", "direct"])
@settings(max_examples=8)
@given(points=st.integers(4, 25), seed=st.integers(0, 1000))
def test_with_labels_it_is_a_share_for_each_task_alone(
    shape: tuple[int, ...], head: str, points: int, seed: int
) -> None:
    torch.set_default_dtype(torch.float64)
    s = labelled_snapshot(B=4, M=points, inputs=shape, seed=seed)  # three classes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        nc = classifier(shape, head=head)
    found = trust(nc, s.X_tr, s.Y_tr)
    assert ((found >= 0) & (found <= 1)).all()
    alone = torch.cat([trust(nc, s.X_tr[b : b + 1], s.Y_tr[b : b + 1]) for b in range(4)])
    torch.testing.assert_close(found, alone)
    # What classes are called does not matter, nor how many more of them there could be.
    names = torch.tensor([4, 0, 2])
    torch.testing.assert_close(
        trust(nc, s.X_tr, names[s.Y_tr], classes=5),
        trust(nc, s.X_tr, s.Y_tr, classes=5),
    )


class Oracle(NeuralComplexity):
    """Knows that the label is the sign of x, but of classes that it has not been shown nothing."""

    def context(
        self,
        E_tr: torch.Tensor,
        Y_tr: torch.Tensor,
        E_te: torch.Tensor,
        *,
        classes: int | None = None,
    ) -> Context:
        assert len(E_tr) == len(E_te)
        assert classes is None
        true = one_hot((E_te.squeeze(-1) > 0).long(), 2)
        shown = torch.stack([(Y_tr == c).any(dim=1) for c in range(2)], dim=1)  # (B, C)
        known = (true * shown.unsqueeze(1)).to(E_te.dtype)
        return Context(Y_tr, Categorical(100 * known))


@pytest.mark.parametrize("points", [4, 10, 30, 33])
@pytest.mark.parametrize("rare", [1, 2, 3])
def test_labels_that_nobody_could_know_are_not_held_against_nc(points: int, rare: int) -> None:
    nc = Oracle(1, 2, loss="cross_entropy", width=8)
    X = torch.randn(3, points, 1).abs()
    X[:, :rare] *= -1
    torch.testing.assert_close(trust(nc, X, (X.squeeze(-1) > 0).long()), torch.ones(3))


def test_a_task_with_one_point_of_each_class_is_not_trusted() -> None:
    nc = classifier((2,))
    X, Y = torch.randn(2, 3, 2), torch.tensor([[0, 1, 2], [0, 1, 1]])
    assert trust(nc, X, Y)[0] == 0
    with pytest.raises(ValueError, match="the safeguard must have two training points of some"):
        trust(nc, X[:1], Y[:1])
    with pytest.raises(ValueError, match="the safeguard must have two training points of some"):
        trust(nc, X[:, :1], Y[:, :1])


def test_targets_too_large_for_their_squares_are_not_trusted() -> None:
    torch.set_default_dtype(torch.float32)
    task = Sinusoids().sample(3, stream(0, "x"))
    nc = NeuralComplexity.pretrained("sinusoid")
    assert torch.equal(trust(nc, task.X_tr, 1e25 * task.Y_tr), torch.zeros(3))


def test_up_to_ten_points_their_order_does_not_matter(task: Task) -> None:
    for head in ("posterior", "direct"):
        nc = NeuralComplexity.for_tasks(task, head=head, width=16)
        order = torch.tensor([3, 1, 4, 0, 2])
        torch.testing.assert_close(
            trust(nc, task.X_tr, task.Y_tr), trust(nc, task.X_tr[:, order], task.Y_tr[:, order])
        )


def test_held_out_targets_are_not_shown(task: Task) -> None:
    """An NC that copies the nearest shown target is not taken in by its own points."""
    seen: list[tuple[int, int]] = []

    class Spy(Believer):
        def context(
            self,
            E_tr: torch.Tensor,
            Y_tr: torch.Tensor,
            E_te: torch.Tensor,
            *,
            classes: int | None = None,
        ) -> Context:
            for shown, held in zip(E_tr, E_te, strict=True):
                assert not (shown[:, None, 0] == held[None, :, 0]).any()
            seen.append((E_tr.shape[1], E_te.shape[1]))
            return super().context(E_tr, Y_tr, E_te, classes=classes)

    trust(Spy(torch.sin), task.X_tr, task.Y_tr)
    many = Sinusoids(train_points=23).sample(3, stream(0, "x"))
    trust(Spy(torch.sin), many.X_tr, many.Y_tr)
    assert seen == [(4, 1), (21, 2)]


@pytest.mark.parametrize("name", ["sinusoid", "sinusoid-direct"])
def test_the_shipped_ncs_trust_themselves_on_sinusoids_and_not_on_steps(name: str) -> None:
    torch.set_default_dtype(torch.float32)
    nc = NeuralComplexity.pretrained(name)
    own, other = (f.sample(200, stream(0, "x")) for f in (Sinusoids(), StepFunctions()))
    assert trust(nc, own.X_tr, own.Y_tr).mean() > 0.8
    assert trust(nc, other.X_tr, other.Y_tr).mean() < 0.1


def test_the_safeguard_multiplies_the_weight(task: Task) -> None:
    nc = NeuralComplexity.for_tasks(task, width=16)
    h, weights = torch.nn.Identity(), torch.linspace(0.1, 2, len(task))
    snapshot = take_snapshot(h, task)
    for weight in (3.0, weights):
        plain = nc_penalty(nc, task, weight=weight, safeguard=False)(h, snapshot)
        safe = nc_penalty(nc, task, weight=weight)(h, snapshot)
        torch.testing.assert_close(safe, plain * trust(nc, task.X_tr, task.Y_tr) ** 2)


class Sure(NeuralComplexity):
    """Believes in one of two classes by the first feature, with some confidence."""

    def __init__(self, logit: float) -> None:
        super().__init__(1, 2, loss="cross_entropy", for_tables=True)
        self.logit = logit

    def context(
        self,
        E_tr: Tensor,  # noqa: ARG002
        Y_tr: Tensor,
        E_te: Tensor,
        *,
        classes: int | None = None,  # noqa: ARG002
    ) -> Context:
        logits = self.logit * E_te[..., :1].sign() * torch.tensor([-1.0, 1.0])
        return Context(Y_tr, Categorical(logits))


def noisy_labels(right: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(1, 1500, 1, generator=generator)
    Y = (X[..., 0] > 0) == (torch.rand(1, 1500, generator=generator) < right)
    return X, Y.long()


def test_who_is_as_sure_as_one_can_be_is_relied_on_however_noisy_labels_are() -> None:
    X, Y = noisy_labels(0.7)
    fair = Sure(0.5 * torch.tensor(0.7 / 0.3).log().item())
    assert reliance(fair, X, Y, classes=2).item() > 0.9
    assert trust(fair, X, Y, classes=2).item() < 0.4
    assert proof(fair, X, Y, classes=2) == reliance(fair, X, Y, classes=2)
    assert safeguard_factor(fair, 0.5) == 0.5
    certain = reliance(Sure(5.0), X, Y, classes=2).item()
    assert certain < 0.7
    assert reliance(Sure(-2.0), X, Y, classes=2).item() == 0  # who is always wrong


def test_other_ncs_must_show_that_they_understand(nc: NeuralComplexity, task: Task) -> None:
    found = proof(nc, task.X_tr, task.Y_tr)
    torch.testing.assert_close(found, trust(nc, task.X_tr, task.Y_tr))
    assert safeguard_factor(nc, 0.5) == 0.25
