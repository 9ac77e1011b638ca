from functools import partial

import pytest
import torch

from conftest import holds_for_seeds
from glyphs import thumbnails
from neural_complexity.baselines.image_classifier import Classifier, train_classifier
from neural_complexity.baselines.optimize import Optimization
from neural_complexity.model.encoders import ImageEncoder
from neural_complexity.points import Points
from neural_complexity.seeding import seeded
from neural_complexity.tasks.images import moved

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
def test_it_learns() -> None:
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


def test_it_classifies_points_as_their_values() -> None:
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
