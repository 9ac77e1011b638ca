import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from neural_complexity.meta import parallel
from neural_complexity.meta.parallel import in_parallel
from neural_complexity.meta.pretrain import Pretraining, pretrain
from neural_complexity.meta.trainer import MetaLearner
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.tasks.synthetic_tables import Tables
from neural_complexity.workspace import Workspace
from unlucky import family, recipe

TABLES = Tables(classes=3, train_points=(8, 20), features=(2, 4), test_points=10)
SETTINGS = Pretraining(updates=6, tables=4, together=2, held_out=4, checkpoints=3)


class KilledError(Exception):
    pass


def pretrained(
    folder: Path | None = None, stop: int = 0, processes: int = 1
) -> tuple[list[Tensor], list[float]]:
    """Returns the weights of an NC for tables and its losses."""
    torch.manual_seed(0)
    sizes = {"for_tables": True, "table_layers": 1, "extra_rows": 1, "loss": "cross_entropy"}
    nc, losses = NeuralComplexity(4, 3, width=8, heads=2, **sizes), list[float]()

    def note(_: str, done: int, __: int, ___: float, metrics: dict[str, float]) -> None:
        losses.append(metrics["loss"])
        if done == stop:
            raise KilledError

    learn = partial(pretrain, seed=0, work=Workspace(folder, "tables"))
    history = in_parallel(processes, learn, nc, TABLES, SETTINGS, callback=note)
    assert [status.iteration for status in history] == [2, 4, 6]
    return list(nc.state_dict().values()), losses


def meta_trained(
    folder: Path | None = None, stop: int = 0, saves: bool = False
) -> tuple[list[Tensor], list[float]]:
    """Returns the weights of an NC of sinusoids and its losses, up to iteration `stop` if given."""
    torch.manual_seed(0)
    nc = NeuralComplexity.for_tasks(family.sample(64, stream(0, "units")), width=16)
    sizes: dict[str, Any] = {
        "iterations": 3,
        "updates": 2,
        "batch": 16,
        "tasks": 8,
        "capacity": 100,
        "lag": 1,
    }
    work = Workspace(folder, "meta")
    meta, losses = MetaLearner(nc, family, recipe, seed=0, workspace=work, **sizes), list[float]()
    while not (meta.done or (stop and meta.iteration == stop)):
        meta.iterate()
        losses.append(meta.loss)
        if saves:
            meta.save()
    return list(nc.state_dict().values()), losses


def assert_close(
    one: tuple[list[Tensor], list[float]], two: tuple[list[Tensor], list[float]]
) -> None:
    assert one[1] == pytest.approx(two[1], rel=1e-9)
    for a, b in zip(one[0], two[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_two_processes_meta_train_what_one_does_to_rounding() -> None:
    assert_close(in_parallel(2, meta_trained), meta_trained())


@pytest.mark.usefixtures("forked_workers")
def test_several_processes_share_a_workspace_and_one_goes_on_from_it(tmp_path: Path) -> None:
    weights, losses = meta_trained()
    two = in_parallel(2, meta_trained, tmp_path, 2, True)
    assert two[1] == pytest.approx(losses[:2], rel=1e-9)
    other = shutil.copytree(tmp_path, tmp_path.with_name("other"))
    assert_close(meta_trained(tmp_path), (weights, losses[2:]))
    assert_close(in_parallel(2, meta_trained, other), (weights, losses[2:]))


@pytest.mark.usefixtures("forked_workers")
def test_two_processes_pretrain_what_one_does_and_go_on_from_its_checkpoint(tmp_path: Path) -> None:
    weights, losses = pretrained()
    with pytest.raises(KilledError):
        pretrained(tmp_path, stop=4)
    assert_close(pretrained(tmp_path, processes=2), (weights, losses[4:]))
    assert_close(pretrained(tmp_path), (weights, []))  # and one reads the checkpoint of two


def test_a_process_alone_does_everything() -> None:
    assert (parallel.leads(), parallel.processes()) == (True, 1)
    assert parallel.share(range(3)) == range(3)
    assert parallel.from_leader(lambda: 5) == 5
    assert in_parallel(1, sorted, [2, 1]) == [1, 2]
    with pytest.raises(ValueError, match="processes must be at least 1, got 0"):
        in_parallel(0, sorted, [])


def fails(batch: int) -> None:
    parallel.share(range(batch))


@pytest.mark.usefixtures("forked_workers")
def test_a_batch_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch must be a multiple of 2 processes, got 3"):
        in_parallel(2, fails, 3)
    assert parallel.processes() == 1
