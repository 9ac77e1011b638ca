from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest
from torch import Tensor
from torch.nn.functional import cross_entropy as torch_cross_entropy
from torch.nn.functional import huber_loss

from conftest import labelled_snapshot, random_snapshot
from neural_complexity.meta.nc_loss import SHARPNESS, TrainingInputs, nc_loss, pseudo_predictions
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import raw
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap, point_gaps
from neural_complexity.tasks.images import FewShot


def test_supervision_per_set_is_the_papers_huber_loss_on_the_gap() -> None:
    nc, s, Y_te = (
        NeuralComplexity(2, 1, head="direct"),
        random_snapshot(B=20),
        torch.randn(20, 5, 1),
    )
    delta = gap(nc.loss, s, Y_te) - nc.predict(*s.tensors())
    assert delta.abs().min() < 1 < delta.abs().max()  # both branches of Eq. (5)
    huber = torch.where(delta.abs() <= 1, delta.square() / 2, delta.abs() - 0.5)
    torch.testing.assert_close(nc_loss(nc, s, Y_te, supervision="set"), huber.mean())


def test_supervision_per_point_has_one_target_per_test_point() -> None:
    nc, s, Y_te = NeuralComplexity(2, 1), random_snapshot(), torch.randn(3, 5, 1)
    points = huber_loss(nc.predict_points(*s.tensors()), point_gaps(nc.loss, s, Y_te))
    torch.testing.assert_close(nc_loss(nc, s, Y_te, belief_weight=0.0), points)
    belief = huber_loss(nc.belief(s.X_tr, s.Y_tr, s.X_te).prediction, Y_te)
    torch.testing.assert_close(nc_loss(nc, s, Y_te, belief_weight=0.5), points + 0.5 * belief)


@pytest.mark.parametrize("supervision", ["point", "set"])
def test_the_squared_criterion_is_half_the_mean_square(
    supervision: Literal["point", "set"],
) -> None:
    nc, s, Y_te = NeuralComplexity(2, 1), random_snapshot(), torch.randn(3, 5, 1)
    delta = nc.predict_points(*s.tensors()) - point_gaps(nc.loss, s, Y_te)
    if supervision == "set":
        delta = delta.mean(dim=1)
    loss = nc_loss(nc, s, Y_te, supervision=supervision, criterion="squared", belief_weight=0.0)
    torch.testing.assert_close(loss, 0.5 * delta.square().mean())


@pytest.mark.parametrize("C", [3, 2, 5])
@pytest.mark.parametrize("head", ["posterior", "direct"])
def test_a_belief_about_labels_is_judged_by_its_likelihood(head: str, C: int) -> None:
    nc = NeuralComplexity(2, 3, head=head, loss="cross_entropy", symmetric=True, width=8)
    s, Y_te = labelled_snapshot(C=C), torch.randint(C, (3, 5))
    points = huber_loss(nc.predict_points(*s.tensors()), point_gaps(nc.loss, s, Y_te))
    torch.testing.assert_close(nc_loss(nc, s, Y_te, belief_weight=0.0), points)
    expected = points
    if head == "posterior":
        logits = nc.belief(s.X_tr, s.Y_tr, s.X_te, classes=C).prediction
        expected = points + 0.5 * torch_cross_entropy(logits.flatten(0, 1), Y_te.flatten())
    torch.testing.assert_close(nc_loss(nc, s, Y_te, belief_weight=0.5), expected)


