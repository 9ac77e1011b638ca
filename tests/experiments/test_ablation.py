from dataclasses import replace
from pathlib import Path

import pytest
import torch

from neural_complexity.experiments import ablation
from neural_complexity.experiments.ablation import (
    EXPERIMENT,
    INDUCTIVE,
    OURS,
    PAPER,
    VARIANTS,
    Config,
)
from neural_complexity.experiments.base.experiment import Outcome
from neural_complexity.experiments.base.few_shot_images import PROTOTYPICAL
from neural_complexity.experiments.base.rows import Key, Row, find, select
from neural_complexity.files import write_tensors
from neural_complexity.workspace import Workspace, fingerprint
from smoke_runs import SmokeRuns

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def config(glyph_folder: str) -> Config:
    smoke: Config = EXPERIMENT.presets["smoke"]()
    return replace(smoke, data=glyph_folder)


@pytest.fixture(scope="module")
def outcome(smoke_runs: SmokeRuns) -> Outcome:
    return smoke_runs("ablation").outcome


def row_of(rows: list[Row], metric: str, **keys: Key | None) -> Row:
    row = find(rows, metric, **keys)
    assert row is not None, (metric, keys)
    return row


def test_the_papers_components_are_removed_one_after_the_other() -> None:
    before: dict[str, object] = {}
    for name in PAPER:
        changes = VARIANTS[name]
        assert changes.items() >= before.items()
        assert len(changes) - len(before) == (name != "full")
        before = changes
    full = EXPERIMENT.presets["cpu"]().training
    for name in set(VARIANTS) - set(PAPER):
        ((field, _), *more) = VARIANTS[name].items()
        # Rounds are of attention by distance: without the one there cannot be the other.
        assert (field, more) == ("metric", [("rounds", 0)]) or not more
    assert all(
        getattr(full, field) != value
        for changes in VARIANTS.values()
        for field, value in changes.items()
    )


def test_every_variant_has_rows_of_its_seeds_and_over_them(
    outcome: Outcome, config: Config
) -> None:
    rows = outcome.rows
    for method in (*VARIANTS, INDUCTIVE):
        columns: list[tuple[str, str | None]] = [
            (metric, None) for metric in ("accuracy", "test loss", "diverged tasks")
        ]
        if method != INDUCTIVE:
            columns += [("R2", end) for end in ("unregularized", "regularized")]
        for metric, end in columns:
            single, every = (
                [
                    row_of(rows, metric, method=method, evaluated_on=end, training_seed=k)
                    for k in seeds
                ]
                for seeds in ((0, 1), (None,))
            )
            assert every[0].value == pytest.approx(sum(r.value for r in single) / 2)
            assert [r.n for r in (*single, *every)] == [config.eval_tasks] * 2 + [2]
            assert [r.seed for r in single] == [0, 1]
    for metric in ("accuracy", "test loss"):
        assert row_of(rows, metric, method="no NC").n == config.eval_tasks
    plain, best = (row_of(rows, "accuracy", method=name).value for name in ("no NC", "oracle"))
    assert plain < best
    assert len({row.keys["method"] for row in rows} - {*VARIANTS, INDUCTIVE}) == 3 + 7


def test_the_papers_accuracies_stand_beside_ours(outcome: Outcome) -> None:
    found = {row.keys["method"]: row.paper for row in outcome.rows if row.paper is not None}
    assert found == PAPER
    assert not any("training_seed" in row.keys for row in outcome.rows if row.paper is not None)


def test_every_variant_and_seed_is_another_network(outcome: Outcome) -> None:
    losses = [row.value for row in select(outcome.rows, "test loss") if "training_seed" in row.keys]
    assert len(losses) == 2 * (len(VARIANTS) + 1)
    assert len(set(losses)) == len(losses)


def test_the_tables_have_a_line_for_each(outcome: Outcome) -> None:
    papers, ours, others = EXPERIMENT.tables(outcome.rows)
    assert [line[:2] for line in papers.rows] == [(n, f"{v:.2f}") for n, v in PAPER.items()]
    assert [line[0] for line in ours.rows] == ["full", *OURS]
    accuracy = row_of(outcome.rows, "accuracy", method="oracle")
    assert ("oracle", f"{accuracy.value:.2f} ± {accuracy.ci95:.2f}") in [r[:2] for r in others.rows]


