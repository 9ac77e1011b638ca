from functools import partial

import pytest
import torch
from torch import Tensor

from glyphs import thumbnails
from neural_complexity.baselines.distillation import Classifier, train_classifier
from neural_complexity.model.encoders import ImageEncoder
from neural_complexity.seeding import seeded
from neural_complexity.tasks.augment import moved
from neural_complexity.tasks.image_datasets import SingleDataset

CLASSES = 3
dataset = SingleDataset("glyphs", thumbnails(classes=CLASSES, drawings=20), 50)
labels = dataset.labels
numbers = torch.randperm(60, generator=torch.Generator().manual_seed(0))[:50]


def trained(seed: int = 0, lr: float = 0.01, updates: int = 40) -> tuple[Classifier, list[int]]:
    with seeded(0, "classifier"):
        encoder = ImageEncoder((1, 7, 7), channels=8, layers=2)
        model = Classifier(encoder, CLASSES, width=16)
    told: list[int] = []
    train_classifier(
        model,
        dataset.look_up,
        numbers,
        labels[numbers],
        updates=updates,
        batch=16,
        lr=lr,
        augment=partial(moved, pixels=1),
        seed=seed,
        watch=lambda done, _: told.append(done),
    )
    return model, told


def error(model: Classifier, chosen: Tensor) -> float:
    logits = model.classify(dataset.look_up, chosen)
    return (logits.argmax(dim=1) != labels[chosen]).double().mean().item()


def test_it_learns() -> None:
    model, told = trained()
    assert error(model, numbers) < 0.1 < 0.4 < error(trained(updates=1)[0], numbers)
    assert told == [1, 40]


def test_seed_and_initial_weights_decide_everything() -> None:
    (one, _), (same, _), (other, _) = (trained(seed=seed, updates=3) for seed in (0, 0, 1))
    logits = [model.classify(dataset.look_up, numbers) for model in (one, same, other)]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


def test_it_classifies_by_number_what_it_sees_as_images() -> None:
    model, _ = trained(updates=1)
    chosen = torch.tensor([7, 3, 59])
    with torch.no_grad():
        expected = model(dataset.look_up(chosen))
    found = model.classify(dataset.look_up, chosen)
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad


def test_a_loss_that_is_not_finite_is_told() -> None:
    with pytest.raises(FloatingPointError, match="the classifier's loss must be finite, got"):
        trained(lr=1e200)