@pytest.mark.parametrize("options", [{"head": "posterior"}, {"head": "direct"}])
def test_encoding_points_once_equals_encoding_their_images(
    few_shot: FewShot, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared: dict[str, Any] = {"loss": "cross_entropy", "symmetric": True, "width": 8, "channels": 4}
    nc = NeuralComplexity((1, 7, 7), 5, **shared, **options)
    kept = few_shot.sample(4, stream(0, "x"))
    rows = torch.tensor([0, 1, 1, 3, 0])  # tasks come more than once
    H_tr, H_te = torch.randn(5, 6, 3), torch.randn(5, 6, 3)
    points = Snapshot(kept.X_tr[rows], kept.Y_tr[rows], H_tr, kept.X_te[rows], H_te)
    X_tr, X_te = (few_shot.images(raw(X)) for X in (points.X_tr, points.X_te))
    embedded: list[int] = []
    embed = nc.embed

    def count(X: Tensor) -> Tensor:
        embedded.append(len(X))
        return embed(X)

    monkeypatch.setattr(nc, "embed", count)
    once = TrainingInputs().encode(nc, points, stream(0, "augment"))
    assert embedded == [len(torch.cat([raw(points.X_tr), raw(points.X_te)], dim=1).unique())]
    monkeypatch.undo()
    expected = nc.predict_points(X_tr, points.Y_tr, H_tr, X_te, H_te)
    torch.testing.assert_close(nc.points(once, H_tr, H_te), expected)
    images = Snapshot(X_tr, points.Y_tr, H_tr, X_te, H_te)
    Y_te = kept.Y_te[rows]
    losses = nc_loss(nc, points, Y_te, context=once), nc_loss(nc, images, Y_te)
    torch.testing.assert_close(*losses)
    gradients = [torch.autograd.grad(loss, list(nc.parameters())) for loss in losses]
    torch.testing.assert_close(*gradients)  # each image counts as often as it occurs


# Pseudo-predictions.

sizes = st.integers(1, 6)


def made(
    B: int = 400, M: int = 200, N: int = 200, C: int = 10, seed: int = 0
) -> tuple[Snapshot, Snapshot, Tensor]:
    """Learners, what replaces them, and the test labels."""
    s = labelled_snapshot(B, M, N, C, inputs=(1,))
    Y_te = torch.randint(C, (B, N))
    return s, pseudo_predictions(s, Y_te, stream(seed, "made up")), Y_te


@given(B=sizes, M=sizes, N=sizes, C=sizes, seed=st.integers(0, 1000))
def test_only_logits_change_and_the_generator_alone_decides_how(
    B: int, M: int, N: int, C: int, seed: int
) -> None:
    s = labelled_snapshot(B, M, N, C, inputs=(1, 2, 2), seed=seed)
    Y_te = torch.randint(C, (B, N))
    found, again, other = (
        pseudo_predictions(s, Y_te, stream(k, "h")) for k in (seed, seed, seed + 1)
    )
    assert found.X_tr is s.X_tr
    assert found.Y_tr is s.Y_tr
    assert found.X_te is s.X_te
    for H, own, same, differs in zip(
        (s.H_tr, s.H_te),
        (found.H_tr, found.H_te),
        (again.H_tr, again.H_te),
        (other.H_tr, other.H_te),
        strict=True,
    ):
        assert (own.shape, own.dtype) == (H.shape, H.dtype)
        assert own.isfinite().all()
        assert torch.equal(own, same)
        assert not torch.equal(own, differs)
    # Learners give shapes and nothing else.
    blank = Snapshot(s.X_tr, s.Y_tr, 0 * s.H_tr, s.X_te, 0 * s.H_te)
    assert torch.equal(pseudo_predictions(blank, Y_te, stream(seed, "h")).H_te, found.H_te)


def named(H: Tensor) -> Tensor:
    """The class that a hypothesis names, where noise does not hide it."""
    return H.argmax(dim=-1)


def sharp(found: Snapshot) -> Tensor:
    """Tells which rows name their classes clearly, (B,)."""
    top = found.H_te.topk(2, dim=-1).values
    return (top[..., 0] - top[..., 1]).mean(dim=1) > 4


def test_every_share_of_right_test_labels_is_as_likely() -> None:
    _, found, Y_te = made()
    clear = sharp(found)
    assert clear.sum() > 80
    right = (named(found.H_te) == Y_te).double().mean(dim=1)[clear]
    share = (right - 1 / 10) / (1 - 1 / 10)  # the others name any class, the right one too
    assert kstest(share.numpy(), "uniform").pvalue > 1e-3


def test_most_rows_are_right_on_their_training_points() -> None:
    s, found, _ = made()
    clear = sharp(found)
    right = (named(found.H_tr) == s.Y_tr).double().mean(dim=1)[clear]
    assert 0.6 < (right > 0.99).double().mean() < 0.9  # of learners three in four
    assert right.min() > 0.4


def test_certainty_has_no_favourite_size() -> None:
    _, found, _ = made()
    low, high = SHARPNESS
    # The mean logit is a C-th of the sharpness: noise is zero on average.
    sharpness = 10 * found.H_te.mean(dim=(1, 2))
    place = (sharpness.clamp(low, high) / low).log() / torch.tensor(high / low).log()
    assert kstest(place.numpy(), "uniform").statistic < 0.1


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_share_of_the_learners_is_replaced(share: float) -> None:
    s = labelled_snapshot(B=2000, M=1, N=2, inputs=(1,))
    Y_te = torch.zeros(2000, 2, dtype=torch.int64)
    mixed = pseudo_predictions(s, Y_te, stream(0, "x"), share=share)
    changed = (mixed.H_te != s.H_te).flatten(1).any(dim=1)
    assert torch.equal(changed, (mixed.H_tr != s.H_tr).flatten(1).any(dim=1))
    assert changed.double().mean().item() == pytest.approx(share, abs=0.04)
