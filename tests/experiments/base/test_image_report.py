from dataclasses import replace
from functools import partial

import pytest
import torch

from neural_complexity.experiments.base.image_learners import (
    BELIEFS,
    CNN,
    DISTILLED,
    NC_METHODS,
    PLAIN,
    ImageMethod,
)
from neural_complexity.experiments.base.image_report import (
    accuracies,
    accuracy_table,
    compare,
    describe,
    learner_rows,
    over_seeds,
    reference_rows,
    reference_table,
)
from neural_complexity.experiments.base.rows import Row, find
from neural_complexity.meta.scores import Estimate
from smoke_runs import SmokeRuns

L2, SAM = ImageMethod("L2"), ImageMethod("SAM")


def accuracy(value: float, ci95: float | None = 1.0, method: ImageMethod = PLAIN) -> Row:
    keys = {**method.keys, "dataset": "digits", "learner": "MLP"}
    return Row.of("any", 0, "accuracy", Estimate(value, ci95, 3), 91.5, **keys)


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
    rows = [accuracy(80.0), accuracy(70.0, method=L2), accuracy(99.0, method=SAM)]
    rows += [accuracy(90.0, method=method) for method in NC_METHODS]
    for method in NC_METHODS:
        assert accuracy_table(rows).note.count(
            f"{method.label}: beyond the intervals better than cross-entropy and L2; beyond the "
            "intervals worse than SAM."
        )
    assert "distilled" not in accuracy_table(rows).note


def test_a_line_has_the_losses_of_its_own_method_and_the_papers_number() -> None:
    rows = [accuracy(80.0), accuracy(70.0, method=L2)]
    for method, value in ((PLAIN, 0.5), (L2, 0.7)):
        keys = {**method.keys, "dataset": "digits", "learner": "MLP"}
        rows.append(Row.of("any", 0, "test loss", Estimate(value, 0.1, 3), **keys))
    table = accuracy_table([*rows, *(accuracy(1.0, method=m) for m in NC_METHODS)])
    assert table.rows[1] == ("L2", "70.00 ± 1.00", "0.700 ± 0.100", "", "91.50")
    assert describe(rows[0]) == "digits, MLP"
    other = Row.of("any", 0, "accuracy", Estimate(1, None, 1), **SAM.keys, source="single")
    assert list(accuracies([*rows, other])) == [PLAIN, L2]


def test_the_verdict_follows_the_numbers(smoke_runs: SmokeRuns) -> None:
    rows, ours = smoke_runs("single").outcome.rows, NC_METHODS[0]

    def change(row: Row, accuracy: float, ci95: float | None) -> Row:
        if row.metric != "accuracy" or "learner" not in row.keys:
            return row
        if ImageMethod.of(row) == ours:
            return replace(row, value=accuracy, ci95=ci95)
        return replace(row, value=50.0, ci95=1.0)

    def verdict(accuracy: float, ci95: float | None) -> str:
        return accuracy_table([change(row, accuracy, ci95) for row in rows]).note

    tuned = "cross-entropy, tuned, cross-entropy, tuned, twice the updates"
    baselines = (
        f"cross-entropy, {tuned}, L2, label smoothing, mixup, dropout, SAM and early stopping"
    )
    good, bad, unclear = verdict(60.0, 1.0), verdict(40.0, 1.0), verdict(51.5, 1.0)
    name = ours.label
    assert f"{name}: not to be told apart from {baselines}." in verdict(60.0, None)  # of one run
    assert f"{name}: beyond the intervals better than {baselines}." in good
    assert f"{name}, beats the learner distilled from the CNN (60.00 ± 1.00" in good
    assert f"{name}: beyond the intervals worse than {baselines}." in bad
    assert f"{name}, does not beat the learner distilled from the CNN, but is worse (40" in bad
    assert f"{name}: not to be told apart from {baselines}." in unclear
    assert f"{name}, does not beat the learner distilled from the CNN: the inter" in unclear


def test_intervals_are_over_ncs_where_there_are_several() -> None:
    values = torch.tensor([[0.1, 0.1, 0.3, 0.3]])
    found = {"error": values, "loss_te": values, "loss_tr": values}
    make = partial(Row.of, "any", 0)
    one, several = (learner_rows(make, found, ncs=n)[0] for n in (1, 2))
    assert one.value == several.value == pytest.approx(80)
    assert (one.n, several.n) == (4, 2)
    assert one.ci95 is not None
    assert several.ci95 is not None
    assert several.ci95 > 5 * one.ci95


def test_rows_of_several_ncs_are_averaged_with_both_sources_of_luck() -> None:
    runs = [[Row.of("any", 0, "R2", Estimate(value, 3.0, 7))] for value in (0.0, 2.0)]
    (row,) = over_seeds(runs)
    assert (row.value, row.n) == (1.0, 7)
    assert row.ci95 == pytest.approx((3.0**2 + 12.706**2) ** 0.5, rel=1e-3)
    assert over_seeds(runs[:1]) == runs[0]


def test_what_shows_where_ncs_help_comes_from_is_that_of_the_run(smoke_runs: SmokeRuns) -> None:
    rows = reference_rows(str(smoke_runs("single").folder), "capacity")
    theirs = smoke_runs("single").outcome.rows
    for method in (DISTILLED, BELIEFS, CNN):
        for metric in ("accuracy", "test loss"):
            own, wanted = (find(some, metric, **method.keys) for some in (rows, theirs))
            assert own is not None
            assert wanted is not None
            assert own.value == wanted.value
            assert (own.experiment, own.keys["source"]) == ("capacity", "single")
            assert ImageMethod.of(own) == method
    assert len(rows) == 6
    assert [line[0] for line in reference_table(rows).rows] == [
        method.label for method in (DISTILLED, BELIEFS, CNN)
    ]
