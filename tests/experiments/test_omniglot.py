import math
from dataclasses import replace
from pathlib import Path

import pooch
import pytest
import torch

from neural_complexity.cli import main
from neural_complexity.experiments import omniglot
from neural_complexity.experiments.base import few_shot_images as few_shot
from neural_complexity.experiments.base.comparison import SCORES
from neural_complexity.experiments.base.experiment import Outcome
from neural_complexity.experiments.base.few_shot_images import (
    PROTOTYPICAL,
    EmbeddedTasks,
    draw_held_out_tasks,
    without_learner,
)
from neural_complexity.experiments.base.rows import distinct, find, select
from neural_complexity.experiments.omniglot import EXPERIMENT, LEARNERS, Config
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.workspace import Workspace, fingerprint
from smoke_runs import SmokeRuns

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def config(glyph_folder: str) -> Config:
    smoke: Config = EXPERIMENT.presets["smoke"]()
    return replace(smoke, data=glyph_folder)


@pytest.fixture(scope="module")
def outcome(smoke_runs: SmokeRuns) -> Outcome:
    return smoke_runs("omniglot").outcome


def test_every_learner_and_method_has_its_rows(outcome: Outcome, config: Config) -> None:
    for learner in LEARNERS:
        rows = select(outcome.rows, learner=learner)
        diverged = find(rows, "diverged tasks")
        assert diverged is not None
        assert diverged.value == 0
        for metric in ("accuracy", "test loss", "train loss"):
            assert len(select(rows, metric, evaluated_on=None)) == 6
        for head in ("posterior", "direct"):
            for end in omniglot.ENDS:
                for metric in SCORES:
                    row = find(rows, metric, head=head, evaluated_on=end)
                    assert row is not None
                    assert row.n == config.eval_tasks
    assert len(distinct(select(outcome.rows, learner=None), "method", "mode")) == 7
    assert set(outcome.networks) == {"posterior", "direct"}


def test_the_shipped_nc_stands_beside_a_direct_head_that_learns_by_itself(config: Config) -> None:
    quick = {"iterations": 1, "updates": 1, "validation_tasks": 2}
    direct = replace(config.direct, **quick)  # type: ignore[arg-type]
    own = replace(config, shipped=True, share_images=False, eval_tasks=2, steps=1, direct=direct)
    found = omniglot.run(own, Workspace(None))
    assert set(found.history) == {"direct"}
    shipped = NeuralComplexity.pretrained("omniglot")
    for a, b in zip(found.networks["posterior"].parameters(), shipped.parameters(), strict=True):
        assert torch.equal(a, b)
    methods = {row.keys["method"] for row in select(found.rows, learner=None)}
    assert len(methods) == 5
    assert not any(PROTOTYPICAL in str(method) for method in methods)
    assert EXPERIMENT.tables(found.rows)


def test_the_papers_accuracy_stands_beside_its_own_method_and_learners(outcome: Outcome) -> None:
    (row,) = (row for row in outcome.rows if row.paper is not None)
    papers = {"learner": "MLP", "method": "NC", "head": "direct", "mode": "transductive"}
    assert (row.keys, row.metric) == (papers, "accuracy")
    assert row.paper == few_shot.PAPER_ACCURACY


def test_heads_share_what_they_know_of_images_if_asked_to(outcome: Outcome, config: Config) -> None:
    X = draw_held_out_tasks(config)[0].X_tr
    quick = {"iterations": 1, "updates": 1, "validation_tasks": 2}
    alone = replace(
        config,
        share_images=False,
        eval_tasks=2,
        steps=1,
        posterior=replace(config.posterior, **quick),  # type: ignore[arg-type]
        direct=replace(config.direct, **quick),  # type: ignore[arg-type]
    )
    for networks, shared in (
        (outcome.networks, True),
        (EXPERIMENT.run(alone, Workspace(None)).networks, False),
    ):
        E = {head: nc.embed(X) for head, nc in networks.items()}
        places = {head: nc.head.network.place(E["posterior"]) for head, nc in networks.items()}
        assert torch.equal(E["posterior"], E["direct"]) == shared
        assert torch.allclose(places["posterior"], places["direct"], atol=1e-5) == shared


def test_the_prototypical_network_can_be_made_again_from_what_a_run_leaves(
    outcome: Outcome, config: Config
) -> None:
    state = config.train_prototypical(config.posterior, config.train_family())
    for name, tensor in state.items():
        torch.testing.assert_close(outcome.tensors[f"{PROTOTYPICAL}/{name}"], tensor)
    embedded = EmbeddedTasks(outcome.networks["posterior"], draw_held_out_tasks(config))
    for (method, mode), right in without_learner(config, embedded, state).items():
        row = find(outcome.rows, "accuracy", learner=None, method=method, mode=mode)
        assert row is not None
        assert row.value == pytest.approx(100 * right.mean().item())


def test_diverged_learners_are_left_out_of_all_methods_and_counted(
    config: Config, outcome: Outcome, tmp_path: Path
) -> None:
    work = Workspace(tmp_path, fingerprint(config))
    with pytest.raises(KeyboardInterrupt):
        EXPERIMENT.run(config, work, stop_after_learners)
    diverged = {"MLP": {"none": [3], "oracle": [3, 5]}, "CNN": {"NC direct, transductive": [0]}}
    for learner, methods in diverged.items():
        for method, tasks in methods.items():
            kept = work.read(f"{method}, {learner}")
            assert kept is not None
            tensors, content = kept
            tensors["diverged"][:, tasks] = True
            tensors["loss_te"][-1, tasks] = math.inf
            work.write(f"{method}, {learner}", tensors, content)
    rows = EXPERIMENT.run(config, Workspace(tmp_path, fingerprint(config))).rows
    assert all(math.isfinite(row.value) for row in rows)
    for learner, count in (("MLP", 2), ("CNN", 1)):
        own = select(rows, learner=learner)
        found = find(own, "diverged tasks")
        assert found is not None
        assert found.value == count
        assert {row.n for row in select(own, "accuracy")} == {config.eval_tasks - count}
    before = outcome.tensors["MLP/NC posterior, inductive/accuracy"][-1]
    others = before[[b for b in range(config.eval_tasks) if b not in (3, 5)]]
    accuracy = find(rows, "accuracy", learner="MLP", head="posterior", mode="inductive")
    assert accuracy is not None
    assert accuracy.value == pytest.approx(100 * others.mean().item())


def stop_after_learners(
    stage: str, done: int, total: int, seconds: float, metrics: dict[str, float]
) -> None:
    if stage == "evaluation" and done == total - 1:
        raise KeyboardInterrupt


def test_when_all_learners_diverge_the_run_says_so(config: Config) -> None:
    with pytest.raises(FloatingPointError, match="learners must not all diverge, got 0"):
        EXPERIMENT.run(replace(config, lr=1e30), Workspace(None))


@pytest.mark.parametrize("name", ["omniglot", "ablation"])
def test_without_data_the_command_says_where_to_put_it(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*call: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", fail)
    data, out = tmp_path / "data", tmp_path / "run"
    line = ["run", name, "--preset", "smoke", "--data", str(data), "--out", str(out)]
    assert main(line) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith(f"error: images_background.zip must be put into {data / 'omniglot'}")
    assert "no network" in message
