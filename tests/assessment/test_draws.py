import pytest
import torch

from neural_complexity import NeuralComplexity
from neural_complexity.assessment.draws import DRAWS, beliefs, draw_targets, how_many
from neural_complexity.losses import squared_error, zero_one

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module", params=["tables", "tables-regression"])
def nc(request: pytest.FixtureRequest) -> NeuralComplexity:
    return NeuralComplexity.pretrained(request.param)


def draw_points(
    nc: NeuralComplexity, M: int = 30, N: int = 12
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(M + N, 3, generator=generator)
    y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long() if nc.labels else X[:, :1] ** 2
    return X[:M], y[:M], X[M:]


def test_drawn_targets_have_the_loss_that_is_believed(nc: NeuralComplexity) -> None:
    points = draw_points(nc)
    generator = torch.Generator().manual_seed(1)
    H = torch.randn(12, 3 if nc.labels else 1, generator=generator)
    drawn = draw_targets(nc, points, H, torch.zeros(4000))
    ((_, _, belief),) = beliefs(nc, *points, classes=3 if nc.labels else None)
    loss = zero_one if nc.labels else squared_error
    told = loss.expected(H[None], belief)[0].double()
    if nc.labels:
        each = (drawn.targets != H.argmax(dim=1)).double()
        torch.testing.assert_close(drawn.wrong, told)
    else:
        each = (drawn.targets.double() - H.double().T).square()
    error = (each.mean(dim=0) - told).abs()
    assert (error < 5 * each.std(dim=0) / 4000**0.5 + 1e-3).all()


def test_a_tilt_makes_the_model_worse(nc: NeuralComplexity) -> None:
    points = draw_points(nc)
    H = torch.zeros(12, 3 if nc.labels else 1)
    tilts = torch.cat([torch.full((200,), -2.0), torch.full((200,), 2.0)])
    y = draw_targets(nc, points, H, tilts).targets
    wrong = (y != 0).double() if nc.labels else y.double().square()
    assert wrong[:200].mean() < wrong[200:].mean()


def test_parts_of_the_training_points_share_the_draws(nc: NeuralComplexity) -> None:
    few = draw_points(nc)
    many = (few[0].repeat(20, 1), few[1].repeat(20, *[1] * (few[1].ndim - 1)), few[2])
    H = torch.zeros(12, 3 if nc.labels else 1)
    drawn = draw_targets(nc, many, H, torch.zeros(101))
    assert drawn.targets.shape == (101, 12)
    again = draw_targets(nc, many, H, torch.zeros(101))
    assert torch.equal(drawn.targets, again.targets)


def test_very_many_points_have_fewer_draws() -> None:
    assert how_many(200) == DRAWS
    assert how_many(10**5) < DRAWS
    assert how_many(10**9) > 10
