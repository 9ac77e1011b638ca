from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from neural_complexity.experiments.base.comparison import SCORES
from neural_complexity.experiments.base.experiment import Outcome
from neural_complexity.experiments.base.image_learners import (
    BASELINES,
    BELIEFS,
    CNN,
    DISTILLED,
    EARLY,
    METHODS,
    PLAIN,
    ImageMethod,
)
from neural_complexity.experiments.base.one_dataset import EmbeddedNC, load_data
from neural_complexity.experiments.base.rows import Row, find, read_rows, select
from neural_complexity.experiments.base.run_folder import HEADS
from neural_complexity.experiments.single import (
    EXPERIMENT,
    PAPER,
    PAPER_METHODS,
    PRESETS,
    joint_table,
    run,
    tables,
    train_cnn,
)
from neural_complexity.workspace import Workspace
from smoke_runs import SmokeRuns

DIGITS = {"dataset": "digits", "learner": "MLP"}
RESULTS = Path(__file__).parent.parent.parent / "docs" / "results"
smoke = PRESETS["smoke"]


@pytest.fixture(autouse=True)
def as_users_run_it() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def outcome(smoke_runs: SmokeRuns) -> Outcome:
    return smoke_runs("single").outcome


def bare(rows: list[Row]) -> list[Row]:
    return [replace(row, commit="") for row in rows]


def test_all_that_a_report_needs_is_there(outcome: Outcome) -> None:
    rows = outcome.rows
    for method in METHODS:
        for metric in ("accuracy", "test loss", "train loss"):
            assert find(rows, metric, **method.keys, **DIGITS) is not None
    for method in (BELIEFS, CNN):
        assert find(rows, "accuracy", **method.keys, dataset="digits", learner=None) is not None
    for head in HEADS:
        for metric in SCORES:
            for end in ("endpoints", "all the way"):
                nc = {"method": "NC", "head": head, "snapshots": end}
                assert find(rows, metric, **nc, images="test images") is not None
                plain = {"images": "held-out splits", "learners": "plain"}
                assert find(rows, metric, **nc, **plain) is not None
    accuracies, fits, sizes, strengths = tables(rows)
    # NC stands beside what shows where its help comes from.
    assert [line[0] for line in accuracies.rows] == [m.label for m in (*METHODS, BELIEFS, CNN)]
    assert METHODS[-1] == DISTILLED
    assert len(fits.rows) == 12
    assert len(sizes.rows) == 2 * len(HEADS) * len(smoke().sizes)
    assert [line[-1] for line in strengths.rows].count("chosen") == 1 + len(BASELINES)


def test_early_stopping_is_where_the_error_on_held_out_images_is_least(outcome: Outcome) -> None:
    names = ("error on held", "error")
    held, error = (outcome.tensors[f"{EARLY.label}/{name}"] for name in names)
    best = [int(column.argmin()) for column in held.T]
    expected = sum(error[time, run].item() for run, time in enumerate(best)) / len(best)
    own = find(outcome.rows, "accuracy", **EARLY.keys)
    assert own is not None
    assert own.value == pytest.approx(100 * (1 - expected), rel=1e-5)


def test_the_strength_that_is_best_on_held_out_images_is_chosen(outcome: Outcome) -> None:
    for method in BASELINES.values():
        tried = [r for r in select(outcome.rows, **method.keys) if "strength" in r.keys]
        (chosen,) = select(tried, chosen=True)
        assert chosen.value == max(row.value for row in tried)


def test_all_methods_start_from_the_same_learners_and_differ_at_the_end(outcome: Outcome) -> None:
    plain = {name: outcome.tensors[f"{PLAIN.label}/{name}"] for name in ("loss_te", "error")}
    for method in METHODS:
        for name, values in plain.items():
            own = outcome.tensors[f"{method.label}/{name}"]
            starts = own[0].unflatten(0, (-1, smoke().runs))  # of the learners of each NC
            torch.testing.assert_close(starts, values[0].expand_as(starts))
        if method != PLAIN:
            own = outcome.tensors[f"{method.label}/loss_te"][-1]
            assert not torch.equal(own[: smoke().runs], plain["loss_te"][-1])


