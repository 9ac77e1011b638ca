from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from neural_complexity.experiments.base import image_learners
from neural_complexity.experiments.base.experiment import Parts, load_experiment
from neural_complexity.experiments.base.image_learners import (
    BASELINES,
    DISTILLED,
    EARLY,
    METHODS,
    NC_METHODS,
    PLAIN,
    HeldOutSplits,
    ImageMethod,
    WholeDataset,
    run_trial,
    train_all,
)
from neural_complexity.experiments.base.image_report import fit_table, split_rows
from neural_complexity.experiments.base.one_dataset import (
    Choice,
    EmbeddedNC,
    ImageData,
    load_data,
)
from neural_complexity.experiments.base.rows import Row, find
from neural_complexity.experiments.base.run_folder import RunFolder
from neural_complexity.experiments.base.training import Head
from neural_complexity.experiments.single import PRESETS, Config
from neural_complexity.files import read_json, write_json
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.scores import Estimate
from neural_complexity.points import raw
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.splits import Minibatches
from neural_complexity.workspace import Workspace
from smoke_runs import SmokeRuns

pytestmark = pytest.mark.usefixtures("single_precision")

smoke = PRESETS["smoke"]


def test_a_method_survives_its_row_and_every_label_is_its_own() -> None:
    methods = [PLAIN, *NC_METHODS, *BASELINES.values(), ImageMethod("cross-entropy", times=2)]
    for method in methods:
        row = Row.of("any", 0, "accuracy", Estimate(1.0, None, 1), **method.keys, step=3)
        assert ImageMethod.of(row) == method
    labels = [method.label for method in methods]
    assert len(set(labels)) == len(labels)
    assert labels[1] == "NC posterior, transductive"
    assert labels[-1] == "cross-entropy (2x capacity)"


def residual(config: Config) -> Config:
    return replace(config, learner="ResNet", learner_width=2, learner_blocks=(1,), steps=2, runs=3)


def test_test_labels_change_nothing_but_the_scores(
    data: ImageData, ncs: dict[Head, EmbeddedNC]
) -> None:
    found = []
    for turned in (False, True):
        trial = WholeDataset(data, ncs, {}).trial(PLAIN, range(1))
        if turned:
            task, evaluation = (
                Task(t.X_tr, t.Y_tr, t.X_te, (t.Y_te + 1) % 10)
                for t in (trial.task, trial.evaluation)
            )
            trial = replace(trial, task=task, evaluation=evaluation)
        nc = ncs["posterior"]
        trial = replace(trial, regularizer=nc.penalty(nc.encoder(trial.task)))
        found.append(run_trial(trial, ncs))
    one, other = found
    for name in ("loss_tr", "predicted/posterior", "predicted/direct"):
        assert torch.equal(one[name], other[name])
    assert not torch.equal(one["loss_te"], other["loss_te"])


def test_results_are_losses_errors_and_gaps_of_the_same_learners(
    data: ImageData, ncs: dict[Head, EmbeddedNC]
) -> None:
    trial = replace(WholeDataset(data, ncs, {}).trial(PLAIN, range(2)), times=(0, 7))
    found, points = run_trial(trial, ncs, keep=True), trial.evaluation
    assert found["step"].tolist() == [0, 7, 20]
    torch.testing.assert_close(found["gap"], found["loss_te"] - found["loss_tr"])
    for time in range(3):
        H_tr, H_te = found["H_tr"][time], found["H_te"][time]
        wrong = (H_te.argmax(dim=-1) != points.Y_te).float().mean(dim=1)
        torch.testing.assert_close(found["error"][time], wrong)
        loss = cross_entropy(H_tr, points.Y_tr).mean(dim=1)
        torch.testing.assert_close(found["loss_tr"][time], loss)
        snapshot = Snapshot(points.X_tr, points.Y_tr, H_tr, points.X_te, H_te)
        for head, nc in ncs.items():
            own = nc.gaps(nc.encoder(points), snapshot)
            torch.testing.assert_close(found[f"predicted/{head}"][time], own)


def test_learners_are_the_same_whatever_is_asked_about_them(
    data: ImageData, ncs: dict[Head, EmbeddedNC]
) -> None:
    learners = WholeDataset(data, ncs, {})
    trial = learners.trial(PLAIN, range(2))
    plain = run_trial(replace(trial, times=()))
    asked = run_trial(replace(trial, times=range(20)), ncs)
    assert torch.equal(plain["loss_te"][-1], asked["loss_te"][-1])
    other = run_trial(learners.trial(PLAIN, range(1, 3)))
    assert not torch.equal(plain["loss_te"][-1], other["loss_te"][-1])


