import json
import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from neural_complexity.assessment.tables import find
from neural_complexity.cli import main
from neural_complexity.experiments.base.held_out_tasks import Judge, make_scene
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import read_rows, write_rows
from neural_complexity.experiments.base.run_folder import config_from_dict
from neural_complexity.experiments.base.without_learner import (
    PROTOTYPES,
    train_opponent,
    without_learner,
)
from neural_complexity.experiments.omniglot import (
    KINDS,
    PAPER_ACCURACY,
    PRESETS,
    Config,
    run,
    smoke,
)
from neural_complexity.experiments.reports.omniglot_report import figures, tables
from neural_complexity.files import read_tensors, write_tensors
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


@pytest.fixture(scope="module")
def folder(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gives the folder of a run that was interrupted twice, and has two pieces of work left."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("omniglot")
    for moment in (("direct", 1), ("evaluation", 12)):

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
            run(config, folder=folder, tell=interrupt)
    return folder


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
        "NC posterior, its beliefs (transductive)",
        "NC posterior, its beliefs one image at a time (inductive)",
        "nearest neighbour in where NC compares images (inductive)",
        "nearest neighbour in NC's image embedding (inductive)",
        "nearest neighbour in pixels (inductive)",
        "prototypical network (inductive)",
        "prototypical network, soft k-means (transductive)",
    }
    assert set(outcome.networks) == {"posterior", "direct"}


def test_the_papers_accuracy_stands_beside_its_own_method_and_learners(outcome: Outcome) -> None:
    (row,) = (row for row in outcome.rows if row.paper is not None)
    assert (row.method, row.setting) == ("NC direct, transductive", "MLP learner")
    assert row.paper == PAPER_ACCURACY


def test_heads_share_what_they_know_of_images_if_asked_to(outcome: Outcome, config: Config) -> None:
    X = make_scene(config).task.X_tr
    quick = {"iterations": 1, "updates": 1, "validation_tasks": 2}
    alone = replace(
        config,
        share_images=False,
        eval_tasks=2,
        steps=1,
        posterior=replace(config.posterior, **quick),  # type: ignore[arg-type]
        direct=replace(config.direct, **quick),  # type: ignore[arg-type]
    )
    for networks, shared in ((outcome.networks, True), (run(alone).networks, False)):
        E = {head: nc.embed(X) for head, nc in networks.items()}
        places = {head: nc.head.network.place(E["posterior"]) for head, nc in networks.items()}
        assert torch.equal(E["posterior"], E["direct"]) == shared
        assert torch.allclose(places["posterior"], places["direct"], atol=1e-5) == shared


def test_opponents_can_be_made_again_from_what_a_run_leaves(
    outcome: Outcome, config: Config
) -> None:
    states = {
        name: {
            key.removeprefix(f"{name}/"): tensor
            for key, tensor in outcome.tensors.items()
            if key.startswith(f"{name}/")
        }
        for name in PROTOTYPES
    }
    found = without_learner(
        config, Judge(outcome.networks["posterior"], make_scene(config)), states
    )
    rows = {row.method: row.value for row in outcome.rows if row.setting == "no learner"}
    assert {name: 100 * right.mean().item() for name, right in found.items()} == pytest.approx(rows)
    name, (rounds, _) = next(iter(PROTOTYPES.items()))
    again = train_opponent(config, config.posterior, config.train_family(), rounds)
    assert all(torch.equal(again[key], tensor) for key, tensor in states[name].items())


def test_one_image_at_a_time_no_other_test_image_counts(outcome: Outcome, config: Config) -> None:
    nc, scene = outcome.networks["posterior"], make_scene(replace(config, eval_tasks=3))
    judge, task = Judge(nc, scene), scene.task
    lonely = judge.lonely_beliefs()
    assert not torch.allclose(lonely, judge.beliefs(), atol=1e-3)
    for n in range(task.X_te.shape[1]):
        alone = nc.belief(task.X_tr, task.Y_tr, task.X_te[:, n : n + 1], classes=config.ways)
        torch.testing.assert_close(lonely[:, n], alone.prediction[:, 0], atol=1e-4, rtol=1e-4)


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


def test_interrupted_and_resumed_the_rows_are_those_of_one_go(
    config: Config, outcome: Outcome, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
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


def test_diverged_learners_are_left_out_of_all_methods_and_counted(
    config: Config, outcome: Outcome, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    diverged = {"MLP": {"none": [3], "oracle": [3, 5]}, "CNN": {"NC direct, transductive": [0]}}
    for path in tmp_path.glob("*.safetensors"):
        tensors, header = read_tensors(path)
        for kind, methods in diverged.items():
            for method, tasks in methods.items():
                gaps = outcome.tensors[f"{kind}/{method}/gap"]
                if torch.equal(tensors.get("gap", torch.empty(0)), gaps):
                    tensors["loss_te"][-1, tasks] = math.inf
                    tensors["gap"][-1, tasks] = math.nan
                    write_tensors(path, tensors, header)
    rows = run(config, folder=tmp_path).rows
    assert all(math.isfinite(row.value) for row in rows)
    for kind, count in (("MLP", 2), ("CNN", 1)):
        found = find(rows, "all", f"{kind} learner", "diverged tasks")
        assert found is not None
        assert found.value == count
        kept = {r.n for r in rows if r.setting == f"{kind} learner" and r.metric == "accuracy"}
        assert kept == {config.eval_tasks - count}
    before = outcome.tensors["MLP/NC posterior, inductive/accuracy"][-1]
    others = before[[b for b in range(config.eval_tasks) if b not in (3, 5)]]
    accuracy = find(rows, "NC posterior, inductive", "MLP learner", "accuracy")
    assert accuracy is not None
    assert accuracy.value == pytest.approx(100 * others.mean().item())


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
