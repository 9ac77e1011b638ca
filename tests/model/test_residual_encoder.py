"""A residual encoder embeds each image by itself, in units of the images it was calibrated on."""

from pathlib import Path

import pytest
import torch

from neural_complexity.model.architecture import Architecture
from neural_complexity.model.encoders import ResidualEncoder, make_image_encoder
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.task import Task


def encoder() -> ResidualEncoder:
    torch.manual_seed(0)
    return ResidualEncoder((3, 16, 16), channels=4, layers=3)


def test_an_embedding_depends_on_no_other_image() -> None:
    model = encoder()
    X = torch.randn(6, 3, 16, 16)
    model.calibrate(X)
    model.train()
    together, alone = model(X), torch.cat([model(x[None]) for x in X])
    assert together.shape == (6, model.features)
    torch.testing.assert_close(together, alone)


def test_calibrating_takes_the_statistics_of_the_images() -> None:
    model = encoder()
    X = 5 + 3 * torch.randn(64, 3, 16, 16)
    model.calibrate(X)
    filters, first, *_ = model.body.children()
    assert isinstance(first, torch.nn.BatchNorm2d)
    seen = filters(X)
    torch.testing.assert_close(first.running_mean, seen.mean(dim=(0, 2, 3)))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    model(X + 1)  # in whatever mode: nothing is moved
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_an_nc_with_a_residual_encoder_is_saved_and_loaded(tmp_path: Path) -> None:
    X, Y = torch.randn(2, 5, 3, 8, 8), torch.arange(5).expand(2, -1) % 3
    nc = NeuralComplexity.for_tasks(
        Task(X, Y, X, Y),
        loss="cross_entropy",
        image_encoder="resnet",
        image_layers=2,
        channels=4,
        width=8,
        heads=2,
    )
    nc.save(tmp_path / "nc.safetensors")
    other = NeuralComplexity.load(tmp_path / "nc.safetensors")
    torch.testing.assert_close(nc.embed(X), other.embed(X))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="image_encoder must be conv or resnet, got mlp"):
        make_image_encoder(Architecture(inputs=(1, 8, 8), outputs=2, image_encoder="mlp"))  # type: ignore[arg-type]
