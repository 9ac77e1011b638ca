from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy as torch_cross_entropy
from torch.nn.functional import huber_loss

from conftest import labelled_snapshot, random_snapshot
from neural_complexity.meta.nc_loss import TrainingInputs, nc_loss
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
