from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import holds_for_seeds
from glyphs import thumbnails
from neural_complexity.baselines.trained import (
    Classifier,
    nearest_neighbour_logits,
    prototype_logits,
    train_classifier,
    train_maml,
    train_metareg,
    train_prototypes,
)
from neural_complexity.learners.batched import PlacedLearner, stack
from neural_complexity.learners.fit import Recipe, train_learners, unroll
from neural_complexity.learners.networks import mlp
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.optimize import Optimization
from neural_complexity.meta.trainer import MetaTraining
from neural_complexity.model.attention import soft_k_means
from neural_complexity.model.encoders import ImageEncoder
from neural_complexity.points import Points, values
from neural_complexity.regularizers.penalties import weighted_l1_penalty
from neural_complexity.seeding import seeded, stream
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.tasks.images import FewShot, moved
from neural_complexity.workspace import Workspace

few = Sinusoids(train_points=5, test_points=7)


def maml(
    recipe: Recipe, *, seed: int = 0, work: Workspace | None = None, **change: Any
) -> nn.Module:
    training = Optimization(**{"updates": 7, "tasks": 6, "steps": 2, "lr": 0.01, **change})
    learned, _ = train_maml(few, recipe, training, seed=seed, work=work)
    module: nn.Module = learned.make.args[0]  # type: ignore[attr-defined]
    return module


def one_by_one(recipe: Recipe, module: nn.Module, task: Task, steps: int) -> Tensor:
    """Computes what MAML descends, with one learner after the other."""
    losses = []
    for b in range(len(task)):
        part = task[b : b + 1]
        own = {name: p.unsqueeze(0) for name, p in module.named_parameters()}
        start = PlacedLearner(module, own, tuple(own))
        h = unroll(start, part, recipe, steps=steps)
        losses.append(recipe.loss(h(part.X_te), part.Y_te).mean(dim=1))
    return torch.cat(losses).mean()


