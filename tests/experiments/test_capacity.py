import pytest

from neural_complexity.experiments.base.image_learners import NC_METHODS, PLAIN
from neural_complexity.experiments.base.rows import find
from neural_complexity.experiments.capacity import PAPER, PAPER_METHODS, Config
from smoke_runs import SmokeRuns


def test_larger_learners_have_a_multiple_of_the_parameters(smoke_runs: SmokeRuns) -> None:
    rows = smoke_runs("capacity").outcome.rows
    one = (64 + 1) * 16 + (16 + 1) * 10
    for times in (1, 2, 4):
        row = find(rows, "parameters", **PLAIN.keys, times=times)
        assert row is not None
        assert row.value == times * one
    for method in NC_METHODS:
        row = find(rows, "parameters", **method.keys)
        assert row is not None
        assert row.value == one


def test_the_papers_numbers_are_those_of_its_table() -> None:
    labels = [method.label for method in PAPER_METHODS]
    assert dict(zip(labels, PAPER["cifar-10"], strict=True)) == {
        "cross-entropy": 79.76,
        "cross-entropy (2x capacity)": 79.64,
        "cross-entropy (4x capacity)": 80.47,
        "NC direct, transductive": 81.15,
    }


def test_impossible_capacities_are_refused() -> None:
    for times in ((), (2, 2)):
        with pytest.raises(ValueError, match="times must be different numbers, got"):
            Config(times=times)
    with pytest.raises(ValueError, match=r"times must be at least 1, got \(0,\)"):
        Config(times=(0,))
