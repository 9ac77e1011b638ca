from pathlib import Path

import pytest
import torch
from torch import Tensor

from neural_complexity import experiments
from neural_complexity.experiments.base.config import BaseConfig
from neural_complexity.experiments.base.experiment import (
    Parts,
    experiment_names,
    load_experiment,
)
from neural_complexity.workspace import Workspace, fingerprint

CONFIG = BaseConfig(seed=3)


def test_every_module_of_the_package_is_an_experiment() -> None:
    folder = Path(experiments.__path__[0])
    assert experiment_names() == sorted(p.stem for p in folder.glob("*.py") if p.stem[0] != "_")
    for name in experiment_names():
        experiment = load_experiment(name)
        assert experiment.name == name
        assert experiment.title
        assert experiment.lead
        assert experiment.summary.endswith(".")
    with pytest.raises(ValueError, match="NAME must be one of .*sinusoid.*, got cosine"):
        load_experiment("cosine")


def test_a_part_is_done_once_kept_and_reported(tmp_path: Path) -> None:
    told: list[tuple[str, int, int, dict[str, float]]] = []
    calls: list[str] = []

    def work() -> dict[str, Tensor]:
        calls.append("work")
        return {"loss_te": torch.tensor([[1.0, 2.0], [3.0, 5.0]])}

    def callback(stage: str, done: int, total: int, _: float, metrics: dict[str, float]) -> None:
        told.append((stage, done, total, metrics))

    names = ("L2 (1)", "L2 1", "l2 (1)")  # alike, but not the same
    for _ in range(2):  # the second time in a new session
        parts = Parts(Workspace(tmp_path / "work", fingerprint(CONFIG)), 3, callback)
        for name in names:
            assert parts.do(name, work)["loss_te"].tolist() == [[1.0, 2.0], [3.0, 5.0]]
        assert set(parts.seconds) == set(names)
    assert len(calls) == 3
    assert told[0] == ("evaluation", 1, 3, {"L2 (1)": 4.0})
    assert [done for _, done, _, _ in told] == [1, 2, 3, 1, 2, 3]


def test_parts_of_another_config_are_refused(tmp_path: Path) -> None:
    def parts(config: BaseConfig) -> Parts:
        return Parts(Workspace(tmp_path, fingerprint(config)), 1, None)

    parts(CONFIG).do("a", lambda: {"x": torch.ones(1)})
    with pytest.raises(ValueError, match="must be of the same settings, got one of others"):
        parts(BaseConfig(seed=4)).do("a", lambda: {"x": torch.zeros(1)})
