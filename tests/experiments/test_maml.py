import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from neural_complexity.experiments.base.networks import load_networks
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.run_folder import config_from_dict
from neural_complexity.experiments.base.training import train_nc
from neural_complexity.experiments.maml import PRESETS, Config, Initialisation, run, smoke
from neural_complexity.experiments.reports.maml_report import figures, tables
from neural_complexity.learners.networks import mlp
from neural_complexity.learners.recipe import Recipe
from neural_complexity.tasks.sinusoids import Sinusoids

STEPS = (1, 2, 4, 8, 16)
METHODS = [
    f"{start}{aid}"
    for start in ("random", "MAML")
    for aid in ("", " + NC posterior", " + NC direct", " + oracle")
]


class KilledError(Exception):
    pass


def tiny() -> Config:
    config = smoke()
    short = replace(config.posterior, iterations=2, tasks=8, updates=2, batch=16, width=8)
    start = replace(config.maml, iterations=5, tasks=8, steps=2)
    return replace(config, fresh=True, eval_tasks=16, maml=start, posterior=short, direct=short)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    torch.set_default_dtype(torch.float32)  # as users run it
    return run(smoke())


def value(outcome: Outcome, method: str, setting: str, metric: str) -> float:
    (row,) = (
        r for r in outcome.rows if (r.method, r.setting, r.metric) == (method, setting, metric)
    )
    return row.value


def test_all_that_a_report_needs_is_there(outcome: Outcome) -> None:
    for method in METHODS:
        for step in STEPS:
            for metric in ("test loss", "train loss"):
                assert value(outcome, method, f"{step} steps", metric) > 0
    for start in ("random", "MAML"):
        for head in ("posterior", "direct"):
            assert value(outcome, f"{start} + NC {head}", "16 steps", "share of oracle") < 1.01
            for kind in ("unregularized", "regularized"):
                assert value(outcome, f"NC {head}", f"{start}, {kind} endpoints", "R2") <= 1
    assert {row.n for row in outcome.rows} == {128}
    assert set(outcome.networks) == {"posterior", "direct"}
    assert set(outcome.history) == {"MAML", "posterior", "direct"}
    assert set(outcome.facts["seconds"]) == set(METHODS)


def test_the_order_of_the_curves_is_the_papers_and_the_oracle_is_the_best(
    outcome: Outcome,
) -> None:
    for step in STEPS:
        losses = {m: value(outcome, m, f"{step} steps", "test loss") for m in METHODS}
        for head in ("posterior", "direct"):
            curves = ("random", f"random + NC {head}", "MAML", f"MAML + NC {head}")
            ordered = [losses[m] for m in curves]
            assert ordered == sorted(ordered, reverse=True)
            for start in ("random", "MAML"):
                # The posterior head is as good as the oracle, up to chance.
                assert losses[f"{start} + oracle"] < losses[f"{start} + NC {head}"] + 0.005


# From this very run when the test was written; a change belongs in the changelog.
REFERENCE = {
    ("random", "16 steps", "test loss"): 4.139,
    ("random + NC posterior", "16 steps", "test loss"): 2.709,
    ("MAML", "16 steps", "test loss"): 1.478,
    ("MAML + NC posterior", "16 steps", "test loss"): 0.554,
    ("MAML + NC direct", "16 steps", "test loss"): 0.667,
    ("MAML + oracle", "16 steps", "test loss"): 0.549,
}


def test_the_smoke_run_reproduces_its_stored_values(outcome: Outcome) -> None:
    measured = {key: value(outcome, *key) for key in REFERENCE}
    assert measured == pytest.approx(
        REFERENCE, rel=2e-2
    )  # single precision drifts with the processor


def test_the_curves_begin_where_learners_do(outcome: Outcome) -> None:
    starts = {
        start: {outcome.tensors[f"loss_te/{m}"][0].item() for m in METHODS if m.startswith(start)}
        for start in ("random", "MAML")
    }
    assert len(starts["random"]) == len(starts["MAML"]) == 1
    for method in METHODS:
        curve = outcome.tensors[f"loss_te/{method}"]
        for step in STEPS:
            loss = value(outcome, method, f"{step} steps", "test loss")
            assert curve[step].item() == pytest.approx(loss, rel=1e-5)


