import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest
from torch import Tensor

from conftest import labelled_snapshot
from neural_complexity.meta.pseudo_predictions import (
    SHARPNESS,
    mix_pseudo_predictions,
    pseudo_predictions,
)
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot

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
    mixed = mix_pseudo_predictions(s, Y_te, share, stream(0, "x"))
    changed = (mixed.H_te != s.H_te).flatten(1).any(dim=1)
    assert torch.equal(changed, (mixed.H_tr != s.H_tr).flatten(1).any(dim=1))
    assert changed.double().mean().item() == pytest.approx(share, abs=0.04)