def test_the_weight_of_nc_rises_along_the_ramp(
    data: ImageData, ncs: dict[Head, EmbeddedNC]
) -> None:
    trial = WholeDataset(data, ncs, {}).trial(ImageMethod("NC", "posterior"), range(1))
    at_once = run_trial(trial)["loss_tr"]
    risen = run_trial(replace(trial, config=replace(smoke(), ramp=0.5)))["loss_tr"]
    assert torch.equal(at_once[0], risen[0])
    assert not torch.equal(at_once[-1], risen[-1])


def test_convolutional_learners_are_trained_one_by_one_and_joined(tmp_path: Path) -> None:
    config = residual(smoke())
    assert smoke().chunks(2) == [range(2)]
    assert config.chunks(3) == [range(1), range(1, 2), range(2, 3)]
    asked: list[range] = []

    def train(kind: int, runs: range) -> dict[str, Tensor]:
        asked.append(runs)
        first = float(runs.start)
        return {"step": torch.tensor([0, 2]), "error": torch.full((2, len(runs)), first)}

    for _ in range(2):  # the second time from the folder
        parts = Parts(Workspace(tmp_path), 3, None)
        found = train_all(parts, {7: "method"}, config.chunks(3), train)[7]
        assert found["error"].tolist() == [[0, 1, 2], [0, 1, 2]]
        assert found["step"].tolist() == [0, 2]
    assert asked == config.chunks(3)


def test_a_residual_network_learns_with_nc(data: ImageData, ncs: dict[Head, EmbeddedNC]) -> None:
    deep = replace(data, config=residual(smoke()))
    method = ImageMethod("NC", "direct", "inductive")
    learners = WholeDataset(deep, ncs, {method: deep.recipe("dropout", Choice(0.1))})
    found = run_trial(learners.trial(method, range(1)))
    assert found["loss_tr"].isfinite().all()
    assert not torch.equal(found["loss_tr"][0], found["loss_tr"][-1])


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """Returns all that learners see from here on."""
    shown: list[Task] = []

    class Watched(Minibatches):
        def __call__(self, step: int) -> Task:
            shown.append(super().__call__(step))
            return shown[-1]

    monkeypatch.setattr(image_learners, "Minibatches", Watched)
    return shown


def distinct(points: list[Tensor]) -> Tensor:
    found: Tensor = torch.cat([raw(some).flatten() for some in points]).unique()
    return found


def within(some: Tensor, all_of: Tensor) -> bool:
    return bool(torch.isin(some, all_of).all())


@pytest.mark.parametrize("method", [PLAIN, EARLY, DISTILLED, *NC_METHODS], ids=lambda m: m.label)
def test_only_transductive_learners_see_test_images(
    method: ImageMethod, data: ImageData, ncs: dict[Head, EmbeddedNC], seen: list[Task]
) -> None:
    longer = replace(data.recipe(), steps=60)
    learners = WholeDataset(data, ncs, {method: longer}, torch.zeros(120, 10))
    trial = learners.trial(method, range(1))
    assert (trial.regularizer is None) == (method in (PLAIN, EARLY))
    run_trial(trial)
    assert torch.equal(raw(trial.evaluation.X_te), data.test[None])  # all are evaluated on them
    assert within(raw(trial.evaluation.X_tr), raw(trial.task.X_tr))  # which were learned from
    learned, unlabelled = distinct([t.X_tr for t in seen]), distinct([t.X_te for t in seen])
    if method.mode == "inductive" or method == EARLY:
        assert within(learned, data.pool)  # the held-out labels are not used either
        assert within(unlabelled, data.held)
        assert not torch.isin(torch.cat([learned, unlabelled]), data.test).any()
    else:
        assert within(learned, data.train)
        assert torch.isin(learned, data.held).any()
        assert within(unlabelled, data.test)


def test_every_line_of_nc_says_on_which_images_it_judges() -> None:
    for method in METHODS:
        assert (method.mode is not None) == (method.head is not None or method == DISTILLED)


NAMES = ("dataset_size", "single_curves", "capacity")


def run(name: str, config: Any) -> None:
    load_experiment(name).run(config, Workspace(None))


