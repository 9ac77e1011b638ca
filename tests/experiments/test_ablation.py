import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from neural_complexity.assessment.tables import find
from neural_complexity.experiments import ablation
from neural_complexity.experiments.ablation import (
    ALL,
    INDUCTIVE,
    ONCE,
    OURS,
    PAPER,
    PRESETS,
    VARIANTS,
    Config,
    run,
    smoke,
)
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row, read_rows, write_rows
from neural_complexity.experiments.base.run_folder import config_from_dict
from neural_complexity.experiments.base.without_learner import PROTOTYPES, train_opponent
from neural_complexity.experiments.reports.ablation_report import figures, tables
from neural_complexity.files import write_tensors


@pytest.fixture(autouse=True)
def single_precision() -> None:
    torch.set_default_dtype(torch.float32)  # as users run it


@pytest.fixture(scope="module")
def config(glyph_folder: str) -> Config:
    return replace(smoke(), data=glyph_folder, eval_tasks=8, steps=4)


@pytest.fixture(scope="module")
def outcome(config: Config) -> Outcome:
    torch.set_default_dtype(torch.float32)
    return run(config)


def row_of(rows: list[Row], method: str, setting: str, metric: str) -> Row:
    row = find(rows, method, setting, metric)
    assert row is not None, (method, setting, metric)
    return row


def test_the_papers_components_are_removed_one_after_the_other() -> None:
    before: dict[str, object] = {}
    for name in PAPER:
        changes = VARIANTS[name]
        assert changes.items() >= before.items()
        assert len(changes) - len(before) == (name != "full")
        before = changes
    full = PRESETS["cpu"]().training
    for name in set(VARIANTS) - set(PAPER):
        ((field, _), *more) = VARIANTS[name].items()
        # Rounds are of attention by distance: without the one there cannot be the other.
        assert (field, more) == ("metric", [("rounds", 0)]) or not more
    assert all(
        getattr(full, field) != value
        for changes in VARIANTS.values()
        for field, value in changes.items()
    )


def test_all_that_a_report_needs_is_there(outcome: Outcome, config: Config) -> None:
    rows = outcome.rows
    keys = [(row.method, row.setting, row.metric) for row in rows]
    assert len(set(keys)) == len(keys)
    for method in (*VARIANTS, INDUCTIVE):
        metrics = ["accuracy", "test loss", "diverged tasks"]
        metrics += [] if method == INDUCTIVE else ["R2, unregularized", "R2, regularized"]
        for metric in metrics:
            single = [row_of(rows, method, f"seed {k}", metric) for k in (0, 1)]
            every = row_of(rows, method, ALL, metric)
            assert every.value == pytest.approx(sum(r.value for r in single) / 2)
            assert [r.n for r in (*single, every)] == [config.eval_tasks] * 2 + [2]
            assert [r.seed for r in single] == [0, 1]
    for metric in ("accuracy", "test loss"):
        assert row_of(rows, "no NC", ONCE, metric).n == config.eval_tasks
    assert (
        row_of(rows, "no NC", ONCE, "accuracy").value
        < row_of(rows, "oracle", ONCE, "accuracy").value
    )
    assert {row.method for row in rows} - set(VARIANTS) == {
        INDUCTIVE,
        "no NC",
        "oracle",
        "posterior head",
        "NC posterior, its beliefs (transductive)",
        "NC posterior, its beliefs one image at a time (inductive)",
        "nearest neighbour in where NC compares images (inductive)",
        "nearest neighbour in NC's image embedding (inductive)",
        "nearest neighbour in pixels (inductive)",
        "prototypical network (inductive)",
        "prototypical network, soft k-means (transductive)",
    }


def test_the_papers_accuracies_stand_beside_ours(outcome: Outcome) -> None:
    found = {row.method: row.paper for row in outcome.rows if row.paper is not None}
    assert found == PAPER
    assert {row.setting for row in outcome.rows if row.paper is not None} == {ALL}


def test_every_variant_and_seed_is_another_network(outcome: Outcome) -> None:
    losses = [
        row_of(outcome.rows, method, f"seed {k}", "test loss").value
        for method in VARIANTS
        for k in (0, 1)
    ]
    assert len(set(losses)) == len(losses)


