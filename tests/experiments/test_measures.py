from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from neural_complexity.baselines.measures.catalogue import MEASURES
from neural_complexity.baselines.ranking import MAE, TAU, kendall_tau
from neural_complexity.experiments.base.experiment import Outcome
from neural_complexity.experiments.base.measure_report import (
    CHANCE,
    EVERY,
    FOLDS,
    HOLD_OUT,
    LEAST,
    LOST,
    MODELS,
    OWN,
    TABLES,
    TRAINING,
    UNUSED,
)
from neural_complexity.experiments.base.model_zoo import load_data
from neural_complexity.experiments.base.rows import find, select
from neural_complexity.experiments.base.run_folder import HEADS
from neural_complexity.experiments.measures import EXPERIMENT
from neural_complexity.workspace import Workspace
from smoke_runs import SmokeRuns

SMOKE = EXPERIMENT.presets["smoke"]()
DIGITS, WINE = SMOKE.datasets


@pytest.fixture(scope="module")
def outcome(smoke_runs: SmokeRuns) -> Outcome:
    return smoke_runs("measures").outcome


def test_every_measure_and_baseline_is_scored_on_every_dataset(outcome: Outcome) -> None:
    usual = {TRAINING, HOLD_OUT, FOLDS, UNUSED, CHANCE}
    known = {*MEASURES, *OWN.values(), TABLES, *usual} - {"cross-entropy"}
    for dataset in SMOKE.datasets:
        found = {row.keys["measure"] for row in select(outcome.rows, TAU, dataset=dataset)}
        assert found == known  # the cross-entropy is the training loss
    averaged = {row.keys["measure"] for row in select(outcome.rows, TAU, dataset=EVERY)}
    assert averaged == known


def test_predictions_of_the_gap_alone_have_errors(outcome: Outcome) -> None:
    found = {row.keys["measure"] for row in select(outcome.rows, MAE, dataset=WINE)}
    assert found == {*OWN.values(), HOLD_OUT, FOLDS, UNUSED, TABLES}


def test_scores_are_of_the_models_that_were_trained(outcome: Outcome) -> None:
    for dataset in SMOKE.datasets:
        gaps, norm = (
            outcome.tensors[f"{dataset}/{name}"] for name in ("gap", next(iter(MEASURES)))
        )
        kept, lost = (find(outcome.rows, metric, dataset=dataset) for metric in (MODELS, LOST))
        assert kept is not None
        assert lost is not None
        assert kept.value == len(gaps) == kept.n - lost.value
        tau = find(outcome.rows, TAU, dataset=dataset, measure=next(iter(MEASURES)))
        assert tau is not None
        assert tau.value == pytest.approx(kendall_tau(norm, gaps).item())


def test_trained_models_have_the_same_training_loss(outcome: Outcome) -> None:
    for dataset in SMOKE.datasets:
        losses = outcome.tensors[f"{dataset}/{TRAINING}"]
        assert (losses <= SMOKE.stopping.target).all()
        least = find(outcome.rows, LEAST, dataset=dataset)
        assert least is not None
        assert least.value == losses.min().item()


def test_nc_knows_no_point_of_the_zoo(outcome: Outcome, smoke_runs: SmokeRuns) -> None:
    assert smoke_runs.leaks("measures") == []
    torch.set_default_dtype(torch.float32)  # in which the run was
    data = load_data(DIGITS, SMOKE.sizes, seed=SMOKE.seed)
    nc, judged = outcome.networks["digits-posterior"], torch.arange(data.train + data.test)
    assert nc.card.knows(data.others()[0]).any()
    assert not nc.card.knows(data(judged)).any()


@pytest.mark.usefixtures("forked_workers")
def test_worker_processes_find_the_same(outcome: Outcome, tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)  # in which the run was
    config, done = replace(SMOKE, workers=2, trainings=2), list[tuple[int, int]]()
    report: Any = lambda _, now, total, *__: done.append((now, total))  # noqa: E731
    found = EXPERIMENT.run(config, Workspace(tmp_path / "work"), report)
    for name, values in outcome.tensors.items():  # those of the first meta-training
        torch.testing.assert_close(found.tensors[name], values)
    ncs, groups = len(HEADS) * config.trainings, len(config.grid.groups())
    total = len(config.datasets) * (ncs + groups)
    assert done == [(now, total) for now in range(1, total + 1)]
    once, twice = (
        find(o.rows, TAU, dataset=WINE, measure=OWN["posterior"]) for o in (outcome, found)
    )
    assert once is not None
    assert twice is not None
    assert twice.value != once.value  # the mean of two


def test_workers_need_a_folder() -> None:
    with pytest.raises(ValueError, match="workers must be 0 where no folder keeps what they do"):
        EXPERIMENT.run(replace(SMOKE, workers=1), Workspace(None), None)


def test_wrong_configs_are_refused() -> None:
    for wrong, sentence in (
        ({"datasets": ()}, "datasets must be at least one, each once, got none"),
        ({"datasets": (WINE, WINE)}, "each once, got sklearn wine, sklearn wine"),
    ):
        with pytest.raises(ValueError, match=sentence):
            replace(SMOKE, **wrong)
