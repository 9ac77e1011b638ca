from dataclasses import replace
from pathlib import Path

import pytest
import torch

from neural_complexity.experiments.base.experiment import Parts
from neural_complexity.experiments.base.held_out_splits import (
    HeldOutSplits,
    gap_tables,
    split_rows,
)
from neural_complexity.experiments.base.image_learners import EmbeddedNC, load_ncs
from neural_complexity.experiments.base.one_dataset import (
    ImageData,
    SingleNetworksConfig,
    load_data,
)
from neural_complexity.experiments.base.rows import make_row
from neural_complexity.experiments.base.table_views import find
from neural_complexity.experiments.base.training import Head
from neural_complexity.experiments.single import PRESETS
from neural_complexity.points import raw
from neural_complexity.workspace import Workspace
from smoke_runs import SmokeRuns

smoke = PRESETS["smoke"]


@pytest.fixture(autouse=True)
def single_precision() -> None:
    torch.set_default_dtype(torch.float32)  # as users run it


@pytest.fixture
def data() -> ImageData:
    return load_data(smoke())


@pytest.fixture
def ncs(smoke_runs: SmokeRuns, data: ImageData) -> dict[Head, EmbeddedNC]:
    folder = str(smoke_runs("single").folder)
    return load_ncs(SingleNetworksConfig.like(smoke, networks=folder), data)


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
    rows = split_rows(lambda *a, **k: make_row("any", 0, *a, **k), {100: judged}, "plain")
    row = find(rows, "predicted gap", head="direct", size=100)
    assert row is not None
    assert row.value == pytest.approx(judged["predicted/direct"][-1].mean().item(), rel=1e-5)
    assert gap_tables(rows)[0].rows[0][0] == "NC posterior; held-out splits, plain, endpoints"


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
