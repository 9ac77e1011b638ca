from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import holds_for_seeds
from glyphs import thumbnails
from neural_complexity.baselines.image_baselines import (
    Classifier,
    PrototypicalNetwork,
    nearest_neighbour_logits,
    train_classifier,
    train_prototypes,
)
from neural_complexity.baselines.unrolled import Optimization
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.trainer import MetaTraining
from neural_complexity.model.attention import soft_k_means
from neural_complexity.model.encoders import ImageEncoder
from neural_complexity.points import Points, values
from neural_complexity.seeding import seeded, stream
from neural_complexity.task import Task
from neural_complexity.tasks.images import FewShot, moved

CLASSES = 3
dataset = thumbnails(classes=CLASSES, drawings=20)
labels = dataset.labels
chosen = torch.randperm(60, generator=torch.Generator().manual_seed(0))[:50]
images = Points(chosen, dataset)


def trained(seed: int = 0, lr: float = 0.01, updates: int = 40) -> tuple[Classifier, list[int]]:
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
        model, told = trained(seed=seed, updates=100)
        assert told == list(range(1, 101))
        return error(model) < 0.1 < 0.4 < error(trained(seed=seed, updates=1)[0])

    holds_for_seeds(learns)


def test_seed_and_initial_weights_decide_everything() -> None:
    (one, _), (same, _), (other, _) = (trained(seed=seed, updates=3) for seed in (0, 0, 1))
    logits = [model.classify(images) for model in (one, same, other)]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


def test_a_classifier_classifies_points_as_their_values() -> None:
    model, _ = trained(updates=1)
    some = Points(torch.tensor([7, 3, 59]), dataset)
    with torch.no_grad():
        expected = model(some.values())
    found = model.classify(some)
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad


def test_a_loss_that_is_not_finite_is_told() -> None:
    with pytest.raises(FloatingPointError, match="the loss must be finite, got"):
        trained(lr=1e200)


def make(few_shot: FewShot) -> PrototypicalNetwork:
    torch.manual_seed(0)
    encoder = ImageEncoder((1, 7, 7), channels=4, layers=2)
    encoder.calibrate(values(few_shot.sample(32, stream(0, "units")).X_tr))
    return PrototypicalNetwork(encoder)


@pytest.fixture
def tasks(few_shot: FewShot) -> Task:
    return few_shot.sample(3, stream(0, "x")).loaded()


def with_test(task: Task, X_te: Tensor) -> Task:
    return Task(task.X_tr, task.Y_tr, X_te, torch.zeros(X_te.shape[:2], dtype=torch.int64))


def test_a_class_is_as_likely_as_its_mean_is_close(few_shot: FewShot, tasks: Task) -> None:
    """Snell et al. (2017) written out, with distances measured in half the root of the width."""
    net = make(few_shot)
    probabilities = net(tasks, classes=3).softmax(dim=-1)
    for b in range(3):
        E_tr, E_te = net.encoder(tasks.X_tr[b]), net.encoder(tasks.X_te[b])
        means = [E_tr[tasks.Y_tr[b] == c].mean(dim=0) for c in range(3)]
        for n, e in enumerate(E_te):
            squares = torch.stack([(e - mean).square().sum() for mean in means])
            expected = (-squares / (2 * len(e) ** 0.5)).softmax(dim=0)
            torch.testing.assert_close(probabilities[b, n], expected)


def test_a_class_without_images_is_no_error(few_shot: FewShot, tasks: Task) -> None:
    net = make(few_shot)
    found = net(tasks, classes=5)
    assert found.isfinite().all()
    torch.testing.assert_close(found[..., :3], net(tasks, classes=3))
    torch.testing.assert_close(found[..., 3], found[..., 4])


def test_other_test_images_count_only_in_rounds(few_shot: FewShot, tasks: Task) -> None:
    net = make(few_shot)
    few = with_test(tasks, tasks.X_te[:, :2])
    torch.testing.assert_close(net(few, classes=3), net(tasks, classes=3)[:, :2])
    rounds = net(tasks, classes=3, rounds=2)
    assert not torch.allclose(net(few, classes=3, rounds=2), rounds[:, :2])
    E_tr, E_te = net.encoder(tasks.X_tr), net.encoder(tasks.X_te)
    means = torch.stack(
        [torch.stack([E_tr[b, tasks.Y_tr[b] == c].mean(dim=0) for c in range(3)]) for b in range(3)]
    )
    means = soft_k_means(E_te, means, heads=1, rounds=2)
    squares = (E_te.unsqueeze(2) - means.unsqueeze(1)).square().sum(dim=-1)
    torch.testing.assert_close(rounds, -squares / (2 * E_te.shape[-1] ** 0.5))


@pytest.mark.parametrize("rounds", [0, 2])
def test_order_and_names_mean_nothing(few_shot: FewShot, tasks: Task, rounds: int) -> None:
    net = make(few_shot)
    found = net(tasks, classes=3, rounds=rounds)
    tr, te, names = torch.randperm(6), torch.randperm(6), torch.tensor([2, 0, 1])
    mixed = Task(tasks.X_tr[:, tr], tasks.Y_tr[:, tr], tasks.X_te[:, te], tasks.Y_te[:, te])
    torch.testing.assert_close(net(mixed, classes=3, rounds=rounds), found[:, te])
    torch.testing.assert_close(net(tasks[1:2], classes=3, rounds=rounds), found[1:2])
    renamed = Task(tasks.X_tr, names[tasks.Y_tr], tasks.X_te, names[tasks.Y_te])
    torch.testing.assert_close(net(renamed, classes=3, rounds=rounds)[..., names], found)


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

    def score(net: PrototypicalNetwork) -> float:
        logits = net(held_out, classes=3, rounds=rounds)
        return cross_entropy(logits, held_out.Y_te).mean().item()

    def learns(seed: int) -> bool:
        fresh = make(few_shot)
        before = score(fresh)
        settings: dict[str, Any] = {"seed": seed, "classes": 3, "rounds": rounds}
        return score(train_prototypes(fresh.encoder, few_shot, training, **settings)) < 0.8 * before

    holds_for_seeds(learns)


@pytest.mark.parametrize("rounds", [0, 3])
def test_prototypes_learn_the_same_again(few_shot: FewShot, rounds: int) -> None:
    training = MetaTraining(iterations=6, updates=6, tasks=8, batch=8, lr=0.01, warmup=0.1)
    settings: dict[str, Any] = {"training": training, "classes": 3, "rounds": rounds}
    heard: list[int] = []
    fresh = make(few_shot)
    trained = train_prototypes(
        fresh.encoder, few_shot, seed=0, callback=lambda _, n, *__: heard.append(n), **settings
    )
    assert trained.encoder is fresh.encoder
    assert heard == list(range(1, 37))
    again, other = (
        train_prototypes(make(few_shot).encoder, few_shot, seed=seed, **settings) for seed in (0, 1)
    )
    assert all(
        torch.equal(value, again.state_dict()[name]) for name, value in trained.state_dict().items()
    )
    assert any(
        not torch.equal(value, other.state_dict()[name])
        for name, value in trained.state_dict().items()
    )
