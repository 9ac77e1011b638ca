import json
from dataclasses import asdict, replace

import pytest
import torch

from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.run_folder import config_from_dict
from neural_complexity.experiments.base.training import Training
from neural_complexity.experiments.sinusoid import PRESETS, Config, run, smoke


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
    found = {(row.method, row.metric) for row in outcome.rows}
    for head in ("posterior", "direct"):
        for metric in ("R2", "correlation", "MAE"):
            assert (f"NC {head}", metric) in found
        for mode in ("transductive", "inductive"):
            for metric in ("test loss", "train loss", "share of oracle"):
                assert (f"NC {head}, {mode}", metric) in found
    for method in ("none", "oracle", "NC posterior, its beliefs"):
        assert (method, "test loss") in found
    assert {row.setting for row in outcome.rows if row.method == "oracle"} == {
        f"{step} steps" for step in (1, 2, 4, 8, 16)
    }
    assert {row.n for row in outcome.rows} == {256}
    assert value(outcome, "all", "16 steps", "diverged tasks") == 0


def test_the_oracle_is_the_best_and_learning_alone_is_not(outcome: Outcome) -> None:
    for step in (1, 2, 4, 8, 16):
        losses = {
            r.method: r.value
            for r in outcome.rows
            if r.metric == "test loss" and r.setting == f"{step} steps"
        }
        assert min(losses, key=losses.__getitem__) == "oracle"


# From this very run when the test was written; a change belongs in the changelog.
REFERENCE = {
    ("none", "16 steps", "test loss"): 4.035,
    ("oracle", "16 steps", "test loss"): 2.6452,
    ("NC posterior, transductive", "16 steps", "test loss"): 3.8305,
    ("NC posterior, its beliefs", "no learner", "test loss"): 3.1938,
    ("NC posterior", "unregularized endpoints", "correlation"): 0.5419,
    ("NC direct", "unregularized endpoints", "MAE"): 2.1671,
}


def test_the_smoke_run_reproduces_its_stored_values(outcome: Outcome) -> None:
    measured = {key: value(outcome, *key) for key in REFERENCE}
    assert measured == pytest.approx(
        REFERENCE, rel=2e-2
    )  # single precision drifts with the processor


def test_a_config_survives_json() -> None:
    for preset in PRESETS.values():
        config = preset()
        assert config_from_dict(Config, json.loads(json.dumps(asdict(config)))) == config


def test_a_config_of_another_version_is_refused() -> None:
    values = asdict(smoke())
    values["posterior"]["depth"] = 3
    with pytest.raises(ValueError, match=r"a config must have the fields of Training.*\(depth\)"):
        config_from_dict(Config, values)


def test_the_defaults_are_the_papers() -> None:
    training = PRESETS["paper"]().direct
    assert (training.encoder_layers, training.width, training.decoder_layers) == (3, 1024, 3)
    assert (training.batch, training.lr, training.supervision) == (512, 0.0005, "set")
    assert (training.pool_first, training.scale_by_width) == (True, True)
    assert (training.warmup, training.decay, training.spread_weights) == (0.0, False, False)


def test_diverged_learners_are_left_out_of_all_methods_and_counted() -> None:
    torch.set_default_dtype(torch.float32)
    config = smoke()
    short = replace(config.posterior, iterations=2, tasks=16)
    config = replace(config, lr=0.6, steps=12, eval_tasks=64, posterior=short, direct=short)
    rows = run(config).rows
    (diverged,) = (row for row in rows if row.metric == "diverged tasks")
    assert 0 < diverged.value < 63
    assert {row.n for row in rows if row.metric != "diverged tasks"} == {64 - diverged.value}


def test_when_all_learners_diverge_the_run_says_so() -> None:
    torch.set_default_dtype(torch.float32)
    short = replace(smoke().posterior, iterations=1, tasks=16)
    config = replace(smoke(), lr=1e6, eval_tasks=16, posterior=short, direct=short)
    with pytest.raises(
        FloatingPointError, match="learners must not all diverge, got 0 that did not"
    ):
        run(config)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"eval_tasks": 1}, "eval_tasks must be at least 2, got 1"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"lr": -1.0}, "lr must be positive, got -1.0"),
        ({"learner_layers": -1}, "learner_layers must not be negative"),
        ({"device": "abacus"}, "device must be one that works here, got abacus"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(smoke(), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"capacity": 0}, "capacity must be at least 1, got 0"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"lr": float("inf")}, "lr must be positive"),
        ({"encoder_layers": 0}, "encoder_layers must be at least 1, got 0"),
        ({"decoder_layers": 0}, "decoder_layers must be at least 1, got 0"),
        ({"warmup": 1.0}, "warmup must be from 0 to below 1, got 1.0"),
        ({"belief_weight": -1.0}, "belief_weight must not be negative"),
        ({"width": 30}, "width must be a multiple of heads, got width=30, heads=8"),
    ],
)
def test_impossible_trainings_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Training(**change)  # type: ignore[arg-type]
