import pytest

from neural_complexity.experiments.base.image_learners import PLAIN, ImageMethod
from neural_complexity.experiments.base.image_report import (
    accuracies,
    accuracy_cells,
    compare,
    describe,
    verdict,
)
from neural_complexity.experiments.base.rows import Row, make_row
from neural_complexity.meta.scores import Estimate

L2, SAM = ImageMethod("L2"), ImageMethod("SAM")


def accuracy(value: float, ci95: float | None = 1.0, method: ImageMethod = PLAIN) -> Row:
    keys = {**method.keys, "dataset": "digits", "learner": "MLP"}
    return make_row("any", 0, "accuracy", Estimate(value, ci95, 3), 91.5, **keys)


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (accuracy(90.0), accuracy(80.0), "better"),
        (accuracy(80.0), accuracy(90.0), "worse"),
        (accuracy(81.5), accuracy(80.0), "neither"),
        (accuracy(90.0, None), accuracy(80.0), "neither"),
    ],
)
def test_only_what_is_beyond_both_intervals_is_better_or_worse(
    ours: Row, theirs: Row, said: str
) -> None:
    assert compare(ours, theirs) == said


def test_a_verdict_lists_baselines_by_what_they_are_compared_to_it() -> None:
    found = {PLAIN: accuracy(80.0), L2: accuracy(70.0), SAM: accuracy(99.0)}
    found[ImageMethod("NC", "direct")] = accuracy(90.0)
    assert verdict(found, ImageMethod("NC", "direct"), [PLAIN, L2, SAM]) == (
        "NC direct: beyond the intervals better than cross-entropy and L2; beyond the intervals "
        "worse than SAM."
    )


def test_a_line_has_the_losses_of_its_own_method_and_the_papers_number() -> None:
    rows = [accuracy(80.0), accuracy(70.0, method=L2)]
    for method, value in ((PLAIN, 0.5), (L2, 0.7)):
        keys = {**method.keys, "dataset": "digits", "learner": "MLP"}
        rows.append(make_row("any", 0, "test loss", Estimate(value, 0.1, 3), **keys))
    assert accuracy_cells(rows, rows[1]) == ("70.00 ± 1.00", "0.700 ± 0.100", "", "91.50")
    assert describe(rows[0]) == "digits, MLP"
    other = make_row("any", 0, "accuracy", Estimate(1, None, 1), **SAM.keys, source="single")
    assert list(accuracies([*rows, other])) == [PLAIN, L2]
