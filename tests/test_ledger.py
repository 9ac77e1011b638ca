import pytest
import torch

from neural_complexity.ledger import choosing, record, recording
from neural_complexity.points import indexed

X, Y = torch.randn(2, 5, 3), torch.randint(4, (2, 5))


def test_without_a_ledger_nothing_is_noted() -> None:
    record("learn", X, Y)
    with recording() as ledger:
        pass
    record("learn", X, Y)
    assert not ledger.points("learn")


@pytest.mark.parametrize("role", ["learn", "choose", "train"])
def test_one_shared_point_is_found(role: str) -> None:
    with recording() as ledger:
        record(role, X[:, :3], Y[:, :3])  # type: ignore[arg-type]
        record("report", X[:, 3:], Y[:, 3:])
        ledger.check()
        record("report", X[:1, 2:3], Y[:1, 2:3])
    with pytest.raises(AssertionError, match=f"there to {role}, got 1 of 5"):
        ledger.check()


def test_learners_may_share_points_between_few_shot_tasks() -> None:
    with recording() as ledger:
        record("train", X, Y)
        record("report", X, Y)
    ledger.check(learners=False)


def test_what_is_measured_while_choosing_chooses() -> None:
    with recording() as ledger:
        record("report", X[:, :3], Y[:, :3])
        with choosing():
            record("report", X[:, 2:], Y[:, 2:])
    assert len(ledger.points("choose")) == 6
    with pytest.raises(AssertionError, match="there to choose, got 2 of 6"):
        ledger.check()


def test_indices_into_a_store_are_the_points_they_stand_for() -> None:
    images = torch.randn(20, 1, 4, 4)
    indices = torch.tensor([[3, 4, 4], [5, 3, 6]])
    with recording() as ledger:
        record("learn", indexed(indices, images.__getitem__), torch.zeros(2, 3, dtype=torch.int64))
        record("report", images[None, 7:12], torch.zeros(1, 5, dtype=torch.int64))
        ledger.check()
        record("report", images[None, 6:8], torch.ones(1, 2, dtype=torch.int64))
    assert len(ledger.points("learn")) == 4
    with pytest.raises(AssertionError, match="there to learn, got 1 of 6"):
        ledger.check()


def test_real_targets_tell_tasks_with_the_same_inputs_apart() -> None:
    grid = torch.linspace(0, 1, 5).view(1, 5, 1)
    with recording() as ledger:
        record("learn", grid, grid)
        record("report", grid, 2 * grid + 1)
    ledger.check()