def test_a_report_can_be_made(outcome: Outcome, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", outcome.rows)
    rows = read_rows(tmp_path / "rows.jsonl")
    papers, ours, others = tables(rows)
    assert [(line[0], line[1]) for line in papers.rows] == [
        (n, f"{v:.2f}") for n, v in PAPER.items()
    ]
    assert [line[0] for line in ours.rows] == ["full", *OURS]
    accuracy = row_of(rows, "oracle", ONCE, "accuracy")
    assert ("oracle", f"{accuracy.value:.2f} ± {accuracy.ci95:.2f}") in [r[:2] for r in others.rows]
    drawn = figures(outcome, tmp_path)
    assert all(figure.path.stat().st_size > 10_000 for figure in drawn)


@pytest.fixture
def few(config: Config, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Gives a config of two variants and one seed."""
    kept = {name: VARIANTS[name] for name in ("full", "- bias")}
    monkeypatch.setattr(ablation, "VARIANTS", kept)
    return replace(config, seeds=1)


def rows_in(outcome: Outcome, few: Config) -> list[Row]:
    """Gives the rows that a run of few variants has, too."""
    settings = (ONCE, f"seed {few.seed}")
    odd = set(VARIANTS) - set(ablation.VARIANTS)
    return [row for row in outcome.rows if row.setting in settings and row.method not in odd]


def test_interrupted_and_resumed_the_rows_are_those_of_one_go(
    few: Config, outcome: Outcome, tmp_path: Path
) -> None:
    for moment in (("posterior", 1), ("- bias, seed 0", 1), ("evaluation", 5)):

        def interrupt(
            stage: str,
            done: int,
            total: int,
            seconds: float,
            facts: dict[str, float],
            moment: tuple[str, int] = moment,
        ) -> None:
            if (stage, done) == moment:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(few, folder=tmp_path, tell=interrupt)
    resumed = run(few, folder=tmp_path)
    assert rows_in(resumed, few) == rows_in(outcome, few)
    # Of the trainings only the encoder's is left: the banks of all would fill a disk.
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["posterior"]


@pytest.fixture(scope="module")
def networks(config: Config, outcome: Outcome, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Gives what the ablation takes from a finished run of omniglot."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("networks")
    outcome.networks["posterior"].save(folder / "nc-posterior.safetensors")
    family = config.train_family()
    states = {
        f"{name}/{key}": tensor
        for name, (rounds, _) in PROTOTYPES.items()
        for key, tensor in train_opponent(config, config.encoder, family, rounds).items()
    }
    write_tensors(folder / "figures.safetensors", states, {})
    return str(folder)


def test_with_the_networks_of_a_finished_run_the_rows_are_the_same(
    few: Config, outcome: Outcome, networks: str
) -> None:
    again = run(replace(few, networks=networks))
    assert again.history == {}  # nothing but the variants was trained
    assert set(again.facts["seconds"]) == {
        *("no NC", "oracle", "posterior head", "full, seed 0", "- bias, seed 0")
    }
    assert rows_in(again, few) == rows_in(outcome, few)
    # A single seed has no interval.
    assert {row.ci95 for row in again.rows if row.setting == ALL} == {None}


def test_a_run_without_opponents_is_refused_before_work_begins(
    few: Config, outcome: Outcome, tmp_path: Path
) -> None:
    outcome.networks["posterior"].save(tmp_path / "nc-posterior.safetensors")
    sentence = "networks must be a finished run of omniglot with prototypical network/, got no such"

    def never(stage: str, done: int, total: int, seconds: float, facts: dict[str, float]) -> None:
        pytest.fail("worked in vain")

    for states in ({}, {"another/blocks.0.filters": torch.zeros(1)}):
        write_tensors(tmp_path / "figures.safetensors", states, {})
        with pytest.raises(ValueError, match=sentence):
            run(replace(few, networks=str(tmp_path)), tell=never)


def test_a_folder_without_networks_is_refused(config: Config) -> None:
    with pytest.raises(ValueError, match="networks must be a finished run of omniglot, got no"):
        run(replace(config, networks="nowhere"))


def test_learners_that_diverge_count_as_wrong_and_are_told(few: Config, networks: str) -> None:
    rows = run(replace(few, lr=1e30, networks=networks)).rows
    for method in ("no NC", "posterior head"):
        assert row_of(rows, method, ONCE, "diverged tasks").value == few.eval_tasks
        assert row_of(rows, method, ONCE, "accuracy").value == 0
        assert find(rows, method, ONCE, "test loss") is None
    assert all(table.rows for table in tables(rows))


def test_a_config_survives_json() -> None:
    for preset in PRESETS.values():
        config = preset()
        assert config_from_dict(Config, json.loads(json.dumps(asdict(config)))) == config


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"eval_tasks": 1}, "eval_tasks must be at least 2, got 1"),
        ({"device": "abacus"}, "device must be one that works here, got abacus"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(smoke(), **change)  # type: ignore[arg-type]
