import torch

from neural_complexity.experiments.base.shifted_learners import (
    CALIBRATED,
    DigitLearners,
    SinusoidLearners,
    calibration_of,
)
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.tasks.splits import own_digits


def digits() -> DigitLearners:
    torch.set_default_dtype(torch.float32)  # as users run it
    nc = NeuralComplexity.pretrained("digits")
    return DigitLearners(0, "cpu", 2, 3, {"posterior": nc}, M=20, N=10, steps=2)


def test_digits_are_those_that_the_shipped_nc_has_not_seen() -> None:
    _, _, X_te, _ = own_digits()
    unseen = torch.from_numpy(X_te).float()
    snapshot, Y_te = digits().learners(CALIBRATED, 3, stream(0, "test"))
    for X, points in ((snapshot.X_tr, 20), (snapshot.X_te, 10)):
        assert X.shape == (3, points, 64)
        assert torch.cdist(X.flatten(0, 1).float(), unseen).amin(dim=1).max() < 1e-3
    assert torch.cdist(snapshot.X_tr, snapshot.X_te).amin() > 1e-3
    assert Y_te.shape == (3, 10)


def test_every_kind_but_the_first_is_shifted() -> None:
    for domain in (digits(), SinusoidLearners(0, "cpu", 2, 3, {})):
        first, _ = domain.learners(domain.kinds[0], 2, stream(0, "test"))
        for kind in domain.kinds[1:]:
            other, _ = domain.learners(kind, 2, stream(0, "test"))
            assert any(
                a.shape != b.shape or not torch.equal(a, b)
                for a, b in zip(first.tensors(), other.tensors(), strict=True)
            ), kind


def test_what_was_measured_is_a_calibration_of_as_many_learners() -> None:
    domain = digits()
    for kind, learners in ((CALIBRATED, 3), ("pixels inverted", 2)):
        assert len(calibration_of("posterior", domain.measure(kind))) == learners
