from dataclasses import replace

import pytest
import torch

from neural_complexity.baselines.estimates import LEAST
from neural_complexity.cli import main
from neural_complexity.experiments import pretraining
from neural_complexity.experiments.base.experiment import Outcome
from neural_complexity.experiments.base.rows import find, select
from neural_complexity.experiments.pretraining import EXPERIMENT, INPUTS, METHODS, Config
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.workspace import Workspace
from smoke_runs import SmokeRuns

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def outcome(smoke_runs: SmokeRuns) -> Outcome:
    return smoke_runs("pretraining").outcome


def test_beliefs_stand_beside_a_forest_and_a_constant(outcome: Outcome) -> None:
    for metric in ("log loss", "accuracy"):
        for method in METHODS:
            for inputs in INPUTS:
                row = find(outcome.rows, metric, method=method, inputs=inputs)
                assert row is not None
                assert row.n == 4
    assert len(outcome.rows) == 16


def test_the_network_is_one_for_tables(outcome: Outcome) -> None:
    nc = outcome.networks["labels"]
    assert nc.architecture.for_tables
    assert nc.card.context_size == 20
    assert [status.iteration for status in outcome.history["tables"]] == [4, 8, 12]
    assert all(status.held_out is not None for status in outcome.history["tables"])


def test_numbers_are_predicted_too() -> None:
    config: Config = EXPERIMENT.presets["smoke"]()
    found = pretraining.run(replace(config, targets="numbers", updates=2), Workspace(None))
    assert {row.metric for row in found.rows} == {"squared error"}
    (table,) = EXPERIMENT.tables(found.rows)
    assert [line[0] for line in table.rows] == list(METHODS)
    assert found.networks["numbers"].architecture.bins == 64
    forest = select(found.rows, "squared error", method="forest")
    constant = select(found.rows, "squared error", method="constant")
    assert forest[0].value < constant[0].value


def test_a_forest_knows_what_it_has_seen() -> None:
    family = EXPERIMENT.presets["smoke"]().family(0.0)
    task = family.sample(2, stream(0, "some"))
    seen = replace(task, X_te=task.X_tr, Y_te=task.Y_tr)
    logits = pretraining._forest(seen, 3)
    assert logits.shape == (2, task.X_tr.shape[1], 3)
    assert (logits.argmax(dim=-1) == task.Y_tr).float().mean() > 0.9
    missing = pretraining._forest(seen, 5)[..., 3:]  # classes that no row has
    assert torch.all(missing == torch.tensor(LEAST).log())


def test_the_shipped_size_is_kept() -> None:
    nc: NeuralComplexity = EXPERIMENT.presets["cpu"]().make()
    assert 4 * sum(p.numel() for p in nc.parameters()) < 12e6


def test_the_command_says_what_can_be_pretrained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", "trees"]) == 1
    assert "KIND must be tables, got trees" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["pretrain", "tables", "--preset", "gpu", "--help"])
    assert "--most-features" in capsys.readouterr().out
