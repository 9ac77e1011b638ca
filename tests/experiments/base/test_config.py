import json
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal

import pytest

from neural_complexity.experiments.base.config import (
    POSITIVE,
    AtLeast,
    BaseConfig,
    Between,
    Bound,
    Checked,
    config_from_dict,
)


@dataclass(frozen=True, kw_only=True)
class Inner(Checked):
    warmup: Annotated[float, Between(0, 1, open_end=True)] = 0.0
    share: Annotated[float, Between(0, 1)] = 1.0


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    sizes: Annotated[tuple[int, ...], AtLeast(1)] = (1, 2)
    size: Annotated[int, AtLeast(3), Bound("odd", lambda value: value % 2 == 1)] = 3
    lr: Annotated[float, POSITIVE] = 0.1
    head: Literal["posterior", "direct"] = "direct"
    inner: Inner = field(default_factory=Inner)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"eval_tasks": 1}, "eval_tasks must be at least 2, got 1"),
        ({"device": "abacus"}, "device must be one that works here, got abacus"),
        ({"sizes": (3, 0)}, r"sizes must be at least 1, got \(3, 0\)"),
        ({"size": 1}, "size must be at least 3, got 1"),
        ({"size": 4}, "size must be odd, got 4"),
        ({"lr": 0.0}, "lr must be positive, got 0.0"),
        ({"lr": float("inf")}, "lr must be positive, got inf"),
        ({"lr": float("nan")}, "lr must be positive, got nan"),
        ({"head": "tail"}, "head must be posterior or direct, got tail"),
    ],
)
def test_values_out_of_bounds_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Config(**change)  # type: ignore[arg-type]


def test_intervals_are_closed_or_open_at_their_end() -> None:
    assert Inner(share=1.0).share == 1
    with pytest.raises(ValueError, match="share must be from 0 to 1, got 1.1"):
        Inner(share=1.1)
    with pytest.raises(ValueError, match="warmup must be from 0 to below 1, got 1.0"):
        Inner(warmup=1.0)


def test_a_config_survives_json_and_those_of_other_versions_are_refused() -> None:
    config = Config(sizes=(4, 5), inner=Inner(share=0.5))
    values = json.loads(json.dumps(asdict(config)))
    assert config_from_dict(Config, values) == config
    values["inner"]["depth"] = 3
    with pytest.raises(ValueError, match=r"a config must have the fields of Inner.*\(depth\)"):
        config_from_dict(Config, values)
