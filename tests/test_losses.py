import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from neural_complexity.beliefs import Categorical, Gaussian, Histogram
from neural_complexity.losses import (
    Loss,
    PinballLoss,
    PointLoss,
    absolute_error,
    cross_entropy,
    smoothed_cross_entropy,
    squared_error,
    zero_one,
)

numbers = st.floats(-100, 100)
sizes = st.integers(1, 6)
OF_LABELS = (cross_entropy, zero_one)
of_labels = pytest.mark.parametrize("loss", OF_LABELS, ids=[loss.name for loss in OF_LABELS])


@given(h=numbers, mean=numbers, variance=st.floats(0, 100))
def test_expected_squared_error_is_its_gaussian_integral(
    h: float, mean: float, variance: float
) -> None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)  # exact for polynomials up to degree 9
    Y = torch.from_numpy(mean + variance**0.5 * nodes).reshape(-1, 1, 1)
    integral = squared_error(torch.full_like(Y, h), Y).flatten() @ torch.from_numpy(weights)
    belief = Gaussian(torch.full((1, 1, 1), mean), torch.full((1, 1, 1), variance))
    expected = squared_error.expected(torch.full((1, 1, 1), h), belief)
    torch.testing.assert_close(expected.flatten(), (integral / weights.sum()).reshape(1))


BELIEFS = {
    "Gaussian": Gaussian(torch.tensor([[[0.7]]]), torch.tensor([[[2.0]]])),
    "Histogram": Histogram(
        torch.tensor([[[0.3, -1.0, 2.0, 0.5]]]), torch.tensor([[[-3.0, -1.0, 0.0, 0.5, 4.0]]])
    ),
}
of_numbers = pytest.mark.parametrize("belief", BELIEFS.values(), ids=list(BELIEFS))


def targets(belief: Gaussian | Histogram) -> tuple[Tensor, Tensor]:
    """Returns many targets in the middle of parts of the belief, (n,), and their probabilities."""
    middles = (torch.arange(50_000, dtype=torch.float64) + 0.5) / 50_000
    if isinstance(belief, Gaussian):
        Y = belief.map(Tensor.double).sample(middles.expand(1, 1, -1).mT)[:, 0]
        return Y, torch.full_like(Y, 1 / len(Y))
    low, width = (t.double().flatten() for t in (belief.edges[..., :-1], belief.widths))
    p = belief.probabilities.double().flatten()[:, None].expand(-1, len(middles)) / len(middles)
    return (low[:, None] + width[:, None] * middles).flatten(), p.flatten()


@of_numbers
@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("h", [-50.0, -1.5, 0.2, 0.7, 5.0, 60.0])
def test_a_pinball_loss_is_expected_as_it_is_on_average(
    belief: Gaussian | Histogram, quantile: float, h: float
) -> None:
    loss, (Y, p) = PinballLoss(quantile), targets(belief)
    found = loss(torch.full((1, len(Y), 1), h, dtype=torch.float64), Y.view(1, -1, 1)).flatten()
    H, exact = torch.full((1, 1, 1), h, dtype=torch.float64), belief.map(Tensor.double)
    mean = (p * found).sum()
    assert loss.expected(H, exact).item() == pytest.approx(mean.item(), rel=1e-3)
    variance = (p * (found - mean).square()).sum()
    assert loss.variance(H, exact).item() == pytest.approx(variance.item(), rel=1e-3)


@of_numbers
def test_a_quantile_of_the_belief_has_the_least_expected_pinball_loss(
    belief: Gaussian | Histogram,
) -> None:
    H = torch.linspace(-4, 5, 9001, dtype=torch.float64).view(-1, 1, 1)
    many = type(belief)(*(t.double().expand(9001, 1, -1) for t in vars(belief).values()))
    for quantile in (0.2, 0.5, 0.8):
        best = H[PinballLoss(quantile).expected(H, many).argmin()].item()
        u = torch.tensor([[[quantile]], [[0.5]]], dtype=torch.float64)
        if isinstance(belief, Gaussian):
            assert best == pytest.approx(belief.sample(u).item(), abs=2e-3)
        else:
            reached = belief.probabilities.double().flatten().cumsum(dim=0)
            at = int((reached < quantile).sum())
            low, width = (t.double().flatten()[at] for t in (belief.edges, belief.widths))
            share = belief.probabilities.double().flatten()[at]
            exact = low + width * (1 - (reached[at] - quantile) / share)
            assert best == pytest.approx(exact.item(), abs=2e-3)


