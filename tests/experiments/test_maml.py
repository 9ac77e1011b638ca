from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from neural_complexity.experiments.base.experiment import Outcome
from neural_complexity.experiments.base.rows import Key, find
from neural_complexity.experiments.base.run_folder import load_networks
from neural_complexity.experiments.base.training import Setup, train_network
from neural_complexity.experiments.maml import EXPERIMENT, Config, Initialisation
from neural_complexity.learners.fit import Recipe
from neural_complexity.learners.networks import mlp
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.workspace import Workspace, fingerprint
from smoke_runs import SmokeRuns

STEPS = (1, 2, 4, 8, 16)
HEADS = ("posterior", "direct")
METHODS: dict[str, dict[str, Key]] = {
    f"{start}{name}": {"start": start, **keys}
    for start in ("random", "MAML")
    for name, keys in (
        ("", {"method": "none"}),
        *((f" + NC {head}", {"method": "NC", "head": head}) for head in HEADS),
        (" + oracle", {"method": "oracle"}),
    )
}


@pytest.fixture
def outcome(smoke_runs: SmokeRuns) -> Outcome:
    return smoke_runs("maml").outcome


def tiny() -> Config:
    config: Config = EXPERIMENT.presets["smoke"]()
    short = replace(config.posterior, iterations=2, tasks=8, updates=2, batch=16, width=8)
    start = replace(config.maml, iterations=5, tasks=8, steps=2)
    return replace(config, fresh=True, eval_tasks=16, maml=start, posterior=short, direct=short)


def value(outcome: Outcome, metric: str, **keys: Key) -> float:
    row = find(outcome.rows, metric, **keys)
    assert row is not None
    return row.value


def test_all_numbers_are_there(outcome: Outcome) -> None:
    for keys in METHODS.values():
        for step in STEPS:
            for metric in ("test loss", "train loss"):
                assert value(outcome, metric, **keys, step=step) > 0
        if keys["method"] == "NC":
            assert value(outcome, "share of oracle", **keys, step=16) < 1.01
            for learners in ("plain", "regularized"):
                assert value(outcome, "R2", **keys, learners=learners) <= 1
    assert {row.n for row in outcome.rows} == {128}
    assert set(outcome.networks) == set(HEADS)
    assert set(outcome.history) == {"MAML", *HEADS}
    assert set(outcome.facts["seconds"]) == set(METHODS)


def test_the_order_of_the_curves_is_the_papers_and_the_oracle_is_the_best(
    outcome: Outcome,
) -> None:
    for step in STEPS:
        losses = {m: value(outcome, "test loss", **k, step=step) for m, k in METHODS.items()}
        for head in HEADS:
            curves = ("random", f"random + NC {head}", "MAML", f"MAML + NC {head}")
            ordered = [losses[m] for m in curves]
            assert ordered == sorted(ordered, reverse=True)
            for start in ("random", "MAML"):
                # The posterior head is as good as the oracle, up to chance.
                assert losses[f"{start} + oracle"] < losses[f"{start} + NC {head}"] + 0.005


# From this very run when the test was written; a change belongs in the changelog.
REFERENCE = {
    "random": 4.139,
    "random + NC posterior": 2.709,
    "MAML": 1.478,
    "MAML + NC posterior": 0.554,
    "MAML + NC direct": 0.667,
    "MAML + oracle": 0.549,
}


def test_the_smoke_run_reproduces_its_stored_values(outcome: Outcome) -> None:
    measured = {m: value(outcome, "test loss", **METHODS[m], step=16) for m in REFERENCE}
    # Single precision drifts with the processor.
    assert measured == pytest.approx(REFERENCE, rel=2e-2)


def test_the_curves_begin_where_learners_do(outcome: Outcome) -> None:
    starts: dict[Key, set[float]] = {"random": set(), "MAML": set()}
    for method, keys in METHODS.items():
        curve = outcome.tensors[f"loss_te/{method}"]
        starts[keys["start"]].add(curve[0].item())
        for step in STEPS:
            loss = value(outcome, "test loss", **keys, step=step)
            assert curve[step].item() == pytest.approx(loss, rel=1e-5)
    assert len(starts["random"]) == len(starts["MAML"]) == 1


def test_tables_are_full(outcome: Outcome) -> None:
    losses, train, fits = EXPERIMENT.tables(outcome.rows)
    assert [row[0] for row in losses.rows] == [row[0] for row in train.rows] == list(METHODS)
    assert "" not in losses.rows[1]
    assert len(fits.rows) == 4
    assert all(cell for row in fits.rows for cell in row)


@pytest.mark.parametrize("when", [("MAML", 3), ("direct", 2), ("evaluation", 5)])
def test_interrupted_and_resumed_gives_equal_rows(
    when: tuple[str, int], whole: Outcome, tmp_path: Path
) -> None:
    torch.set_default_dtype(torch.float32)

    def kill(stage: str, done: int, total: int, seconds: float, _: dict[str, float]) -> None:
        if (stage, done) == when:
            raise KeyboardInterrupt

    workspace = partial(Workspace, tmp_path, fingerprint(tiny()))
    with pytest.raises(KeyboardInterrupt):
        EXPERIMENT.run(tiny(), workspace(), kill)
    resumed = EXPERIMENT.run(tiny(), workspace())
    assert resumed.rows == whole.rows
    for name, tensor in whole.tensors.items():
        assert torch.equal(resumed.tensors[name], tensor)


@pytest.fixture(scope="module")
def whole() -> Outcome:
    torch.set_default_dtype(torch.float32)
    return EXPERIMENT.run(tiny(), Workspace(None))


def test_diverged_learners_are_left_out_of_all_methods_and_counted() -> None:
    torch.set_default_dtype(torch.float32)
    config = replace(tiny(), lr=0.3, steps=12, eval_tasks=64, maml=replace(tiny().maml, steps=1))
    rows = EXPERIMENT.run(config, Workspace(None)).rows
    (diverged,) = (row for row in rows if row.metric == "diverged tasks")
    assert 0 < diverged.value < 63
    assert {row.n for row in rows if row.metric != "diverged tasks"} == {64 - diverged.value}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"lr": -1.0}, "lr must be positive, got -1.0"),
        ({"learner_layers": -1}, "learner_layers must be at least 0, got -1"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Config(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"lr": float("nan")}, "lr must be positive, got nan"),
        ({"warmup": 1.0}, "warmup must be from 0 to below 1, got 1.0"),
    ],
)
def test_impossible_initialisations_are_refused(change: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Initialisation(**change)  # type: ignore[arg-type]


def test_an_nc_goes_on_from_a_trained_one_and_leaves_it_alone() -> None:
    torch.set_default_dtype(torch.float32)
    start = load_networks("", "cpu")["posterior"]
    before = {name: t.clone() for name, t in start.state_dict().items()}
    # At so small a learning rate the trained one is still recognized in the result.
    training = replace(EXPERIMENT.presets["smoke"]().posterior, lr=1e-8, iterations=1)
    recipe = Recipe(make=partial(mlp, 1, (8,), 1), steps=2)
    setup = Setup(family=Sinusoids(), recipe=recipe, seed=0, device="cpu", start=start)
    train = partial(train_network, setup=setup, work=Workspace(None), validate=lambda _: 0.0)
    nc, _ = train(training, "posterior")
    for name, tensor in nc.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=1e-6)
        assert torch.equal(start.state_dict()[name], before[name])
    assert not torch.equal(next(nc.parameters()), next(start.parameters()))
    with pytest.raises(ValueError, match="the NC to start from must have the architecture of its"):
        train(replace(training, width=16), "posterior")
