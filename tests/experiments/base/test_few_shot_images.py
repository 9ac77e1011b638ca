from dataclasses import replace
from typing import Any

import pytest
import torch

from neural_complexity.experiments.base.few_shot_images import (
    FewShotConfig,
    LabelTraining,
    direct,
    posterior,
)
from neural_complexity.meta.trainer import MetaTraining
from neural_complexity.model.architecture import Architecture


@pytest.mark.parametrize("training", [LabelTraining(), posterior(), direct()])
def test_every_setting_reaches_nc_or_its_training(training: LabelTraining) -> None:
    images: dict[str, Any] = {"inputs": (1, 28, 28), "outputs": 10, "loss": "cross_entropy"}
    for head in ("posterior", "direct"):
        own = Architecture(**images, **training.architecture(head))
        assert (own.head, own.channels, own.rounds) == (head, training.channels, training.rounds)
    learned = MetaTraining(**training.learning())
    assert learned.pseudo_predictions == training.made_up
    assert (learned.criterion, learned.run) == (training.criterion, training.run)


@pytest.mark.parametrize(
    "name", ["width", "heads", "encoder_layers", "decoder_layers", "batch", "validation_tasks"]
)
def test_sizes_have_bounds_also_where_their_defaults_are_others(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        replace(LabelTraining(), **{name: 0})  # type: ignore[arg-type]


def test_held_out_characters_are_others_and_half_of_their_images_unlabelled(
    glyph_folder: str,
) -> None:
    config = FewShotConfig(data=glyph_folder, ways=4, queries=2, train_queries=3)
    train, held_out = config.train_family(), config.eval_family()
    assert (train.queries, held_out.queries) == (3, 4)
    ours, others = (f.images.pixels.flatten(1).float() for f in (train, held_out))
    assert torch.cdist(others, ours).min() > 0


def test_learners_have_their_own_rates() -> None:
    config = FewShotConfig(lr=0.5, cnn_lr=0.2, ways=4)
    for kind, lr in (("MLP", 0.5), ("CNN", 0.2)):
        recipe = config.recipe((1, 28, 28), kind)
        assert recipe.lr == lr
        assert recipe.make()(torch.zeros(2, 1, 28, 28, dtype=torch.get_default_dtype())).shape == (
            2,
            4,
        )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"eval_tasks": 1}, "eval_tasks must be at least 2, got 1"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"ways": 0}, "ways must be at least 1, got 0"),
        ({"lr": -1.0}, "lr must be positive, got -1.0"),
        ({"device": "abacus"}, "device must be one that works here, got abacus"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(FewShotConfig(), **change)


def test_impossible_trainings_are_refused() -> None:
    for change, sentence in (
        ({"made_up": 1.1}, "made_up must be from 0 to 1, got 1.1"),
        ({"channels": 0}, "channels must be at least 1, got 0"),
        ({"criterion": "cubed"}, "criterion must be huber or squared, got cubed"),
    ):
        with pytest.raises(ValueError, match=sentence):
            replace(posterior(), **change)
