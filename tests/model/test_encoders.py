import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from neural_complexity.model import encoders
from neural_complexity.model.encoders import ImageEncoder

side = st.integers(1, 13)


def make(shape: tuple[int, int, int] = (1, 12, 12), layers: int = 3) -> ImageEncoder:
    """An encoder whose statistics, scales and shifts are not those it starts with."""
    torch.manual_seed(0)
    encoder = ImageEncoder(shape, channels=4, layers=layers)
    with torch.no_grad():
        for name, value in [*encoder.named_parameters(), *encoder.named_buffers()]:
            if "filters" not in name:
                value.copy_(torch.rand_like(value) + 0.5)
            if "mean" in name or "shift" in name:
                value.sub_(1.0)
    return encoder


def reference(encoder: ImageEncoder) -> nn.Sequential:
    """The same layers as torch has them: filters, normalisation, ReLU, pooling."""
    layers: list[nn.Module] = []
    for block in encoder.blocks:
        own = block.state_dict()
        channels, inputs = own["filters"].shape[:2]
        conv = nn.Conv2d(inputs, channels, 3, padding=1, bias=False)
        norm = nn.BatchNorm2d(channels)
        conv.load_state_dict({"weight": own["filters"]})
        norm.load_state_dict(
            {
                "weight": own["scale"],
                "bias": own["shift"],
                "running_mean": own["mean"],
                "running_var": own["variance"],
                "num_batches_tracked": torch.tensor(1),
            }
        )
        layers += [conv, norm, nn.ReLU(), *([nn.MaxPool2d(2)] if block.pool else [])]
    return nn.Sequential(*layers, nn.Flatten()).eval()


@given(channels=st.integers(1, 3), height=side, width=side, layers=st.integers(1, 4))
def test_it_is_convolution_batch_norm_relu_and_pooling(
    channels: int, height: int, width: int, layers: int
) -> None:
    torch.set_default_dtype(torch.float64)
    encoder = make((channels, height, width), layers)
    X = torch.randn(3, channels, height, width)
    found = encoder(X)
    assert found.shape == (3, encoder.features)
    torch.testing.assert_close(found, reference(encoder)(X))


def test_its_gradient_is_that_of_batch_norm() -> None:
    encoder, X = make(), torch.randn(3, 1, 12, 12)
    other = reference(encoder)
    encoder(X).square().sum().backward()
    other(X).square().sum().backward()
    conv, norm = other[0], other[1]
    first = encoder.blocks[0]
    for own, theirs in (
        (first.filters, conv.weight),
        (first.scale, norm.weight),
        (first.shift, norm.bias),
    ):
        assert isinstance(own, Tensor)
        torch.testing.assert_close(own.grad, theirs.grad)


def test_an_embedding_depends_on_no_other_image_and_on_no_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder, X = make(), torch.randn(7, 1, 12, 12)
    together = encoder(X)
    for n in range(7):
        torch.testing.assert_close(encoder(X[n : n + 1])[0], together[n])
    assert torch.equal(encoder.eval()(X), encoder.train()(X))
    monkeypatch.setattr(encoders, "PART", 3)  # images are embedded in parts of any size
    torch.testing.assert_close(encoder(X), together)


def test_leading_axes_are_kept() -> None:
    encoder, X = make(), torch.randn(2, 3, 1, 12, 12)
    torch.testing.assert_close(encoder(X).flatten(0, 1), encoder(X.flatten(0, 1)))
    torch.testing.assert_close(encoder(X[0, 0]), encoder(X)[0, 0])  # not even one


def test_calibrated_layers_have_mean_zero_and_variance_one_before_scale_and_shift() -> None:
    encoder = make()
    X = 3 * torch.randn(4, 5, 1, 12, 12) + 2
    encoder.calibrate(X)
    e = X.flatten(0, 1)
    for block in encoder.blocks:
        own = block.state_dict()
        raw = nn.functional.conv2d(e, own["filters"], padding=1)
        normalised = nn.functional.batch_norm(raw, own["mean"], own["variance"])
        mean = normalised.mean(dim=(0, 2, 3))
        variance = normalised.var(dim=(0, 2, 3), correction=0)
        torch.testing.assert_close(mean, torch.zeros(4), rtol=0, atol=1e-12)
        torch.testing.assert_close(variance, torch.ones(4), rtol=0, atol=1e-3)  # BatchNorm's eps
        e = block(e)
    assert not any(buffer.requires_grad for buffer in encoder.buffers())


def test_calibrated_on_its_own_images_it_is_batch_norm_in_training() -> None:
    encoder, X = make(), torch.randn(20, 1, 12, 12)
    encoder.calibrate(X)
    torch.testing.assert_close(encoder(X), reference(encoder).train()(X))


def test_images_without_any_contrast_do_no_harm() -> None:
    encoder = make()
    encoder.calibrate(torch.zeros(5, 1, 12, 12))
    assert encoder(torch.zeros(5, 1, 12, 12)).isfinite().all()
