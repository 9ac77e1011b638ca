from pathlib import Path

import pytest
import torch
from torch import Tensor

from neural_complexity.experiments.base.configs import Basics
from neural_complexity.experiments.base.pieces import Pieces

CONFIG = Basics(seed=3)


def test_a_piece_is_done_once_and_kept(tmp_path: Path) -> None:
    told: list[tuple[str, int, int, dict[str, float]]] = []
    calls: list[str] = []

    def work() -> dict[str, Tensor]:
        calls.append("work")
        return {"loss_te": torch.tensor([[1.0, 2.0], [3.0, 5.0]])}

    def tell(stage: str, done: int, total: int, seconds: float, facts: dict[str, float]) -> None:
        told.append((stage, done, total, facts))

    names = ("L2 (1)", "L2 1", "l2 (1)")  # alike, but not the same
    for _ in range(2):  # the second time in a new session
        pieces = Pieces(3, CONFIG, tmp_path / "work", tell)
        for name in names:
            assert pieces.do(name, work)["loss_te"].tolist() == [[1.0, 2.0], [3.0, 5.0]]
        assert set(pieces.seconds) == set(names)
    assert len(calls) == 3
    assert told[0] == ("evaluation", 1, 3, {"L2 (1)": 4.0})
    assert [done for _, done, _, _ in told] == [1, 2, 3, 1, 2, 3]


def test_without_a_folder_nothing_is_kept() -> None:
    pieces = Pieces(1, CONFIG, None, None)
    assert pieces.do("a", lambda: {"x": torch.ones(1)})["x"].tolist() == [1.0]


def test_the_order_of_tensors_does_not_tell_whether_they_were_kept(tmp_path: Path) -> None:
    names = ["loss_te", "gap", "predicted/a", "diverged"]
    orders = []
    for _ in range(2):
        pieces = Pieces(1, CONFIG, tmp_path, None)
        orders.append(list(pieces.do("a", lambda: {name: torch.ones(1, 1) for name in names})))
    assert orders[0] == orders[1]


def test_a_piece_of_another_config_is_refused(tmp_path: Path) -> None:
    Pieces(1, CONFIG, tmp_path, None).do("a", lambda: {"x": torch.ones(1)})
    with pytest.raises(ValueError, match="must be of the same config, got one of another"):
        Pieces(1, Basics(seed=4), tmp_path, None).do("a", lambda: {"x": torch.zeros(1)})
