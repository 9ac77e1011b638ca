import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from neural_complexity.assessment.tables import find
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.base.run_folder import config_from_dict
from neural_complexity.experiments.reports import simple_report as report
from neural_complexity.experiments.simple import (
    LEARNERS,
    NAME,
    PREDICTORS,
    PRESETS,
    SCORES,
    Config,
    _sinusoid_kernel,
    run,
    smoke,
)
from neural_complexity.seeding import stream
from neural_complexity.tasks.sinusoids import Sinusoids


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    torch.set_default_dtype(torch.float32)  # as users run it
    return run(smoke())


def value(rows: list[Row], method: str, setting: str, metric: str) -> float:
    row = find(rows, method, setting, metric)
    assert row is not None
    return row.value


def test_all_that_a_report_needs_is_there(outcome: Outcome) -> None:
    found = [(row.method, row.setting, row.metric) for row in outcome.rows]
    beliefs = [p for p in PREDICTORS if p != "NC direct"]
    assert sorted(found) == sorted(
        [(p, learner, metric) for p in PREDICTORS for learner in LEARNERS for metric in SCORES]
        + [(learner, "learner", m) for learner in LEARNERS for m in ("train loss", "test loss")]
        + [(predictor, "beliefs", "test loss") for predictor in beliefs]
    )
    assert {(row.n, row.experiment) for row in outcome.rows} == {(256, NAME)}
    assert set(outcome.facts["RBF kernel"]) == {"lengthscale", "amplitude", "noise"}
    assert set(outcome.facts["seconds"]) == {"RBF kernel", *LEARNERS}


def test_the_posterior_head_holds_for_learners_it_never_saw(outcome: Outcome) -> None:
    for learner in LEARNERS:
        assert value(outcome.rows, "NC posterior", learner, "R2") > 0.99


def test_the_direct_head_holds_for_networks_and_less_for_others(outcome: Outcome) -> None:
    known = value(outcome.rows, "NC direct", "network", "R2")
    assert known > 0.98
    for learner in set(LEARNERS) - {"network"}:
        assert value(outcome.rows, "NC direct", learner, "R2") < known


def test_the_familys_own_kernel_knows_the_gap(outcome: Outcome) -> None:
    for learner in LEARNERS:
        assert value(outcome.rows, "GP, sinusoid kernel", learner, "R2") > 0.999999
    assert value(outcome.rows, "GP, sinusoid kernel", "beliefs", "test loss") < 1e-9


def test_learners_are_what_they_should_be(outcome: Outcome) -> None:
    rows = outcome.rows
    assert value(rows, "nearest neighbour", "learner", "train loss") == 0
    own = value(rows, "Gaussian process", "learner", "test loss")
    assert own == value(rows, "GP, RBF kernel", "beliefs", "test loss")
    losses = [value(rows, learner, "learner", "test loss") for learner in LEARNERS]
    assert own == min(losses)
    assert max(losses) == value(rows, "0-th order polynomial", "learner", "test loss")
    # The same network as in the sinusoid experiment, on the same tasks.
    assert value(rows, "network", "learner", "test loss") == pytest.approx(4.035, rel=1e-3)


def test_the_sinusoid_kernel_is_the_familys_second_moment() -> None:
    family, x = Sinusoids(train_points=1, test_points=1), torch.tensor([-4.0, 0.3, 1.0, 2.5])
    A, b = (
        low + (high - low) * torch.rand(200_000, 1, generator=stream(0, name))
        for name, (low, high) in (("A", family.amplitude), ("b", family.phase))
    )
    Y = A * torch.sin(x + b)
    expected = Y.T @ Y / len(Y)
    K = _sinusoid_kernel(family)(x.view(1, 4, 1), x.view(1, 4, 1))[0]
    torch.testing.assert_close(K, expected, rtol=0.02, atol=0.05)


def test_tables_and_figures_can_be_made(outcome: Outcome, tmp_path: Path) -> None:
    losses, *fits = report.tables(outcome.rows)
    assert len(losses.rows) == len(LEARNERS) + 3
    assert [table.title.split()[0] for table in fits] == list(SCORES)
    for table in fits:
        assert [row[0] for row in table.rows] == list(LEARNERS)
        assert all("±" in cell for row in table.rows for cell in row[1:])
    figures = report.figures(outcome, tmp_path)
    assert [figure.path.stem for figure in figures] == ["extremes", "gap-fit"]
    assert all(figure.path.stat().st_size > 10_000 for figure in figures)


def test_the_tasks_shown_are_the_extremes(outcome: Outcome) -> None:
    tensors = outcome.tensors
    for learner in LEARNERS:
        predicted = tensors[f"gaps/{learner}/posterior"]
        first, last = predicted[tensors[f"shown/{learner}/task"]]
        assert (first, last) == (predicted.min(), predicted.max())
        H_te, Y_te, H_tr, Y_tr = (
            tensors[f"shown/{learner}/{name}"] for name in ("H_te", "Y_te", "H_tr", "Y_tr")
        )
        gap = (H_te - Y_te).square().mean(dim=(1, 2)) - (H_tr - Y_tr).square().mean(dim=(1, 2))
        true = tensors[f"gaps/{learner}/true"][tensors[f"shown/{learner}/task"]]
        torch.testing.assert_close(gap, true)


def test_a_stopped_run_goes_on_and_ends_the_same(outcome: Outcome, tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)

    def stop(stage: str, done: int, total: int, seconds: float, facts: dict[str, float]) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(smoke(), folder=tmp_path, tell=stop)
    assert len(list(tmp_path.iterdir())) == 3
    resumed = run(smoke(), folder=tmp_path)
    assert resumed.rows == outcome.rows
    assert resumed.tensors.keys() == outcome.tensors.keys()
    for name, tensor in outcome.tensors.items():
        assert torch.equal(resumed.tensors[name], tensor)


def test_a_config_survives_json() -> None:
    for preset in PRESETS.values():
        config = preset()
        assert config_from_dict(Config, json.loads(json.dumps(asdict(config)))) == config


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"eval_tasks": 1}, "eval_tasks must be at least 2, got 1"),
        ({"tuning_tasks": 0}, "tuning_tasks must be at least 1, got 0"),
        ({"device": "abacus"}, "device must be one that works here, got abacus"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(smoke(), **change)  # type: ignore[arg-type]


def test_networks_that_are_not_there_are_missed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="networks must be a finished run of sinusoid, got no"):
        run(replace(smoke(), networks=str(tmp_path)))
