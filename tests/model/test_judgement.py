from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import labelled_snapshot, random_snapshot
from neural_complexity.beliefs import Gaussian
from neural_complexity.losses import cross_entropy
from neural_complexity.model import encoders
from neural_complexity.model import judgement as judging
from neural_complexity.model.card import Card
from neural_complexity.model.heads import HEADS
from neural_complexity.model.judgement import Judgement, judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.snapshot import Snapshot

CLASSES = 3
FOR_LABELS = {name: dict(head.for_labels) for name, head in HEADS.items()}
KINDS: dict[str, dict[str, Any]] = {
    "reals, posterior": {"head": "posterior"},
    "reals, direct": {"head": "direct"},
    "reals, the paper's": {"head": "direct", "observed_loss": False, "pool_first": True},
    "labels, posterior": {"head": "posterior", **FOR_LABELS["posterior"]},
    "labels, direct": {"head": "direct", **FOR_LABELS["direct"]},
    "labels, each point by itself": {"head": "posterior", "symmetric": True},
    "images, posterior": {"head": "posterior", **FOR_LABELS["posterior"]},
}
SEES_OTHERS = {"labels, posterior", "labels, direct", "images, posterior", "reals, the paper's"}
kinds = pytest.mark.parametrize("kind", KINDS)
IMAGE = (1, 8, 8)


def make(kind: str) -> NeuralComplexity:
    torch.manual_seed(0)
    options: dict[str, Any] = {"width": 8, "heads": 2, "channels": 4, "image_layers": 2}
    if not kind.startswith("reals"):
        options["loss"] = cross_entropy.name
    outputs = 2 if kind.startswith("reals") else CLASSES
    inputs = IMAGE if kind.startswith("images") else 2
    nc = NeuralComplexity(inputs, outputs, **{**options, **KINDS[kind]})
    with torch.no_grad():  # as in the midst of training: the votes of an untrained NC say it all
        for parameter in nc.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return nc


def learners(kind: str, B: int = 3, M: int = 7, N: int = 5, seed: int = 0) -> Snapshot:
    if kind.startswith("reals"):
        return random_snapshot(B, M, N, C=2, seed=seed)
    inputs = IMAGE if kind.startswith("images") else (2,)
    return labelled_snapshot(B, M, N, C=CLASSES, inputs=inputs, seed=seed)


def numbers(judgement: Judgement) -> Tensor:
    """All of a judgement, (B, N + 4)."""
    points, *each = vars(judgement).values()
    return torch.cat([points, torch.stack(each, dim=1)], dim=1)


def assert_same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, equal_nan=True)


def test_every_answer_is_about_one_learner() -> None:
    assert list(vars(judge(make("reals, posterior"), learners("reals, posterior")))) == [
        "points",
        "gap",
        "loss_tr",
        "spread",
        "accuracy",
    ]


@kinds
@settings(max_examples=4)
@given(B=st.integers(1, 4), M=st.integers(1, 9), N=st.integers(1, 6), seed=st.integers(0, 1000))
def test_small_sets_are_predicted_at_once(kind: str, B: int, M: int, N: int, seed: int) -> None:
    nc, snapshot = make(kind), learners(kind, B, M, N, seed)
    found = judge(nc, snapshot)
    expected = nc.predict_points(*snapshot.tensors()).detach()
    assert_same(found.points, expected)
    assert_same(found.gap, expected.mean(dim=1))
    assert_same(found.loss_tr, nc.loss(snapshot.H_tr, snapshot.Y_tr).mean(dim=1))
    assert_same(found.loss_te, nc.predict_loss(*snapshot.tensors()).detach())
    assert not found.points.requires_grad
    assert (found.spread > 0).all()
    assert found.spread.isfinite().all()
    if nc.labels and nc.architecture.head == "posterior":
        assert_same(found.accuracy, nc.predict_accuracy(*snapshot.tensors()).detach())
    else:
        assert found.accuracy.isnan().all()


