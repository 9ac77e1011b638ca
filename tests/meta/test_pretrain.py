from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import holds_for_seeds
from neural_complexity.meta.executor import ProcessPool
from neural_complexity.meta.optimize import Status
from neural_complexity.meta.pretrain import (
    Pretraining,
    belief_loss,
    held_out_tables,
    matrices,
    pretrain,
)
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.synthetic_tables import Tables
from neural_complexity.workspace import Workspace

FAMILY = Tables(classes=3, train_points=(8, 20), features=(2, 4), test_points=10)
SETTINGS = Pretraining(updates=8, tables=4, together=2, held_out=4, checkpoints=4)


class KilledError(Exception):
    pass


def make_nc(classes: int = 3, seed: int = 0) -> NeuralComplexity:
    torch.manual_seed(seed)
    kind = {"loss": "cross_entropy"} if classes else {"loss": "squared_error", "bins": 8}
    sizes = {"for_tables": True, "table_layers": 1, "extra_rows": 1}
    return NeuralComplexity(4, classes or 1, width=8, heads=2, **kind, **sizes)


def train(
    folder: Path | None = None, stop: int | None = None, classes: int = 3, **change: Any
) -> tuple[NeuralComplexity, list[Status]]:
    def callback(stage: str, done: int, total: int, *_: object) -> None:
        assert (stage, total) == ("tables", 8)
        if done == stop:
            raise KilledError

    nc, family = make_nc(classes), replace(FAMILY, classes=classes)
    more: dict[str, Any] = {"work": Workspace(folder, "tables"), "callback": callback}
    more["executor"] = change.pop("executor", None)
    settings = replace(SETTINGS, **change)
    return nc, pretrain(nc, family, settings, seed=0, **more)


@pytest.mark.parametrize("classes", [0, 3])
def test_resumed_equals_uninterrupted(classes: int, tmp_path: Path) -> None:
    whole, history = train(classes=classes)
    for stop in (1, 3, 7):
        with pytest.raises(KilledError):
            train(tmp_path, stop, classes=classes)
    resumed, again = train(tmp_path, classes=classes)
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    assert [status.held_out for status in again] == [status.held_out for status in history]
    assert [status.iteration for status in again] == [2, 4, 6, 8]


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("classes", [0, 3])
def test_workers_compute_the_same_gradients(classes: int, tmp_path: Path) -> None:
    whole, history = train(classes=classes)
    with ProcessPool(2) as executor:
        with pytest.raises(KilledError):
            train(tmp_path, 3, classes=classes, executor=executor)
        resumed, again = train(tmp_path, classes=classes, executor=executor)
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    assert [status.loss for status in again] == [status.loss for status in history]


def test_every_weight_is_trained() -> None:
    nc, _ = train(lr=0.01)
    for (name, before), after in zip(make_nc().named_parameters(), nc.parameters(), strict=True):
        assert not torch.equal(before, after), name


def test_products_of_bfloat16_give_nearly_the_same_losses() -> None:
    torch.set_default_dtype(torch.float32)
    losses = []
    for mixed in (False, True):
        nc, history = train(lr=1e-4, mixed_precision=mixed)
        losses.append(history[-1].loss)
        assert {p.dtype for p in nc.parameters()} == {torch.float32}
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_matrices_are_those_between_hidden_layers() -> None:
    nc = make_nc()
    chosen = {id(p) for p in matrices(nc)}
    names = {name for name, p in nc.named_parameters() if id(p) in chosen}
    assert len(names) == 4 * 2 + 2
    assert all(name.endswith("weight") and "norm" not in name for name in names)


def test_tables_grow_to_their_size() -> None:
    sizes = [SETTINGS.family(Tables(), progress) for progress in (0.0, 0.15, 0.3, 1.0)]
    assert [family.train_points for family in sizes] == [(10, 72), (10, 191), (10, 512), (10, 512)]
    assert [family.features for family in sizes] == [(2, 8), (2, 15), (2, 30), (2, 30)]
    whole = replace(SETTINGS, growth=0.0).family(Tables(), 0.0)
    assert whole == Tables()


def test_held_out_tables_are_scored_at_every_checkpoint() -> None:
    nc, history = train()
    tasks = held_out_tables(FAMILY, SETTINGS, 0)
    assert [len(task) for task in tasks] == [2, 2]
    expected = sum(belief_loss(nc, task).item() for task in tasks) / 2
    assert history[-1].held_out == pytest.approx(expected, rel=1e-5)


class Same(Tables):
    """The same table again and again."""

    def sample(self, batch: int, generator: torch.Generator) -> Task:  # noqa: ARG002
        return FAMILY.sample(batch, stream(0, "the table"))


@pytest.mark.trains
def test_it_learns() -> None:
    sizes = {"train_points": (8, 20), "features": (2, 4), "test_points": 10}
    settings = replace(SETTINGS, updates=80, lr=0.01, checkpoints=80)

    def check(seed: int) -> bool:
        nc = make_nc(seed=seed)
        history = pretrain(nc, Same(classes=3, **sizes), settings, seed=seed)  # type: ignore[arg-type]
        first, last = history[0].held_out, history[-1].held_out
        return first is not None and last is not None and last < 0.5 * first

    holds_for_seeds(check)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="tables must be a multiple of those drawn together"):
        Pretraining(updates=1, tables=5, together=2)
    with pytest.raises(ValueError, match="nc must be for tables, got another"):
        pretrain(NeuralComplexity(3, 1), FAMILY, SETTINGS, seed=0)
    with pytest.raises(ValueError, match="table_layers must be at least 1 for pretraining, got 0"):
        pretrain(NeuralComplexity(3, 1, for_tables=True, bins=4), FAMILY, SETTINGS, seed=0)
