import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from neural_complexity.cli import main
from neural_complexity.experiments.folder import config_from_dict
from neural_complexity.experiments.omniglot import (
    KINDS,
    PAPER_ACCURACY,
    PRESETS,
    Config,
    Judge,
    make_scene,
    run,
    smoke,
)
from neural_complexity.experiments.outcome import Outcome
from neural_complexity.experiments.rows import read_rows, write_rows
from neural_complexity.report.omniglot import figures, tables
from neural_complexity.report.tables import find
from neural_complexity.snapshot import Snapshot
from neural_complexity.tasks import datasets


@pytest.fixture(autouse=True)
def single_precision() -> None:
    torch.set_default_dtype(torch.float32)  # as users run it


@pytest.fixture(scope="module")
def config(glyph_folder: str) -> Config:
    return replace(smoke(), data=glyph_folder)


@pytest.fixture(scope="module")
def outcome(config: Config) -> Outcome:
    torch.set_default_dtype(torch.float32)
    return run(config)


def test_all_that_a_report_needs_is_there(outcome: Outcome, config: Config) -> None:
    keys = [(row.method, row.setting, row.metric) for row in outcome.rows]
    assert len(set(keys)) == len(keys)
    modes = [f"NC {h}, {m}" for h in ("posterior", "direct") for m in ("trans", "in")]
    methods = ["none", *(f"{mode}ductive" for mode in modes), "oracle"]
    for kind in KINDS:
        diverged = find(outcome.rows, "all", f"{kind} learner", "diverged tasks")
        assert diverged is not None
        assert diverged.value == 0
        for metric in ("accuracy", "test loss", "train loss"):
            assert all(find(outcome.rows, m, f"{kind} learner", metric) for m in methods)
        for head in ("posterior", "direct"):
            for setting in ("unregularized endpoints", "regularized endpoints"):
                for metric in ("R2", "correlation", "MAE"):
                    row = find(outcome.rows, f"NC {head}", f"{kind}, {setting}", metric)
                    assert row is not None
                    assert row.n == config.eval_tasks
    assert {r.method for r in outcome.rows if r.setting == "no learner"} == {
        "NC posterior, its beliefs",
        "nearest neighbour in NC posterior's embedding",
        "nearest neighbour in pixels",
        "prototypical network",
        "prototypical network, soft k-means",
    }
    assert set(outcome.networks) == {"posterior", "direct"}


def test_the_papers_accuracy_stands_beside_its_own_method_and_learners(outcome: Outcome) -> None:
    (row,) = (row for row in outcome.rows if row.paper is not None)
    assert (row.method, row.setting) == ("NC direct, transductive", "MLP learner")
    assert row.paper == PAPER_ACCURACY


def test_without_a_shared_image_encoder_each_head_has_its_own_embedding(config: Config) -> None:
    apart = run(replace(config, share_images=False, eval_tasks=4))
    methods = {row.method for row in apart.rows if row.setting == "no learner"}
    assert {f"nearest neighbour in NC {h}'s embedding" for h in ("posterior", "direct")} < methods


def test_a_report_can_be_made(outcome: Outcome, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", outcome.rows)
    rows = read_rows(tmp_path / "rows.jsonl")
    made = tables(rows)
    assert all(table.rows for table in made)
    row = find(rows, "none", "CNN learner", "accuracy")
    assert row is not None
    assert any(f"{row.value:.2f} ± {row.ci95:.2f}" in line for line in made[1].rows)
    drawn = figures(outcome, tmp_path)
    assert all(figure.path.stat().st_size > 10_000 for figure in drawn)


@pytest.mark.parametrize("moment", [("direct", 1), ("evaluation", 6)])
def test_interrupted_and_resumed_the_rows_are_those_of_one_go(
    config: Config, outcome: Outcome, tmp_path: Path, moment: tuple[str, int]
) -> None:
    def interrupt(
        stage: str, done: int, total: int, seconds: float, facts: dict[str, float]
    ) -> None:
        if (stage, done) == moment:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, folder=tmp_path, tell=interrupt)
    assert run(config, folder=tmp_path).rows == outcome.rows


def test_embedding_images_once_changes_no_prediction(outcome: Outcome, config: Config) -> None:
    scene = make_scene(config)
    task, C = scene.task, config.ways
    generator = torch.Generator().manual_seed(0)
    H_tr, H_te = (torch.randn(*Y.shape, C, generator=generator) for Y in (task.Y_tr, task.Y_te))
    snapshot = Snapshot(task.X_tr, task.Y_tr, H_tr, task.X_te, H_te)
    for nc in outcome.networks.values():
        rows = slice(3, 9)
        judged = Judge(nc, scene).gaps(rows, snapshot[rows])
        torch.testing.assert_close(judged, nc.predict(*snapshot.tensors())[rows])


def test_the_unlabelled_images_are_not_the_test_images(config: Config) -> None:
    scene = make_scene(config)
    assert scene.X_unlabelled.shape == scene.task.X_te.shape
    test, other = (X.flatten(2) for X in (scene.task.X_te, scene.X_unlabelled))
    assert (torch.cdist(test, other) > 0).all()


def test_diverged_learners_are_left_out_of_all_methods_and_counted(config: Config) -> None:
    rows = run(replace(config, lr=1e7)).rows
    assert all(math.isfinite(row.value) for row in rows)
    for kind in KINDS:
        diverged = find(rows, "all", f"{kind} learner", "diverged tasks")
        assert diverged is not None
        assert 0 < diverged.value < config.eval_tasks - 1
        kept = {r.n for r in rows if r.setting == f"{kind} learner" and r.metric == "accuracy"}
        assert kept == {config.eval_tasks - diverged.value}


def test_when_all_learners_diverge_the_run_says_so(config: Config) -> None:
    with pytest.raises(FloatingPointError, match="learners must not all diverge, got 0"):
        run(replace(config, lr=1e30))


def test_a_config_survives_json() -> None:
    for preset in PRESETS.values():
        config = preset()
        assert config_from_dict(Config, json.loads(json.dumps(asdict(config)))) == config


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"eval_tasks": 1}, "eval_tasks must be at least 2, got 1"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"ways": 0}, "ways must be at least 1, got 0"),
        ({"lr": -1.0}, "lr must be positive, got -1.0"),
        ({"device": "abacus"}, "device must be one that works here, got abacus"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(smoke(), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["omniglot", "ablation"])
def test_without_data_the_command_says_where_to_put_it(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(url: str, path: Path, checksum: str) -> None:
        raise OSError("no network")

    monkeypatch.setattr(datasets, "_download", fail)
    data, out = tmp_path / "data", tmp_path / "run"
    line = ["run", name, "--preset", "smoke", "--data", str(data), "--out", str(out)]
    assert main(line) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith(f"error: images_background.zip must be put into {data / 'omniglot'}")
    assert "no network" in message
