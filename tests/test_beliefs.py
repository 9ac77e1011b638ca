from functools import partial

import pytest
import torch
from torch import Tensor

from neural_complexity.beliefs import Gaussian, Histogram
from neural_complexity.losses import squared_error
from neural_complexity.seeding import stream


def make_histogram(seed: int = 0, bins: int = 12) -> Histogram:
    answers = torch.randn(2, 5, bins, dtype=torch.double, generator=stream(seed, "answers"))
    mean, scale = torch.tensor([1.0]).double(), torch.tensor([2.0]).double()
    return Histogram.standard(answers, mean, scale)


def draw(belief: Histogram, count: int) -> Tensor:
    """Draws targets of a histogram, (count, B, N)."""
    flat = belief.probabilities.flatten(0, 1)
    chosen = flat.multinomial(count, replacement=True, generator=stream(0, "bins")).T
    chosen = chosen.view(count, *belief.logits.shape[:2], 1)
    low, width = (t.expand(count, -1, -1, -1).gather(-1, chosen).squeeze(-1) for t in _ends(belief))
    return low + width * torch.rand(low.shape, dtype=torch.double, generator=stream(0, "within"))


def _ends(belief: Histogram) -> tuple[Tensor, Tensor]:
    return belief.edges[..., :-1], belief.widths


@pytest.mark.parametrize("seed", [0, 1])
def test_a_histogram_has_the_moments_of_its_draws(seed: int) -> None:
    belief = make_histogram(seed)
    Y = draw(belief, 200_000)
    H = torch.randn(2, 5, 1, dtype=torch.double, generator=stream(0, "h"))
    losses = (H.squeeze(-1) - Y).square()
    close = partial(torch.testing.assert_close, rtol=0.03, atol=0.01)  # of 200,000 draws
    torch.testing.assert_close(belief.prediction.squeeze(-1), Y.mean(dim=0), rtol=0.03, atol=0.1)
    close(belief.variance.squeeze(-1), Y.var(dim=0))
    close(squared_error.expected(H, belief), losses.mean(dim=0))
    close(squared_error.variance(H, belief), losses.var(dim=0))


def test_a_histogram_is_surprised_by_the_interval_of_a_target() -> None:
    belief = make_histogram()
    expected = -belief.probabilities.log()
    torch.testing.assert_close(belief.surprise(belief.centres[..., 3:4]), expected[..., 3])
    torch.testing.assert_close(belief.surprise(belief.edges[..., :1] - 99), expected[..., 0])
    torch.testing.assert_close(belief.surprise(belief.edges[..., -1:] + 99), expected[..., -1])
    loss = squared_error.supervise(belief, belief.centres[..., 3:4])
    torch.testing.assert_close(loss, expected[..., 3].mean())
    torch.testing.assert_close(belief.probabilities.sum(dim=-1), torch.ones(2, 5).double())


def test_a_histogram_is_around_its_mean_in_its_unit() -> None:
    belief = make_histogram(bins=10)
    edges = belief.edges[0, 0]
    torch.testing.assert_close(edges[[0, 5, 10]], torch.tensor([-15.0, 1.0, 17.0]).double())
    assert edges.diff()[5] < edges.diff()[9] / 3


def test_targets_drawn_from_a_normal_belief_have_its_moments_and_follow_a_tilt() -> None:
    belief = Gaussian(torch.tensor([[[1.0], [-2.0]]]), torch.tensor([[[0.25], [4.0]]]))
    u = torch.rand(2, 20_000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    u = u.clamp(1e-9, 1 - 1e-9)
    y = belief.sample(u)
    torch.testing.assert_close(y.mean(dim=0), belief.mean[0, :, 0].double(), atol=0.05, rtol=0)
    torch.testing.assert_close(y.var(dim=0), belief.variance[0, :, 0].double(), atol=0, rtol=0.05)
    H = torch.zeros(2, 1)
    tilted = belief.draw(H, torch.full((20_000,), 4.0).double().log(), u)
    torch.testing.assert_close(tilted, 2 * y)  # four times the squared error
