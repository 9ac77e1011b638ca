"""What all experiments that ask the shipped NCs have in common, and what each must show."""

import json
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from neural_complexity.assessment.tables import find
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row, read_rows, write_rows
from neural_complexity.experiments.base.run_folder import config_from_dict

NAMES = ("regularizers", "ood", "curves", "harm")


def experiment(name: str) -> Any:
    return import_module(f"neural_complexity.experiments.{name}")


def report(name: str) -> Any:
    return import_module(f"neural_complexity.experiments.reports.{name}")


@pytest.fixture(autouse=True)
def single_precision() -> None:
    torch.set_default_dtype(torch.float32)  # as users run it


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Runs each experiment at preset smoke, interrupted halfway and resumed."""
    torch.set_default_dtype(torch.float32)
    found = {}
    for name in NAMES:
        module, folder = experiment(name), tmp_path_factory.mktemp(name)
        config = module.smoke()
        with pytest.raises(KeyboardInterrupt):
            module.run(config, folder=folder, tell=_interrupt)
        found[name] = module.run(config, folder=folder)
    return found


def _interrupt(stage: str, done: int, total: int, seconds: float, facts: dict[str, float]) -> None:
    if stage == "evaluation" and done == total // 2:
        raise KeyboardInterrupt


def values(rows: list[Row], metric: str, setting: str) -> dict[str, float]:
    return {r.method: r.value for r in rows if (r.metric, r.setting) == (metric, setting)}


# The others go the same way, through `Pieces`, and take longer.
@pytest.mark.parametrize("name", ["curves"])
def test_interrupted_and_resumed_the_rows_are_those_of_one_go(
    name: str, outcomes: dict[str, Outcome]
) -> None:
    module = experiment(name)
    whole = module.run(module.smoke())
    assert whole.rows == outcomes[name].rows


@pytest.mark.parametrize("name", NAMES)
def test_a_report_can_be_made(name: str, outcomes: dict[str, Outcome], tmp_path: Path) -> None:
    outcome = outcomes[name]
    assert {row.experiment for row in outcome.rows} == {name}
    keys = [(row.method, row.setting, row.metric) for row in outcome.rows]
    assert len(set(keys)) == len(keys)
    write_rows(tmp_path / "rows.jsonl", outcome.rows)
    assert read_rows(tmp_path / "rows.jsonl") == outcome.rows
    tables = report(name).tables(outcome.rows)
    assert all(table.rows for table in tables)
    figures = report(name).figures(outcome, tmp_path)
    assert figures
    assert all(figure.path.stat().st_size > 10_000 for figure in figures)


@pytest.mark.parametrize("name", NAMES)
def test_a_config_survives_json_and_impossible_ones_are_refused(name: str) -> None:
    module = experiment(name)
    for preset in module.PRESETS.values():
        config = preset()
        assert config_from_dict(module.Config, json.loads(json.dumps(asdict(config)))) == config
    with pytest.raises(ValueError, match="eval_tasks must be at least 2, got 1"):
        replace(module.smoke(), eval_tasks=1)
    with pytest.raises(ValueError, match="device must be one that works here, got abacus"):
        replace(module.smoke(), device="abacus")
    with pytest.raises(ValueError, match="networks must be a finished run of sinusoid, got no"):
        module.run(replace(module.smoke(), networks="nowhere"))


def test_the_table_has_all_rows_of_the_paper(outcomes: dict[str, Outcome]) -> None:
    module, rows = experiment("regularizers"), outcomes["regularizers"].rows
    assert len(module.PAPER) == 28  # the paper's: none, 20 norms, 5 dropouts, MetaReg, NC
    for step in module.STEPS:
        settings = values(rows, "diverged tasks", f"{step} steps")
        assert set(module.PAPER) <= set(settings)
        some = {method for method, count in settings.items() if count > 0.01 * 128}
        # What diverges has no mean, all others have one.
        assert set(settings) - some == set(values(rows, "test loss", f"{step} steps"))
    assert "dropout (0.9)" in some
    assert not some & {"none", "oracle", "NC posterior (1)", "NC direct (1)", "MetaReg"}
    more = {"oracle", "variational dropout", "early stopping (3 points)"}
    more |= {f"NC {head} ({w:g})" for head in ("posterior", "direct") for w in module.WEIGHTS}
    assert more <= {row.method for row in rows}


def test_nc_is_the_best_of_the_table_at_every_step(outcomes: dict[str, Outcome]) -> None:
    rows = outcomes["regularizers"].rows
    for step in experiment("regularizers").STEPS:
        losses = values(rows, "test loss", f"{step} steps")
        others = [v for m, v in losses.items() if not m.startswith("NC") and m != "oracle"]
        for head in ("posterior", "direct"):
            assert losses[f"NC {head} (1)"] < min(others)
    shares = values(rows, "share of oracle", "16 steps")
    assert shares["NC posterior (1)"] > 0.99


def test_nc_holds_for_other_learners_unless_they_diverge(outcomes: dict[str, Outcome]) -> None:
    rows = outcomes["ood"].rows
    settings = {row.setting for row in rows}
    assert {"activation tanh", "lr 1e-05", "width 5", "layers 4", "steps 16"} <= settings
    for setting in settings - {"lr 0.1", "lr 1.0"}:
        found = find(rows, "NC posterior", setting, "R2, plain learners")
        assert found is not None
        assert found.value > 0.98
    for setting in ("activation tanh", "activation sigmoid", "activation none", "width 20"):
        found = find(rows, "NC direct", setting, "R2, plain learners")
        assert found is not None
        assert found.value > 0.9
    diverged = find(rows, "none", "lr 1.0", "diverged tasks")
    assert diverged is not None
    assert diverged.value > 50  # of 64


def test_reported_steps_are_powers_of_two_and_the_last(outcomes: dict[str, Outcome]) -> None:
    module = experiment("curves")
    assert module.reported_steps(replace(module.smoke(), steps=20)) == [1, 2, 4, 8, 16, 20]
    rows = outcomes["curves"].rows
    losses = values(rows, "test loss", "32 steps")
    assert losses["NC posterior, transductive"] < losses["NC posterior, inductive"]
    assert losses["NC posterior, inductive"] < losses["none"]
    for step in (1, 16, 32):
        gaps = values(rows, "gap", f"{step} steps")
        tests, trains = (values(rows, m, f"{step} steps") for m in ("test loss", "train loss"))
        assert all(gaps[m] == pytest.approx(tests[m] - trains[m], abs=1e-5) for m in gaps)


def test_an_nc_of_sinusoids_harms_other_families_and_the_safeguard_prevents_it(
    outcomes: dict[str, Outcome],
) -> None:
    rows = outcomes["harm"].rows
    for head in ("posterior", "direct"):
        for family in ("step functions", "real tables", "polynomials"):
            change = values(rows, "change", family)
            none = values(rows, "test loss", family)["none"]
            assert change[f"NC {head} of sinusoids, as in the paper"] > 0.2 * none
            safe = find(rows, f"NC {head} of sinusoids, safeguarded", family, "change")
            assert safe is not None
            assert safe.ci95 is not None
            assert safe.value < max(safe.ci95, 0.02 * none)
        for mode in experiment("harm").MODES:
            shares = [
                values(rows, metric, "step functions")[f"NC {head} of sinusoids, {mode}"]
                for metric in ("helped", "unchanged", "hurt")
            ]
            assert sum(shares) == pytest.approx(1)