def test_a_step_follows_the_gradient_through_training_of_all_tasks(recipe: Recipe) -> None:
    with seeded(0, "MAML weights"):
        module = recipe.make()
    task = few.sample(6, stream(0, "MAML tasks", 0))
    parameters = list(module.parameters())
    expected = torch.autograd.grad(one_by_one(recipe, module, task, 3), parameters)
    trained = maml(recipe, steps=3, updates=1)
    for parameter, gradient in zip(trained.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_the_gradient_is_of_second_order(recipe: Recipe, task: Task) -> None:
    """Against differences of the loss: the first-order gradient does not pass."""
    recipe = replace(recipe, make=partial(mlp, 1, (8,), 1, activation=nn.Tanh), lr=0.1)
    module = recipe.make()
    weight = module[0].weight  # type: ignore[index]
    direction = torch.randn_like(weight)
    (gradient,) = torch.autograd.grad(one_by_one(recipe, module, task, 3), [weight])
    ends = []
    for side in (1e-5, -1e-5):
        with torch.no_grad():
            weight += side * direction
        ends.append(one_by_one(recipe, module, task, 3).item())
        with torch.no_grad():
            weight -= side * direction
    slope = (ends[0] - ends[1]) / 2e-5
    assert (gradient * direction).sum().item() == pytest.approx(slope, rel=1e-6)


def test_the_seed_decides_everything(recipe: Recipe) -> None:
    torch.manual_seed(1)
    first = maml(recipe)
    torch.manual_seed(2)
    second, other = maml(recipe), maml(recipe, seed=1)
    ends = [next(module.parameters()) for module in (first, second, other)]
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_learners_start_from_the_parameters_and_leave_them_alone(
    recipe: Recipe, task: Task
) -> None:
    training = Optimization(updates=1, lr=0.01)
    started, _ = train_maml(few, recipe, training, seed=0)
    module = started.make()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for name, value in stack(started.make, 4, stream(0, "h")).state().items():
        assert torch.equal(value, before[name].expand(4, *before[name].shape))
    started.train(task, stream(0, "h"))
    for name, value in started.make().state_dict().items():
        assert torch.equal(value, before[name])
    assert (started.loss, started.steps, started.lr) == (recipe.loss, recipe.steps, recipe.lr)


@pytest.mark.trains
def test_it_makes_learning_quicker_than_from_where_it_began(recipe: Recipe) -> None:
    recipe = replace(recipe, make=partial(mlp, 1, (40, 40), 1), lr=0.01)

    def quicker(seed: int) -> bool:
        task = few.sample(256, stream(seed, "held out"))
        with seeded(seed, "MAML weights"):
            start = recipe.make()
        end = maml(recipe, seed=seed, updates=120, tasks=32, steps=3, lr=0.02)
        copied = (replace(recipe, make=partial(deepcopy, module)) for module in (start, end))
        before, after = (
            train_learners(started, task, seed=seed).loss_te[-1].mean() for started in copied
        )
        return bool(after < 0.7 * before)

    holds_for_seeds(quicker)


def test_buffers_and_frozen_parameters_stay_as_they_are() -> None:
    def make() -> nn.Module:
        module = mlp(1, (4,), 1)
        module[0].bias.requires_grad_(False)
        module.register_buffer("unused", torch.ones(2))
        return module

    recipe = Recipe(make=make)
    with seeded(0, "MAML weights"):
        before = make().state_dict()
    after = maml(recipe, updates=1).state_dict()
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed == {"0.weight", "2.weight", "2.bias"}


def test_a_checkpoint_of_another_recipe_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    first, again = (maml(recipe, work=Workspace(tmp_path)) for _ in range(2))
    assert torch.equal(next(first.parameters()), next(again.parameters()))
    with pytest.raises(ValueError, match="must be of the same settings, got one of others"):
        maml(replace(recipe, lr=0.3), work=Workspace(tmp_path))


@pytest.mark.parametrize("name", ["updates", "tasks", "steps"])
def test_impossible_sizes_are_refused(recipe: Recipe, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        maml(recipe, **{name: 0})  # type: ignore[arg-type]


small = Recipe(make=partial(mlp, 1, (8,), 1), steps=8, lr=0.01)
many = Sinusoids(train_points=4, test_points=20)


def metareg(updates: int = 8, **options: Any) -> list[Tensor]:
    training = Optimization(updates=updates, lr=0.02, tasks=64)
    return train_metareg(many, small, training, **{"seed": 0, **options})


@pytest.mark.trains
def test_learned_weights_lower_the_test_loss_of_new_tasks() -> None:
    def lower(seed: int) -> bool:
        weights = metareg(60, seed=seed)
        assert [w.shape for w in weights] == [(8, 1), (8,), (1, 8), (1,)]
        task = many.sample(1000, stream(seed + 7, "new tasks"))
        penalty = weighted_l1_penalty(weights)
        helped = train_learners(small, task, seed=7, penalty=lambda _: penalty).loss_te[-1]
        change = helped - train_learners(small, task, seed=7).loss_te[-1]
        return bool(change.mean() < -2 * change.std() / 1000**0.5)

    holds_for_seeds(lower)


def test_stopped_and_resumed_the_weights_are_the_same(tmp_path: Path) -> None:
    whole = metareg()

    def stop(stage: str, done: int, total: int, *_: object) -> None:
        assert (stage, total) == ("MetaReg", 8)
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        metareg(work=Workspace(tmp_path), callback=stop)
    heard: list[int] = []
    again = metareg(work=Workspace(tmp_path), callback=lambda _, done, *__: heard.append(done))
    assert heard == [6, 7, 8]  # it went on
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))
    with pytest.raises(ValueError, match="must be of the same settings, got one of others"):
        metareg(9, work=Workspace(tmp_path))


def test_a_loss_that_is_not_finite_is_told() -> None:
    diverging = Recipe(make=small.make, steps=60, lr=1e9)
    with pytest.raises(FloatingPointError, match="the loss must be finite, got"):
        train_metareg(many, diverging, Optimization(updates=2, lr=0.02, tasks=4), seed=0)


CLASSES = 3
dataset = thumbnails(classes=CLASSES, drawings=20)
labels = dataset.labels
chosen = torch.randperm(60, generator=torch.Generator().manual_seed(0))[:50]
images = Points(chosen, dataset)