def test_tables_and_figures_can_be_made(outcome: Outcome, tmp_path: Path) -> None:
    losses, train, fits = tables(outcome.rows)
    assert [row[0] for row in losses.rows] == [row[0] for row in train.rows] == METHODS
    assert "" not in losses.rows[1]
    assert len(fits.rows) == 4
    assert all(cell for row in fits.rows for cell in row)
    (figure,) = figures(outcome, tmp_path)
    assert figure.path.is_file()


@pytest.mark.parametrize("moment", [("MAML", 3), ("direct", 2), ("evaluation", 5)])
def test_interrupted_and_resumed_gives_equal_rows(
    moment: tuple[str, int], whole: Outcome, tmp_path: Path
) -> None:
    torch.set_default_dtype(torch.float32)

    def die(stage: str, done: int, total: int, seconds: float, facts: dict[str, float]) -> None:
        if (stage, done) == moment:
            raise KilledError

    with pytest.raises(KilledError):
        run(tiny(), folder=tmp_path, tell=die)
    resumed = run(tiny(), folder=tmp_path)
    assert resumed.rows == whole.rows
    for name, tensor in whole.tensors.items():
        assert torch.equal(resumed.tensors[name], tensor)


@pytest.fixture(scope="module")
def whole() -> Outcome:
    torch.set_default_dtype(torch.float32)
    return run(tiny())


def test_diverged_learners_are_left_out_of_all_methods_and_counted() -> None:
    torch.set_default_dtype(torch.float32)
    config = replace(tiny(), lr=0.3, steps=12, eval_tasks=64, maml=replace(tiny().maml, steps=1))
    rows = run(config).rows
    (diverged,) = (row for row in rows if row.metric == "diverged tasks")
    assert 0 < diverged.value < 63
    assert {row.n for row in rows if row.metric != "diverged tasks"} == {64 - diverged.value}


def test_a_config_survives_json() -> None:
    for preset in PRESETS.values():
        config = preset()
        assert config_from_dict(Config, json.loads(json.dumps(asdict(config)))) == config


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"eval_tasks": 1}, "eval_tasks must be at least 2, got 1"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"lr": -1.0}, "lr must be positive, got -1.0"),
        ({"learner_layers": -1}, "learner_layers must not be negative, got -1"),
        ({"device": "abacus"}, "device must be one that works here, got abacus"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(smoke(), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"lr": float("nan")}, "lr must be positive, got nan"),
        ({"warmup": 1.0}, "warmup must be from 0 to below 1, got 1.0"),
    ],
)
def test_impossible_initialisations_are_refused(change: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Initialisation(**change)  # type: ignore[arg-type]


def test_networks_must_be_a_finished_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="networks must be a finished run of sinusoid, got no"):
        run(replace(tiny(), networks=str(tmp_path)))


def test_an_nc_goes_on_from_a_trained_one_and_leaves_it_alone() -> None:
    torch.set_default_dtype(torch.float32)
    start = load_networks("", "cpu")["posterior"]
    before = {name: t.clone() for name, t in start.state_dict().items()}
    # At so small a learning rate the trained one is still recognized in the result.
    training = replace(smoke().posterior, lr=1e-8, iterations=1)
    recipe = Recipe(make=partial(mlp, 1, (8,), 1), steps=2)
    options = {"seed": 0, "device": "cpu", "validate": lambda _: 0.0, "start": start}
    nc, _ = train_nc(training, "posterior", Sinusoids(), recipe, **options)  # type: ignore[arg-type]
    for name, tensor in nc.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=1e-6)
        assert torch.equal(start.state_dict()[name], before[name])
    assert not torch.equal(next(nc.parameters()), next(start.parameters()))
    with pytest.raises(ValueError, match="the NC to start from must have the architecture of its"):
        train_nc(replace(training, width=16), "posterior", Sinusoids(), recipe, **options)  # type: ignore[arg-type]