@pytest.mark.parametrize("name", NAMES)
def test_other_networks_are_refused(name: str, smoke_runs: SmokeRuns, tmp_path: Path) -> None:
    config = smoke_runs.config(name)
    changes: list[tuple[dict[str, object], str]] = [
        ({"networks": ""}, "networks must be the folder of a finished run of single on digits, go"),
        ({"networks": "nowhere"}, "the folder of a finished run of single on digits, got nowhere"),
        ({"seed": 1}, "networks must be a run with the same .*got one with seed 0 in the place of"),
        ({"held": 199}, "got one with held 200 in the place of 199"),
        ({"train_images": 1300}, "got one with train_images 0 in the place of 1300"),
        ({"test_images": 300}, "got one with test_images 120 in the place of 300"),
    ]
    for change, sentence in changes:
        with pytest.raises(ValueError, match=sentence):
            run(name, replace(config, **change))
    other = RunFolder(tmp_path / "other")
    other.start("sinusoid", config)
    with pytest.raises(ValueError, match="networks must be a run of single, got one of sinusoid"):
        run(name, replace(config, networks=str(other.path)))


def test_networks_of_another_dataset_or_of_an_unfinished_run_are_refused(
    smoke_runs: SmokeRuns, tmp_path: Path
) -> None:
    content = read_json(smoke_runs("single").folder / "config.json")
    write_json(tmp_path / "config.json", content)
    config = replace(smoke_runs.config("capacity"), networks=str(tmp_path))
    with pytest.raises(ValueError, match="networks must be a finished run of single, got no"):
        run("capacity", config)
    content["config"]["dataset"] = "mnist"
    write_json(tmp_path / "config.json", content)
    with pytest.raises(ValueError, match="got one with dataset mnist in the place of digits"):
        run("capacity", config)


def parts() -> Parts:
    return Parts(Workspace(None), 3, None)


def test_held_out_splits_are_evaluated_on_images_that_no_nc_has_seen(data: ImageData) -> None:
    few = replace(data, config=replace(smoke(), eval_tasks=3))
    splits, again = (HeldOutSplits(few, (100, 30), 10) for _ in range(2))
    for size, (task, evaluation) in splits.tasks.items():
        assert raw(task.X_tr).shape == (3, size)
        assert torch.isin(raw(task.X_tr), data.pool).all()
        assert torch.equal(raw(task.X_tr), raw(again.tasks[size][0].X_tr))
        assert torch.equal(raw(evaluation.X_te), data.held.expand(3, -1))


def test_gaps_are_those_of_the_learners_that_were_trained(
    data: ImageData, ncs: dict[Head, EmbeddedNC], smoke_runs: SmokeRuns
) -> None:
    outcome = smoke_runs("single").outcome
    splits = HeldOutSplits(data, (100,), 10)
    trained = splits.train(parts(), "plain")
    plain, judged = trained[100], splits.with_gaps(trained, *ncs.values())[100]
    assert not {"H_tr", "H_te"} & set(judged)
    for name, values in judged.items():
        kept = outcome.tensors[f"splits/100/plain/{name}"]
        torch.testing.assert_close(values, kept, rtol=1e-4, atol=1e-5)
    regularized = splits.train(parts(), "with NC", ncs["posterior"])[100]
    assert torch.equal(plain["loss_te"][0], regularized["loss_te"][0])
    assert not torch.equal(plain["loss_te"][-1], regularized["loss_te"][-1])
    rows = split_rows(lambda *a, **k: Row.of("any", 0, *a, **k), {100: judged}, "plain")
    row = find(rows, "predicted gap", head="direct", size=100)
    assert row is not None
    assert row.value == pytest.approx(judged["predicted/direct"][-1].mean().item(), rel=1e-5)
    assert (
        fit_table(rows, "", "", "").rows[0][0] == "NC posterior; held-out splits, plain, endpoints"
    )


def test_nc_is_scored_on_the_endpoints_of_plain_learners(
    data: ImageData, ncs: dict[Head, EmbeddedNC], smoke_runs: SmokeRuns
) -> None:
    splits = HeldOutSplits(data, smoke().sizes, 10)
    plain = splits.train(parts(), "plain")
    history = smoke_runs("single").outcome.history
    for head, nc in ncs.items():
        embeddings = None if head == "posterior" else nc.embeddings
        score = splits.score(plain, embeddings, nc.nc)
        assert score == pytest.approx(history[head][-1].r2, rel=1e-3)


def test_residual_learners_are_trained_one_by_one(tmp_path: Path) -> None:
    config = replace(smoke(), learner="ResNet", learner_width=2, learner_blocks=(1,), eval_tasks=2)
    splits = HeldOutSplits(load_data(config), (30, 60), 2)
    work = Workspace(tmp_path)
    found = splits.train(Parts(work, 4, None), "plain")
    assert len(work.seconds) == 4
    assert {size: result["gap"].shape[1] for size, result in found.items()} == {30: 2, 60: 2}
    one, other = found[30]["loss_te"][0]
    assert one != other