def test_the_absolute_error_is_a_pinball_loss() -> None:
    H, Y = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]]), torch.tensor([[[0.0, 0.0], [3.0, -3.0]]])
    assert absolute_error(H, Y).tolist() == [[1.5, 3.0]]
    assert absolute_error.unit(torch.tensor([2.0, 4.0])) == 3
    with pytest.raises(ValueError, match="quantile must be between 0 and 1, got 1"):
        PinballLoss(1)


def test_shapes_are_not_broadcast() -> None:
    for shape in ((1, 2), (1, 2, 2), (2, 1, 1)):
        with pytest.raises(ValueError, match="predictions must have the shape of the targets"):
            squared_error(torch.zeros(1, 2, 1), torch.zeros(shape))


def test_squared_error_is_per_point_and_averages_outputs() -> None:
    H, Y = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]]), torch.tensor([[[0.0, 0.0], [3.0, 3.0]]])
    assert squared_error(H, Y).tolist() == [[2.5, 9.0]]


@given(B=sizes, N=sizes, C=sizes, seed=st.integers(0, 1000))
def test_cross_entropy_is_the_surprise_at_the_label(B: int, N: int, C: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    H = 10 * torch.randn(B, N, C, generator=generator, dtype=torch.float64)
    Y = torch.randint(C, (B, N), generator=generator)
    losses = cross_entropy(H, Y)
    assert losses.shape == (B, N)
    for b in range(B):
        for n in range(N):
            surprise = H[b, n].logsumexp(dim=0) - H[b, n, Y[b, n]]
            torch.testing.assert_close(losses[b, n], surprise)


@given(B=sizes, N=sizes, C=sizes, smoothing=st.floats(0, 1), seed=st.integers(0, 1000))
def test_smoothing_labels_is_mixing_them_with_all_labels(
    B: int, N: int, C: int, smoothing: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    H = 10 * torch.randn(B, N, C, generator=generator, dtype=torch.float64)
    Y = torch.randint(C, (B, N), generator=generator)
    losses = smoothed_cross_entropy(smoothing)(H, Y)
    assert losses.shape == (B, N)
    torchs = nn.CrossEntropyLoss(label_smoothing=smoothing, reduction="none")
    torch.testing.assert_close(losses, torchs(H.flatten(0, 1), Y.flatten()).reshape(B, N))
    every = torch.stack([cross_entropy(H, torch.full_like(Y, c)) for c in range(C)])
    mixed = (1 - smoothing) * cross_entropy(H, Y) + smoothing * every.mean(dim=0)
    torch.testing.assert_close(losses, mixed)


@pytest.mark.parametrize("smoothing", [-0.1, 1.1, float("nan")])
def test_smoothing_is_a_share(smoothing: float) -> None:
    with pytest.raises(ValueError, match=f"smoothing must be from 0 to 1, got {smoothing}"):
        smoothed_cross_entropy(smoothing)


def test_zero_one_counts_wrong_labels() -> None:
    H = torch.tensor([[[0.0, 2.0, 1.0], [5.0, 2.0, 1.0], [0.0, 0.0, 0.1]]])
    wrong = zero_one(H, torch.tensor([[1, 1, 2]]))
    assert (wrong.tolist(), wrong.dtype) == ([[0, 1, 0]], H.dtype)


@of_labels
@given(C=sizes, seed=st.integers(0, 1000))
def test_the_expected_loss_of_a_certain_label_is_its_loss(loss: Loss, C: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    H = torch.randn(2, 3, C, generator=generator, dtype=torch.float64)
    Y = torch.randint(C, (2, 3), generator=generator)
    certain = Categorical(1000 * nn.functional.one_hot(Y, C).to(H.dtype))
    torch.testing.assert_close(loss.expected(H, certain), loss(H, Y))


@of_labels
def test_the_expected_loss_is_the_mean_over_drawn_labels(loss: Loss) -> None:
    H, belief, draws = torch.randn(1, 4, 3), Categorical(torch.randn(1, 4, 3)), 20_000
    Y = torch.multinomial(belief.probabilities[0], draws, replacement=True).T  # (draws, 4)
    losses = loss(H.expand(draws, -1, -1), Y)
    error = losses.std(dim=0) / draws**0.5
    assert ((losses.mean(dim=0) - loss.expected(H, belief)[0]).abs() < 4 * error).all()


@pytest.mark.parametrize("loss", [squared_error, *OF_LABELS], ids=lambda loss: loss.name)
def test_the_variance_is_that_over_drawn_targets(loss: Loss) -> None:
    H, draws = torch.randn(1, 4, 3), 40_000
    belief: Gaussian | Categorical
    if loss is squared_error:
        belief = Gaussian(torch.randn(1, 4, 3), torch.rand(1, 4, 3))
        Y = belief.mean + belief.variance.sqrt() * torch.randn(draws, 4, 3)
    else:
        belief = Categorical(torch.randn(1, 4, 3))
        Y = torch.multinomial(belief.probabilities[0], draws, replacement=True).T  # (draws, 4)
    squares = (loss(H.expand(draws, -1, -1), Y) - loss.expected(H, belief)).square()
    error = squares.std(dim=0) / draws**0.5
    variance = loss.variance(H, belief)
    assert variance.shape == (1, 4)
    assert ((squares.mean(dim=0) - variance[0]).abs() < 4 * error).all()


@of_labels
@given(C=sizes, seed=st.integers(0, 1000))
def test_the_loss_of_a_certain_label_does_not_vary(loss: Loss, C: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    H = torch.randn(2, 3, C, generator=generator, dtype=torch.float64)
    Y = torch.randint(C, (2, 3), generator=generator)
    certain = Categorical(1000 * nn.functional.one_hot(Y, C).to(H.dtype))
    torch.testing.assert_close(loss.variance(H, certain), torch.zeros(2, 3, dtype=H.dtype))


def test_no_logits_are_expected_to_do_better_than_the_belief_itself() -> None:
    belief = Categorical(torch.randn(2, 50, 4))
    for loss in (cross_entropy, zero_one):
        best = loss.expected(belief.prediction, belief)
        assert (loss.expected(torch.randn(2, 50, 4), belief) >= best).all()
    torch.testing.assert_close(belief.probabilities.sum(dim=-1), torch.ones(2, 50))


@of_labels
@pytest.mark.parametrize("extreme", [1e3, -1e3, 1e30])
def test_extreme_logits_have_finite_losses(loss: Loss, extreme: float) -> None:
    H = torch.tensor([[[extreme, 0.0, -extreme]]], requires_grad=True)
    for Y in range(3):
        assert loss(H, torch.tensor([[Y]])).isfinite().all()
    expected = loss.expected(H, Categorical(torch.tensor([[[0.0, extreme, 1.0]]])))
    assert expected.isfinite().all()
    if expected.requires_grad:
        assert torch.autograd.grad(expected.sum(), H)[0].isfinite().all()


@pytest.mark.parametrize("loss", [*OF_LABELS, smoothed_cross_entropy(0.2)])
@pytest.mark.parametrize(
    ("Y", "sentence"),
    [
        (torch.zeros(1, 2, 1, dtype=torch.int64), "one for each row of logits, got (1, 2, 1)"),
        (torch.zeros(2, dtype=torch.int64), "one for each row of logits, got (2,)"),
        (torch.zeros(1, 2), "labels must be whole numbers of type torch.int64"),
        (torch.zeros(1, 2, dtype=torch.int32), "labels must be whole numbers of type torch.int64"),
        (torch.zeros(1, 2, dtype=torch.bool), "labels must be whole numbers of type torch.int64"),
        (torch.tensor([[0, 3]]), "labels must be from 0 to 2, got 0 to 3"),
        (torch.tensor([[-1, 0]]), "labels must be from 0 to 2, got -1 to 0"),
    ],
)
def test_what_is_no_label_is_refused(loss: PointLoss, Y: torch.Tensor, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        loss(torch.zeros(1, 2, 3), Y)


@of_labels
def test_a_belief_about_other_classes_is_refused(loss: Loss) -> None:
    with pytest.raises(ValueError, match="logits must be of the 4 classes that are believed in"):
        loss.expected(torch.zeros(1, 2, 3), Categorical(torch.zeros(1, 2, 4)))
