from types import SimpleNamespace
from typing import Any

import pytest
import torch

from neural_complexity.experiments.base.few_shot_images import FewShotConfig, LabelTraining
from neural_complexity.experiments.base.without_learner import (
    PROTOTYPICAL,
    train_prototypical,
    without_learner,
)
from neural_complexity.losses import cross_entropy
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import values
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.images import FewShot

TRAINING = LabelTraining(width=16, channels=4, iterations=2, updates=2, tasks=4, batch=4)


@pytest.fixture
def config(few_shot: FewShot) -> FewShotConfig:
    return FewShotConfig(ways=few_shot.ways, shots=few_shot.shots, queries=few_shot.queries)


def embed(few_shot: FewShot, task: Task) -> Any:
    """Held-out tasks as an untrained NC embeds them; its beliefs are the true labels."""
    nc = NeuralComplexity.for_tasks(
        task, loss=cross_entropy.name, width=16, heads=2, channels=4, image_layers=2
    )
    with torch.no_grad():
        E_tr, E_te = (nc.embed(values(X)) for X in (task.X_tr, task.X_te))
    logits = torch.nn.functional.one_hot(task.Y_te, few_shot.ways).double()
    return SimpleNamespace(
        nc=nc,
        tasks=SimpleNamespace(task=task),
        E_tr=E_tr,
        E_te=E_te,
        beliefs=lambda: logits,
        beliefs_one_by_one=lambda: logits.flip(-1),
    )


def test_accuracies_are_by_method_and_by_what_it_sees(
    few_shot: FewShot, config: FewShotConfig
) -> None:
    task = few_shot.sample(5, stream(0, "tasks"))
    state = train_prototypical(config, TRAINING, few_shot)
    found = without_learner(config, embed(few_shot, task), state)
    assert list(found) == [
        ("NC posterior, its beliefs", "transductive"),
        ("NC posterior, its beliefs one image at a time", "inductive"),
        ("nearest neighbour in where NC compares images", "inductive"),
        ("nearest neighbour in NC's image embedding", "inductive"),
        ("nearest neighbour in pixels", "inductive"),
        (PROTOTYPICAL, "inductive"),
        (f"{PROTOTYPICAL}, soft k-means", "transductive"),
    ]
    for right in found.values():
        assert right.shape == (5,)
        assert ((right >= 0) & (right <= 1)).all()
    right = found["NC posterior, its beliefs", "transductive"]
    assert right.tolist() == [1] * 5
    wrong = found["NC posterior, its beliefs one image at a time", "inductive"]
    assert wrong.tolist() == pytest.approx(
        [1 / 3] * 5
    )  # only the class in the middle stays where it is


def test_images_that_were_seen_are_classified_without_error(
    few_shot: FewShot, config: FewShotConfig
) -> None:
    drawn = few_shot.sample(5, stream(0, "tasks"))
    same = Task(drawn.X_tr, drawn.Y_tr, drawn.X_tr, drawn.Y_tr)
    found = without_learner(
        config, embed(few_shot, same), train_prototypical(config, TRAINING, few_shot)
    )
    for (method, _), right in found.items():
        if method in ("nearest neighbour in pixels", "nearest neighbour in NC's image embedding"):
            assert right.tolist() == [1] * 5


def test_the_prototypical_network_is_trained_and_the_same_every_time(
    few_shot: FewShot, config: FewShotConfig
) -> None:
    calls: list[tuple[str, int, int]] = []
    first = train_prototypical(
        config,
        TRAINING,
        few_shot,
        lambda stage, done, total, *_: calls.append((stage, done, total)),
    )
    again = train_prototypical(config, TRAINING, few_shot)
    assert all(torch.equal(again[name], tensor) for name, tensor in first.items())
    assert calls[-1] == ("prototypes", 4, 4)
    longer = LabelTraining(width=16, channels=4, iterations=3, updates=2, tasks=4, batch=4)
    other = train_prototypical(config, longer, few_shot)
    assert any(not torch.equal(other[name], tensor) for name, tensor in first.items())
