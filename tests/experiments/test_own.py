from dataclasses import replace

import numpy as np
import pytest
import torch

from neural_complexity.experiments import own
from neural_complexity.experiments.base.experiment import Outcome
from neural_complexity.experiments.base.rows import find
from neural_complexity.experiments.own import EXPERIMENT
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.tasks.splits import own_digits
from smoke_runs import SmokeRuns

SMOKE = EXPERIMENT.presets["smoke"]()


@pytest.fixture(scope="module")
def outcome(smoke_runs: SmokeRuns) -> Outcome:
    return smoke_runs("own").outcome


def test_every_kind_of_model_and_every_method_has_its_line(outcome: Outcome) -> None:
    gaps, others, accuracies = EXPERIMENT.tables(outcome.rows)
    assert [line[0] for line in gaps.rows] == [own.ALL, *own.KINDS]
    assert [line[0] for line in others.rows] == [own.ALL, *own.KINDS]
    assert all(cell for line in others.rows for cell in line)
    changes = [f"{method}: change" for method, baseline in own.METHODS.items() if baseline]
    assert {line[0] for line in accuracies.rows} == {*own.METHODS, *changes}


def test_the_bound_is_that_of_the_assessment(outcome: Outcome) -> None:
    inside = find(outcome.rows, "inside the bound", model=own.ALL)
    assert inside is not None
    assert 0 <= inside.value <= 1
    assert inside.n == 2 * len(own.KINDS)
    kind = own.KINDS[0]
    true, low, high = (outcome.tensors[f"{name}/{kind}"] for name in ("true", "low", "high"))
    covered = find(outcome.rows, "inside the bound", model=kind)
    assert covered is not None
    assert covered.value == ((low <= true) & (true <= high)).double().mean()


def test_labelled_points_tell_the_gap_as_well(outcome: Outcome) -> None:
    for name in (own.UNUSED, own.FOLDS):
        row = find(outcome.rows, "MAE", model=own.ALL, estimated_by=name)
        assert row is not None
        told, true = (
            torch.cat([outcome.tensors[f"{field}/{kind}"] for kind in own.KINDS])
            for field in (name, "true")
        )
        assert row.value == pytest.approx((told - true).abs().mean().item())
        assert not torch.equal(told, true)


def test_labels_that_taught_nc_help_a_plain_loop(outcome: Outcome) -> None:
    nc, (X, y, X_te, y_te) = outcome.networks["digits"], own_digits()
    config = replace(SMOKE, steps=100)
    few, more = (
        own._regularize(config, nc, method, 50, (X, y, X_te, y_te))["accuracy"].mean()
        for method in (own.LOOP, own.LABELS)
    )
    assert more > few + 5


def test_the_fair_nc_is_given_the_points_of_its_model_alone(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def meta_learn(_: object, X: np.ndarray, y: np.ndarray, **options: object) -> NeuralComplexity:
        given.append((len(X), len(y), options["seed"]))
        return outcome.networks["digits"]

    monkeypatch.setattr(own, "_meta_learn", meta_learn)
    own._regularize(SMOKE, outcome.networks["digits"], own.FAIR, 60, own_digits())
    assert given == [(60, 60, 0), (60, 60, 1)]


def test_changes_are_against_the_own_baseline(outcome: Outcome) -> None:
    for method, baseline in own.METHODS.items():
        if baseline is not None:
            ours, theirs, change = (
                find(outcome.rows, metric, method=name, points=50)
                for metric, name in (
                    ("accuracy", method),
                    ("accuracy", baseline),
                    ("change", method),
                )
            )
            assert ours is not None
            assert theirs is not None
            assert change is not None
            assert change.value == pytest.approx(ours.value - theirs.value)


def test_nc_has_learned_from_the_training_part_only(outcome: Outcome) -> None:
    nc = outcome.networks["digits"]
    assert nc.calibration is not None
    X, _, X_te, _ = (torch.from_numpy(part).float() for part in own_digits())
    assert nc.card.knows(X).any()
    assert not nc.card.knows(X_te).any()


def test_wrong_configs_are_refused() -> None:
    for wrong, sentence in (
        ({"budget": "soon"}, "budget must be a positive time"),
        ({"sizes": (10,)}, "sizes must be from 50 to 1437"),
        ({"sizes": ()}, "sizes must be at least one number, got none"),
        ({"runs": 1}, "runs must be at least 2, got 1"),
        ({"fair_budget": "soon"}, "fair_budget: budget must be a positive time"),
        ({"longest": 29}, "longest must be at least 30, got 29"),
    ):
        with pytest.raises(ValueError, match=sentence):
            replace(SMOKE, **wrong)