def classifier(seed: int = 0, lr: float = 0.01, updates: int = 40) -> tuple[Classifier, list[int]]:
    with seeded(0, "classifier"):
        encoder = ImageEncoder((1, 7, 7), channels=8, layers=2)
        model = Classifier(encoder, CLASSES, width=16)
    told: list[int] = []
    train_classifier(
        model,
        images,
        labels[chosen],
        Optimization(updates=updates, lr=lr, warmup=0.1),
        batch=16,
        augment=partial(moved, pixels=1),
        seed=seed,
        callback=lambda _, done, *__: told.append(done),
    )
    return model, told


def error(model: Classifier) -> float:
    logits = model.classify(images)
    return (logits.argmax(dim=1) != labels[chosen]).double().mean().item()


@pytest.mark.trains
def test_a_classifier_learns() -> None:
    def learns(seed: int) -> bool:
        model, told = classifier(seed=seed, updates=100)
        assert told == list(range(1, 101))
        return error(model) < 0.1 < 0.4 < error(classifier(seed=seed, updates=1)[0])

    holds_for_seeds(learns)


def test_seed_and_initial_weights_decide_everything() -> None:
    (one, _), (same, _), (other, _) = (classifier(seed=seed, updates=3) for seed in (0, 0, 1))
    logits = [model.classify(images) for model in (one, same, other)]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


def test_a_classifier_classifies_points_as_their_values() -> None:
    model, _ = classifier(updates=1)
    some = Points(torch.tensor([7, 3, 59]), dataset)
    with torch.no_grad():
        expected = model(some.values())
    found = model.classify(some)
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad


def test_a_loss_of_images_that_is_not_finite_is_told() -> None:
    with pytest.raises(FloatingPointError, match="the loss must be finite, got"):
        classifier(lr=1e200)


def make(few_shot: FewShot) -> ImageEncoder:
    torch.manual_seed(0)
    encoder = ImageEncoder((1, 7, 7), channels=4, layers=2)
    encoder.calibrate(values(few_shot.sample(32, stream(0, "units")).X_tr))
    return encoder


@pytest.fixture
def tasks(few_shot: FewShot) -> Task:
    return few_shot.sample(3, stream(0, "x")).loaded()


def with_test(task: Task, X_te: Tensor) -> Task:
    return Task(task.X_tr, task.Y_tr, X_te, torch.zeros(X_te.shape[:2], dtype=torch.int64))


def test_a_class_is_as_likely_as_its_mean_is_close(few_shot: FewShot, tasks: Task) -> None:
    """Snell et al. (2017) written out, with distances measured in half the root of the width."""
    encoder = make(few_shot)
    probabilities = prototype_logits(encoder, tasks, classes=3).softmax(dim=-1)
    for b in range(3):
        E_tr, E_te = encoder(tasks.X_tr[b]), encoder(tasks.X_te[b])
        means = [E_tr[tasks.Y_tr[b] == c].mean(dim=0) for c in range(3)]
        for n, e in enumerate(E_te):
            squares = torch.stack([(e - mean).square().sum() for mean in means])
            expected = (-squares / (2 * len(e) ** 0.5)).softmax(dim=0)
            torch.testing.assert_close(probabilities[b, n], expected)


def test_a_class_without_images_is_no_error(few_shot: FewShot, tasks: Task) -> None:
    encoder = make(few_shot)
    found = prototype_logits(encoder, tasks, classes=5)
    assert found.isfinite().all()
    torch.testing.assert_close(found[..., :3], prototype_logits(encoder, tasks, classes=3))
    torch.testing.assert_close(found[..., 3], found[..., 4])


def test_other_test_images_count_only_in_rounds(few_shot: FewShot, tasks: Task) -> None:
    encoder = make(few_shot)
    few = with_test(tasks, tasks.X_te[:, :2])
    torch.testing.assert_close(
        prototype_logits(encoder, few, classes=3),
        prototype_logits(encoder, tasks, classes=3)[:, :2],
    )
    rounds = prototype_logits(encoder, tasks, classes=3, rounds=2)
    assert not torch.allclose(prototype_logits(encoder, few, classes=3, rounds=2), rounds[:, :2])
    E_tr, E_te = encoder(tasks.X_tr), encoder(tasks.X_te)
    means = torch.stack(
        [torch.stack([E_tr[b, tasks.Y_tr[b] == c].mean(dim=0) for c in range(3)]) for b in range(3)]
    )
    means = soft_k_means(E_te, means, heads=1, rounds=2)
    squares = (E_te.unsqueeze(2) - means.unsqueeze(1)).square().sum(dim=-1)
    torch.testing.assert_close(rounds, -squares / (2 * E_te.shape[-1] ** 0.5))


