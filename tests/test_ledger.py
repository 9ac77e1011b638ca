import pytest
import torch

from neural_complexity.ledger import choosing, record, record_known, recording
from neural_complexity.points import indexed

X, Y = torch.randn(2, 5, 3), torch.randint(4, (2, 5))


def test_without_a_ledger_nothing_is_noted() -> None:
    record("learn", X, Y)
    with recording() as ledger:
        pass
    record("learn", X, Y)
    assert not ledger.points("learn")


@pytest.mark.parametrize("role", ["learn", "choose"])
@pytest.mark.parametrize("measured", ["hold", "report"])
def test_one_shared_point_is_found(role: str, measured: str) -> None:
    with recording() as ledger:
        record(role, X[:, :3], Y[:, :3])  # type: ignore[arg-type]
        record(measured, X[:, 3:], Y[:, 3:])  # type: ignore[arg-type]
        assert not ledger.leaks(one_dataset=True)
        record(measured, X[:1, 2:3], Y[:1, 2:3])  # type: ignore[arg-type]
    assert ledger.leaks() == [f"1 points were there to {role} and to {measured}"]


@pytest.mark.parametrize("roles", [("train", "report"), ("learn", "choose")])
def test_tasks_share_points_unless_there_is_one_dataset(roles: tuple[str, str]) -> None:
    with recording() as ledger:
        for role in roles:
            record(role, X, Y)  # type: ignore[arg-type]
    assert not ledger.leaks()
    (said,) = ledger.leaks(one_dataset=True)
    assert said == "10 points were there to {} and to {}".format(*roles)


def test_what_is_measured_while_choosing_chooses() -> None:
    with recording() as ledger:
        record("report", X[:, :3], Y[:, :3])
        with choosing():
            record("report", X[:, 2:], Y[:, 2:])
    assert len(ledger.points("choose")) == 6
    assert ledger.leaks() == ["2 points were there to choose and to report"]


def test_indices_into_a_store_are_the_points_they_stand_for() -> None:
    images = torch.randn(20, 1, 4, 4)
    indices = torch.tensor([[3, 4, 4], [5, 3, 6]])
    with recording() as ledger:
        record("learn", indexed(indices, images.__getitem__), torch.zeros(2, 3, dtype=torch.int64))
        record("report", images[None, 7:12], torch.zeros(1, 5, dtype=torch.int64))
        assert not ledger.leaks()
        record("report", images[None, 6:8], torch.ones(1, 2, dtype=torch.int64))
    assert len(ledger.points("learn")) == 4
    assert ledger.leaks() == ["1 points were there to learn and to report"]


def test_real_targets_tell_tasks_with_the_same_inputs_apart() -> None:
    grid = torch.linspace(0, 1, 5).view(1, 5, 1)
    with recording() as ledger:
        record("learn", grid, grid)
        record("report", grid, 2 * grid + 1)
    assert not ledger.leaks()


def test_an_nc_from_elsewhere_brings_what_it_knows() -> None:
    with recording() as ledger:
        record_known(lambda points: (points == X[0, 1]).all(dim=1))
        record("report", X[1:], Y[1:])
        assert not ledger.leaks()
        record("report", X, Y)
    assert ledger.leaks() == ["1 points were there to report, and known to an NC"]
