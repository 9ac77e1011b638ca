import pytest

from neural_complexity.experiments.base.experiment import Outcome
from neural_complexity.experiments.base.rows import distinct, find
from neural_complexity.experiments.ood import ALTERED, EXPERIMENT, HOME, LOOKS
from smoke_runs import SmokeRuns


@pytest.fixture
def outcome(smoke_runs: SmokeRuns) -> Outcome:
    return smoke_runs("ood").outcome


def r2(outcome: Outcome, head: str, altered: str, value: str | float) -> float:
    keys = {"altered": altered, "value": value}
    found = find(outcome.rows, "R2", head=head, learners="plain", **keys)
    assert found is not None
    return found.value


def test_nc_holds_for_other_learners_unless_they_diverge(outcome: Outcome) -> None:
    for keys in distinct(outcome.rows, "altered", "value"):
        altered, value = str(keys["altered"]), keys["value"]
        if altered != "lr" or float(value) < 0.1:
            assert r2(outcome, "posterior", altered, value) > 0.98
    for activation in ("tanh", "sigmoid", "none"):
        assert r2(outcome, "direct", "activation", activation) > 0.9
    assert r2(outcome, "direct", "width", 20) > 0.9
    diverged = find(outcome.rows, "diverged tasks", altered="lr", value=1.0, method="none")
    assert diverged is not None
    assert diverged.value > 25  # of 32


def test_every_change_that_the_sizes_allow_is_made_under_every_method(outcome: Outcome) -> None:
    config = EXPERIMENT.presets["smoke"]()
    expected = [
        {"altered": altered, "value": value}
        for altered, values in ALTERED.items()
        for value in values
        if (altered, value) in config.settings()
    ]
    assert distinct(outcome.rows, "altered", "value") == expected
    assert {("steps", 16), ("width", 80)} <= set(config.settings())
    assert not {("steps", 64), ("width", 160)} & set(config.settings())
    assert len(list(EXPERIMENT.config().settings())) == sum(map(len, ALTERED.values()))
    for setting in expected:
        for keys, _, _ in LOOKS.values():
            assert find(outcome.rows, "diverged tasks", **setting, **keys)


def test_learners_that_are_nc_s_own_are_the_same_whatever_is_said_to_be_altered(
    outcome: Outcome,
) -> None:
    for method in ("none", "oracle"):
        losses = {
            find(outcome.rows, "test loss", altered=a, value=v, method=method).value  # type: ignore[union-attr]
            for a, v in HOME.items()
        }
        assert len(losses) == 1


def test_tables_say_what_is_nc_s_own_and_how_many_diverged(outcome: Outcome) -> None:
    fits, losses = EXPERIMENT.tables(outcome.rows)
    assert [row[0] for row in fits.rows] == [row[0] for row in losses.rows]
    own = [row[0] for row in fits.rows if "(NC's own)" in row[0]]
    assert own == [f"{altered} {value} (NC's own)" for altered, value in HOME.items()]
    (wild,) = (row for row in losses.rows if row[0] == "lr 1.0")
    assert "†" in wild[1]


@pytest.mark.parametrize("field", ["most_steps", "widest"])
def test_bounds_must_leave_some_learners(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be at least 1, got 0"):
        EXPERIMENT.config(**{field: 0})