@pytest.mark.parametrize("rounds", [0, 2])
def test_order_and_names_mean_nothing(few_shot: FewShot, tasks: Task, rounds: int) -> None:
    encoder = make(few_shot)
    found = prototype_logits(encoder, tasks, classes=3, rounds=rounds)
    tr, te, names = torch.randperm(6), torch.randperm(6), torch.tensor([2, 0, 1])
    mixed = Task(tasks.X_tr[:, tr], tasks.Y_tr[:, tr], tasks.X_te[:, te], tasks.Y_te[:, te])
    torch.testing.assert_close(
        prototype_logits(encoder, mixed, classes=3, rounds=rounds), found[:, te]
    )
    torch.testing.assert_close(
        prototype_logits(encoder, tasks[1:2], classes=3, rounds=rounds), found[1:2]
    )
    renamed = Task(tasks.X_tr, names[tasks.Y_tr], tasks.X_te, names[tasks.Y_te])
    torch.testing.assert_close(
        prototype_logits(encoder, renamed, classes=3, rounds=rounds)[..., names], found
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_nearest_neighbour_is_the_nearest(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    E_tr, E_te = (torch.randn(4, points, 3, generator=generator) + 5 for points in (6, 9))
    Y_tr = torch.randint(5, (4, 6), generator=generator)
    found = nearest_neighbour_logits(E_tr, Y_tr, E_te, classes=5)
    assert found.shape == (4, 9, 5)
    assert found.dtype == E_te.dtype
    for b in range(4):
        for n in range(9):
            distances = [float((E_te[b, n] - e).norm()) for e in E_tr[b]]
            label = Y_tr[b, distances.index(min(distances))]
            assert found[b, n].tolist() == [float(c == label) for c in range(5)]


@pytest.mark.trains
@pytest.mark.parametrize("rounds", [0, 3])
def test_prototypes_learn(few_shot: FewShot, rounds: int) -> None:
    training = MetaTraining(iterations=6, updates=6, tasks=8, batch=8, lr=0.01, warmup=0.1)
    held_out = few_shot.sample(64, stream(1, "held-out"))

    def score(encoder: ImageEncoder) -> float:
        logits = prototype_logits(encoder, held_out, classes=3, rounds=rounds)
        return cross_entropy(logits, held_out.Y_te).mean().item()

    def learns(seed: int) -> bool:
        fresh = make(few_shot)
        before = score(fresh)
        settings: dict[str, Any] = {"seed": seed, "classes": 3, "rounds": rounds}
        train_prototypes(fresh, few_shot, training, **settings)
        return score(fresh) < 0.8 * before

    holds_for_seeds(learns)


@pytest.mark.parametrize("rounds", [0, 3])
def test_prototypes_learn_the_same_again(few_shot: FewShot, rounds: int) -> None:
    training = MetaTraining(iterations=6, updates=6, tasks=8, batch=8, lr=0.01, warmup=0.1)
    settings: dict[str, Any] = {"training": training, "classes": 3, "rounds": rounds}
    heard: list[int] = []
    trained, again, other = (make(few_shot) for _ in range(3))
    train_prototypes(
        trained, few_shot, seed=0, callback=lambda _, n, *__: heard.append(n), **settings
    )
    assert heard == list(range(1, 37))
    train_prototypes(again, few_shot, seed=0, **settings)
    train_prototypes(other, few_shot, seed=1, **settings)
    assert all(
        torch.equal(value, again.state_dict()[name]) for name, value in trained.state_dict().items()
    )
    assert any(
        not torch.equal(value, other.state_dict()[name])
        for name, value in trained.state_dict().items()
    )