@pytest.mark.usefixtures("forked_workers")
def test_other_processes_give_the_same_rows(outcome: Outcome) -> None:
    apart = run(replace(smoke(), workers=1), Workspace(None))
    assert bare(apart.rows) == bare(outcome.rows)


def test_the_papers_numbers_stand_beside_ours() -> None:
    assert dict(zip(PAPER_METHODS, PAPER["fashion-mnist"], strict=True)) == {
        PLAIN: 88.21,
        ImageMethod("L2"): 88.46,
        ImageMethod("label smoothing"): 89.15,
        ImageMethod("mixup"): 89.50,
        ImageMethod("NC", "direct", "transductive"): 89.74,
    }
    assert set(PAPER_METHODS) <= set(METHODS)


def test_several_runs_become_one_table() -> None:
    runs = [read_rows(RESULTS / f"single-{name}" / "rows.jsonl") for name in ("mnist", "svhn")]
    table = joint_table(runs)
    assert table.header[1:] == (
        "mnist, MLP",
        "svhn (10,000 training images), ResNet of 8 layers, 8 filters",
    )
    assert ("the paper's L2", "98.36", "94.06") in table.rows
    with pytest.raises(ValueError, match="runs must be of different datasets, got mnist, MLP, mni"):
        joint_table([runs[0], runs[0]])


def test_the_cnn_learns_from_training_images_alone(outcome: Outcome) -> None:
    data, nc = load_data(replace(smoke(), cnn_updates=3)), outcome.networks["posterior"]
    one, other = (
        train_cnn(replace(data, test=test), nc, None)["test"]
        for test in (data.test, data.test.flip(0))
    )
    assert one.shape == (120, 10)
    torch.testing.assert_close(one, other.flip(0))


def test_beliefs_are_about_the_tasks_own_test_points(outcome: Outcome) -> None:
    data = load_data(smoke())
    nc = EmbeddedNC(outcome.networks["posterior"], data)
    found = []
    for test in (data.test, data.test.flip(0)):
        task = data.task(data.train, test)
        found.append(nc.nc.believe(nc.encoder(task)(task)).prediction)
    assert found[0].shape == (1, 120, 10)
    torch.testing.assert_close(found[1], found[0].flip(1))


def test_presets_fit_their_datasets() -> None:
    images = {"digits": 1437, "mnist": 60_000, "kmnist-10k": 8000, "svhn": 73_257}
    images |= {"cifar-10": 50_000}
    for name, preset in EXPERIMENT.presets.items():
        config = preset()
        pool = (config.train_images or images[config.dataset]) - config.held
        assert config.split_train + config.split_test <= pool, name
        assert max(config.sizes) <= pool, name
        for training in (config.posterior, config.direct):
            assert training.unlabelled <= config.split_test, name
            assert min(training.smallest, config.split_train) >= training.M, name


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"l2": (0.1, -0.1)}, r"l2 must be positive, got \(0.1, -0.1\)"),
        ({"mixup": ()}, "mixup must hold at least one number, got none"),
        ({"sizes": ()}, "sizes must hold at least one number, got none"),
        ({"sizes": (0,)}, r"sizes must be at least 1, got \(0,\)"),
        ({"cnn_updates": 0}, "cnn_updates must be at least 1, got 0"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(smoke(), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"held": 1437}, "held must be less than the 1437 images, got 1437"),
        ({"train_images": 1438}, "train_images must be at most 1437, all that digits has, got"),
        ({"test_images": 361}, "test_images must be at most 360, all that digits has, got 361"),
        ({"sizes": (1238,)}, "sizes must be at most the 1237 images there are, got 1238"),
        ({"split_train": 938}, r"train \+ test must be at most 1237, got 1238"),
    ],
)
def test_more_than_the_dataset_has_is_refused_at_once(
    change: dict[str, object], sentence: str
) -> None:
    began: list[str] = []
    with pytest.raises(ValueError, match=sentence):
        run(replace(smoke(), **change), Workspace(None), lambda stage, *_: began.append(stage))  # type: ignore[arg-type]
    assert not began