@kinds
@pytest.mark.parametrize("points", [1, 3, 7])
def test_learners_are_judged_one_by_one(
    kind: str, points: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    nc, snapshot = make(kind), learners(kind)
    together = numbers(judge(nc, snapshot, points=points))
    for b in range(3):
        row = slice(b, b + 1)
        assert_same(numbers(judge(nc, snapshot[row], points=points)), together[row])
    monkeypatch.setattr(encoders, "PART", 2)
    monkeypatch.setattr(judging, "NUMBERS", 1 if kind not in SEES_OTHERS else 2 * 5 * CLASSES)
    assert_same(numbers(judge(nc, snapshot, points=points)), together)


@kinds
@pytest.mark.parametrize("points", [2, 7])
def test_the_order_of_test_points_does_not_matter(kind: str, points: int) -> None:
    nc, s = make(kind), learners(kind)
    te = torch.randperm(5)
    mixed = Snapshot(s.X_tr, s.Y_tr, s.H_tr, s.X_te[:, te], s.H_te[:, te])
    whole, other = judge(nc, s, points=points), judge(nc, mixed, points=points)
    assert_same(other.points, whole.points[:, te])
    assert_same(numbers(other)[:, 5:], numbers(whole)[:, 5:])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SEES_OTHERS])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_parts_of_test_points_change_nothing(
    kind: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    nc, snapshot = make(kind), learners(kind)
    whole = numbers(judge(nc, snapshot, points=3))
    monkeypatch.setattr(judging, "TEST_PART", size)
    assert_same(numbers(judge(nc, snapshot, points=3)), whole)


def test_no_test_point_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rest of one would see no others, which an NC is not used to."""
    nc, sizes = make("labels, posterior"), []
    context = nc.context

    def count(E_tr: Tensor, Y_tr: Tensor, E_te: Tensor, **more: Any) -> Any:
        sizes.append(E_te.shape[1])
        return context(E_tr, Y_tr, E_te, **more)

    monkeypatch.setattr(judging, "TEST_PART", 4)
    monkeypatch.setattr(nc, "context", count)
    judge(nc, learners("labels, posterior", N=9))
    assert sizes == [3, 3, 3]


@kinds
def test_parts_of_training_points_are_averaged(kind: str) -> None:
    nc, s = make(kind), learners(kind)
    found = judge(nc, s, points=4)  # seven points: two parts
    predicted = []
    for tr in judging.choose_parts(7, 4):
        assert len(tr.unique()) == 4
        part = Snapshot(s.X_tr[:, tr], s.Y_tr[:, tr], s.H_tr[:, tr], s.X_te, s.H_te)
        loss_tr = nc.loss(part.H_tr, part.Y_tr).mean(dim=1, keepdim=True)
        predicted.append(nc.predict_points(*part.tensors()).detach() + loss_tr)
    assert len(predicted) == 2
    loss_tr = nc.loss(s.H_tr, s.Y_tr).mean(dim=1, keepdim=True)
    assert_same(found.points, torch.stack(predicted).mean(dim=0) - loss_tr)
    apart = (predicted[0] - predicted[1]).mean(dim=1).abs() / 2
    assert (found.spread >= apart * (1 - 1e-9)).all()


@given(M=st.integers(1, 50), shown=st.integers(1, 60), seed=st.integers(0, 1000))
def test_parts_have_one_size_and_leave_nothing_out(M: int, shown: int, seed: int) -> None:
    parts = judging.choose_parts(M, shown, seed)
    assert {len(part) for part in parts} == {min(M, shown)}
    assert len(parts) <= judging.PARTS
    assert all(len(part.unique()) == len(part) for part in parts)
    assert len(torch.cat(parts).unique()) == min(M, judging.PARTS * shown)


def test_nc_says_how_much_it_is_used_to_see() -> None:
    nc, snapshot = make("reals, posterior"), learners("reals, posterior")
    nc.card = Card(context_size=3)
    assert_same(numbers(judge(nc, snapshot)), numbers(judge(nc, snapshot, points=3)))
    assert not torch.allclose(judge(nc, snapshot).gap, judge(nc, snapshot, points=7).gap)
    assert not torch.allclose(judge(nc, snapshot).gap, judge(nc, snapshot, seed=1).gap)
    with pytest.raises(ValueError, match="points must be at least 1, got 0"):
        judge(nc, snapshot, points=0)


def test_the_spread_is_that_of_the_mean_loss_under_the_belief() -> None:
    nc, s = make("reals, posterior"), learners("reals, posterior", B=2, N=4)
    belief = nc.belief(s.X_tr, s.Y_tr, s.X_te)
    assert isinstance(belief, Gaussian)
    draws = 20_000
    noise = torch.randn(draws, *belief.mean.shape)
    Y = (belief.mean + belief.variance.sqrt() * noise).detach()
    losses = nc.loss(s.H_te.expand_as(Y), Y).mean(dim=2)  # (draws, B)
    torch.testing.assert_close(judge(nc, s).spread, losses.std(dim=0), rtol=0.05, atol=0)


@kinds
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_diverged_learners_get_no_number_and_disturb_nobody(kind: str, value: float) -> None:
    nc, s = make(kind), learners(kind, B=4)
    whole = numbers(judge(nc, s))
    s.H_te[1, 2, 0] = value
    s.H_tr[2, 0, 1] = value
    found = numbers(judge(nc, s))
    assert found[[1, 2]].isnan().all()
    assert_same(found[[0, 3]], whole[[0, 3]])
    assert numbers(judge(nc, s[1:3])).isnan().all()


def test_losses_beyond_all_numbers_are_none() -> None:
    nc, s = make("reals, posterior"), learners("reals, posterior")
    s.H_te[0] = 1e200
    found = numbers(judge(nc, s))[:, :-1]  # real targets have no accuracy
    assert found[0].isnan().all()
    assert found[1:].isfinite().all()


def test_what_nc_cannot_judge_is_refused() -> None:
    nc, s = make("reals, posterior"), learners("reals, posterior")
    s.X_tr[0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="X_tr must be finite"):
        judge(nc, s)
    with pytest.raises(ValueError, match=r"X_tr must be \(tasks, points, 2\)"):
        judge(nc, random_snapshot(D=3, C=2))
