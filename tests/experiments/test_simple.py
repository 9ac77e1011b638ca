import pytest
import torch

from neural_complexity.experiments.base.comparison import SCORES
from neural_complexity.experiments.base.experiment import Outcome
from neural_complexity.experiments.base.rows import Row, find
from neural_complexity.experiments.simple import (
    EXPERIMENT,
    LEARNERS,
    PREDICTORS,
    sinusoid_kernel,
)
from neural_complexity.seeding import stream
from neural_complexity.tasks.families import Sinusoids
from smoke_runs import SmokeRuns


@pytest.fixture
def outcome(smoke_runs: SmokeRuns) -> Outcome:
    return smoke_runs("simple").outcome


def value(rows: list[Row], metric: str, **keys: str) -> float:
    row = find(rows, metric, **keys)
    assert row is not None
    return row.value


def test_all_numbers_are_there(outcome: Outcome) -> None:
    rows = outcome.rows
    for learner in LEARNERS:
        for metric in ("train loss", "test loss"):
            assert find(rows, metric, learner=learner, predictor=None)
        for predictor in PREDICTORS:
            for metric in SCORES:
                assert find(rows, metric, learner=learner, predictor=predictor)
    assert len(rows) == len(LEARNERS) * (2 + len(PREDICTORS) * len(SCORES)) + 3
    assert set(outcome.facts["RBF kernel"]) == {"lengthscale", "amplitude", "noise"}
    assert set(outcome.facts["seconds"]) == {"RBF kernel", *LEARNERS}


def test_the_posterior_head_holds_for_learners_it_never_saw(outcome: Outcome) -> None:
    for learner in LEARNERS:
        assert value(outcome.rows, "R2", predictor="NC posterior", learner=learner) > 0.99


def test_the_direct_head_holds_for_networks_and_less_for_others(outcome: Outcome) -> None:
    known = value(outcome.rows, "R2", predictor="NC direct", learner="network")
    assert known > 0.98
    for learner in set(LEARNERS) - {"network"}:
        assert value(outcome.rows, "R2", predictor="NC direct", learner=learner) < known


def test_the_familys_own_kernel_knows_the_gap(outcome: Outcome) -> None:
    own = "GP, sinusoid kernel"
    for learner in LEARNERS:
        assert value(outcome.rows, "R2", predictor=own, learner=learner) > 0.999999
    assert value(outcome.rows, "test loss", predictor=own) < 1e-9


def test_learners_are_what_they_should_be(outcome: Outcome) -> None:
    rows = outcome.rows
    assert value(rows, "train loss", learner="nearest neighbour") == 0
    own = value(rows, "test loss", learner="Gaussian process")
    assert own == value(rows, "test loss", predictor="GP, RBF kernel")
    losses = [value(rows, "test loss", learner=learner) for learner in LEARNERS]
    assert own == min(losses)
    assert max(losses) == value(rows, "test loss", learner="0-th order polynomial")
    # The same network as in the sinusoid experiment, on the same tasks.
    assert value(rows, "test loss", learner="network") == pytest.approx(4.035, rel=1e-3)


def test_the_sinusoid_kernel_is_the_familys_second_moment() -> None:
    family, x = Sinusoids(train_points=1, test_points=1), torch.tensor([-4.0, 0.3, 1.0, 2.5])
    A, b = (
        low + (high - low) * torch.rand(200_000, 1, generator=stream(0, name))
        for name, (low, high) in (("A", family.amplitude), ("b", family.phase))
    )
    Y = A * torch.sin(x + b)
    expected = Y.T @ Y / len(Y)
    K = sinusoid_kernel(family)(x.view(1, 4, 1), x.view(1, 4, 1))[0]
    torch.testing.assert_close(K, expected, rtol=0.02, atol=0.05)


def test_tables_are_full(outcome: Outcome) -> None:
    losses, *fits = EXPERIMENT.tables(outcome.rows)
    assert len(losses.rows) == len(LEARNERS) + 3
    for table, metric in zip(fits, SCORES, strict=True):
        assert metric in table.title
        assert [row[0] for row in table.rows] == list(LEARNERS)
        assert all("±" in cell for row in table.rows for cell in row[1:])


def test_the_tasks_drawn_are_the_extremes(outcome: Outcome) -> None:
    for learner in LEARNERS:
        sets = {
            n: outcome.tensors[f"shown/{learner}/{n}"] for n in ("H_te", "Y_te", "H_tr", "Y_tr")
        }
        picks = outcome.tensors[f"shown/{learner}/task"]
        predicted = outcome.tensors[f"gaps/{learner}/posterior"]
        assert predicted[picks].tolist() == [predicted.min(), predicted.max()]
        loss_te, loss_tr = (
            (sets[f"H_{part}"] - sets[f"Y_{part}"]).square().mean(dim=(1, 2))
            for part in ("te", "tr")
        )
        true = outcome.tensors[f"gaps/{learner}/true"][picks]
        torch.testing.assert_close(loss_te - loss_tr, true)


def test_the_kernel_needs_tasks_to_be_chosen_on() -> None:
    with pytest.raises(ValueError, match="tuning_tasks must be at least 1, got 0"):
        EXPERIMENT.config(tuning_tasks=0)