@pytest.fixture
def few(config: Config, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Returns a config of two variants and one seed."""
    kept = {name: VARIANTS[name] for name in ("full", "- bias")}
    monkeypatch.setattr(ablation, "VARIANTS", kept)
    return replace(config, seeds=1)


def assert_same_where_both_have_rows(few: list[Row], outcome: Outcome) -> None:
    compared = [row for row in few if row.keys["method"] not in (*PAPER, *OURS)]
    compared += [row for row in few if "training_seed" in row.keys]
    assert len(compared) > 20
    for row in compared:
        keys = {"training_seed": None, "evaluated_on": None, "mode": None} | row.keys
        assert row_of(outcome.rows, row.metric, **keys).value == pytest.approx(row.value, rel=1e-4)


def test_interrupted_trainings_continue_and_leave_no_banks(
    few: Config, outcome: Outcome, tmp_path: Path
) -> None:
    kills = [("posterior", 1), ("training of - bias, seed 0", 1), ("evaluation", 5)]

    def interrupt(
        stage: str, done: int, total: int, seconds: float, metrics: dict[str, float]
    ) -> None:
        if kills and (stage, done) == kills[0]:
            del kills[0]
            raise KeyboardInterrupt

    while kills:
        with pytest.raises(KeyboardInterrupt):
            EXPERIMENT.run(few, Workspace(tmp_path, fingerprint(few)), interrupt)
    resumed = EXPERIMENT.run(few, Workspace(tmp_path, fingerprint(few)))
    assert_same_where_both_have_rows(resumed.rows, outcome)
    # Of the trainings only the encoder's is left: the banks of all would fill a disk.
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["posterior"]


@pytest.fixture(scope="module")
def networks(config: Config, outcome: Outcome, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns a folder with what the ablation takes from a finished run of omniglot."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("networks")
    outcome.networks["posterior"].save(folder / "nc-posterior.safetensors")
    state = config.train_prototypical(config.encoder, config.train_family())
    tensors = {f"{PROTOTYPICAL}/{name}": tensor for name, tensor in state.items()}
    write_tensors(folder / "figures.safetensors", tensors, {})
    return str(folder)


def test_with_the_networks_of_a_finished_run_the_rows_are_the_same(
    few: Config, outcome: Outcome, networks: str
) -> None:
    again = EXPERIMENT.run(replace(few, networks=networks), Workspace(None))
    assert again.history == {}  # nothing but the variants was trained
    assert set(again.facts["seconds"]) == {
        *("no NC", "oracle", "posterior head", "full, seed 0", "- bias, seed 0")
    }
    assert_same_where_both_have_rows(again.rows, outcome)
    # A single seed has no interval.
    means = [row for row in select(again.rows, training_seed=None) if row.keys["method"] == "full"]
    assert {row.ci95 for row in means} == {None}


def test_a_run_without_prototypical_network_is_refused_before_work_begins(
    few: Config, outcome: Outcome, tmp_path: Path
) -> None:
    outcome.networks["posterior"].save(tmp_path / "nc-posterior.safetensors")
    sentence = "networks must be a finished run of omniglot with prototypical network/, got no such"

    def never(stage: str, done: int, total: int, seconds: float, metrics: dict[str, float]) -> None:
        pytest.fail("worked in vain")

    for states in ({}, {"another/blocks.0.filters": torch.zeros(1)}):
        write_tensors(tmp_path / "figures.safetensors", states, {})
        with pytest.raises(ValueError, match=sentence):
            EXPERIMENT.run(replace(few, networks=str(tmp_path)), Workspace(None), never)


def test_a_folder_without_networks_is_refused(config: Config) -> None:
    with pytest.raises(ValueError, match="networks must be a finished run of omniglot, got no"):
        EXPERIMENT.run(replace(config, networks="nowhere"), Workspace(None))


def test_learners_that_diverge_count_as_wrong_and_are_told(few: Config, networks: str) -> None:
    rows = EXPERIMENT.run(replace(few, lr=1e30, networks=networks), Workspace(None)).rows
    for method in ("no NC", "posterior head"):
        assert row_of(rows, "diverged tasks", method=method).value == few.eval_tasks
        assert row_of(rows, "accuracy", method=method).value == 0
        assert find(rows, "test loss", method=method) is None
    assert all(table.rows for table in EXPERIMENT.tables(rows))


def test_impossible_configs_are_refused() -> None:
    with pytest.raises(ValueError, match="seeds must be at least 1, got 0"):
        replace(EXPERIMENT.presets["smoke"](), seeds=0)
