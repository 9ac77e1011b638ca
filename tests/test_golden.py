"""What the library computes must not change unless that is meant: see `golden/record.py`."""

from pathlib import Path
from typing import Any

import pytest
import torch

from golden import behaviour
from golden.behaviour import EXPERIMENTS, golden
from neural_complexity.tasks.images import FewShot


def assert_same(found: Any, expected: Any, *, rtol: float, atol: float, at: str = "") -> None:
    """Compares nested numbers and texts."""
    if isinstance(expected, dict):
        assert set(found) == set(expected), at
        for key, value in expected.items():
            assert_same(found[key], value, rtol=rtol, atol=atol, at=f"{at}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), at
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, rtol=rtol, atol=atol, at=f"{at}/{index}")
    elif isinstance(expected, float) and found is not None:
        assert found == pytest.approx(expected, rel=rtol, abs=atol), at
    else:
        assert found == expected, at


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_presets_are_what_they_were(name: str) -> None:
    assert behaviour.presets(name) == golden("presets")[name]


@pytest.mark.parametrize("name", golden("predictions"))
def test_shipped_ncs_predict_what_they_did(name: str) -> None:
    torch.set_default_dtype(torch.float32)  # as users run it
    found, expected = behaviour.shipped_predictions(name), golden("predictions")[name]
    for content in (found, expected):  # the wording of a refusal may change, the refusal may not
        content.update({k: "refused" for k, v in content.items() if isinstance(v, str)})
    assert_same(found, expected, rtol=1e-6, atol=1e-6)


def test_assessments_are_what_they_were() -> None:
    torch.set_default_dtype(torch.float32)
    assert_same(behaviour.assessments(), golden("assessments"), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("head", ["posterior", "direct"])
def test_tiny_trainings_are_what_they_were(head: str, few_shot: FewShot) -> None:
    expected = golden("training")
    assert_same(behaviour.tiny_training(head), expected[head], rtol=1e-6, atol=1e-7)
    found = behaviour.tiny_image_training(head, few_shot)
    assert_same(found, expected[f"{head}, images"], rtol=1e-6, atol=1e-7)


def test_a_resumed_run_leaves_what_it_did(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    found = behaviour.resumed(tmp_path)
    assert_same(found, golden("training")["resumed"], rtol=1e-3, atol=1e-4)
