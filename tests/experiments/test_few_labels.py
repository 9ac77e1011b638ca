import pytest

from neural_complexity.experiments.base.experiment import Outcome
from neural_complexity.experiments.base.rows import find, select
from neural_complexity.experiments.few_labels import BELIEFS, EXPERIMENT, METHODS, Config
from neural_complexity.tasks.real_tables import is_developed
from smoke_runs import SmokeRuns

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def outcome(smoke_runs: SmokeRuns) -> Outcome:
    return smoke_runs("few_labels").outcome


def test_every_method_has_an_accuracy_and_those_with_a_baseline_a_change(outcome: Outcome) -> None:
    accuracies, changes = (select(outcome.rows, metric) for metric in ("accuracy", "change"))
    assert [row.keys["method"] for row in accuracies] == list(METHODS)
    assert [row.keys["method"] for row in changes] == [m for m, usual in METHODS.items() if usual]
    each = outcome.tensors["accuracy/30"]
    assert each.shape == (2, len(METHODS))
    names = list(METHODS)
    for row in changes:
        method = str(row.keys["method"])
        own, usual = (each[:, names.index(name)] for name in (method, METHODS[method] or ""))
        assert row.value == pytest.approx((own - usual).mean().item())


def test_easy_tables_are_learned(outcome: Outcome) -> None:
    row = find(outcome.rows, "accuracy", method=BELIEFS, labels=30)
    assert row is not None
    assert row.value > 85
    accuracy, change = EXPERIMENT.tables(outcome.rows)
    assert len(accuracy.rows) == len(METHODS)
    assert len(change.rows) == len(select(outcome.rows, "change"))


def test_the_report_is_on_tables_that_nothing_was_chosen_on() -> None:
    names = Config().tables()
    assert len(names) > 30
    assert not any(map(is_developed, names))
