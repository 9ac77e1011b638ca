from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glyphs import thumbnails
from neural_complexity.learners.networks import image_mlp
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.collect_splits import SplitCollector, log_steps
from neural_complexity.meta.executor import Collection, Job
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import seeded, stream
from neural_complexity.tasks.image_datasets import SingleDataset
from neural_complexity.tasks.splits import Splits

CLASSES = 4
HEADS = ("posterior", "direct")
dataset = SingleDataset("glyphs", thumbnails(classes=CLASSES, drawings=20), 70)
splits = Splits(dataset, torch.arange(3, 73), train=40, test=20, M=6, N=5)
recipe = Recipe(
    make=partial(image_mlp, (1, 7, 7), [8], CLASSES),
    loss=cross_entropy,
    steps=10,
    lr=0.5,
    look_up=dataset.look_up,
)
collector = SplitCollector(
    splits, recipe, seed=0, tasks=2, looks=4, batch=8, smallest=10, unlabelled=12, shown=9
)


def make_nc(head: str = "posterior") -> NeuralComplexity:
    example = splits.sample(4, stream(0, "units"))
    with seeded(0, "weights"):
        return NeuralComplexity.for_tasks(
            example, loss="cross_entropy", head=head, width=8, heads=2, channels=4, image_layers=2
        )


def same(one: Collection, other: Collection) -> bool:
    columns = zip((*one[0].tensors(), one[1]), (*other[0].tensors(), other[1]), strict=True)
    return all(torch.equal(a, b) for a, b in columns)


@given(st.integers(1, 5000), st.integers(2, 40))
def test_looks_are_different_rising_and_hold_both_ends(steps: int, looks: int) -> None:
    found = log_steps(steps, looks)
    assert found == sorted(set(found))
    assert (found[0], found[-1]) == (0, steps)
    assert len(found) <= max(looks, 2) + 1


@pytest.mark.parametrize("head", HEADS)
def test_rows_are_numbers_of_the_pool_with_their_labels(head: str) -> None:
    snapshot, Y_te = collector(make_nc(head), Job(0, 0, 1.0))
    rows = 2 * len(log_steps(10, 4))
    assert snapshot.X_tr.shape == snapshot.Y_tr.shape == (rows, 6)
    assert snapshot.X_te.shape == Y_te.shape == (rows, 5)
    assert snapshot.H_tr.shape == (rows, 6, CLASSES)
    assert snapshot.H_te.shape == (rows, 5, CLASSES)
    for row in torch.cat([snapshot.X_tr, snapshot.X_te], dim=1):
        assert len(row.unique()) == 11
        assert torch.isin(row, splits.pool).all()
    assert torch.equal(snapshot.Y_tr, dataset.labels[snapshot.X_tr])
    assert torch.equal(Y_te, dataset.labels[snapshot.X_te])
    assert not any(t.requires_grad for t in snapshot.tensors())


@pytest.mark.parametrize("head", HEADS)
def test_it_is_a_pure_function_of_weights_index_and_weight(head: str) -> None:
    nc = make_nc(head)
    first = collector(nc, Job(1, 0, 1.0))
    torch.rand(7)  # the global generator has no say
    assert same(first, replace(collector)(make_nc(head), Job(1, 5, 1.0)))
    assert not same(first, collector(nc, Job(2, 0, 1.0)))
    assert not same(first, collector(nc, Job(1, 0, 0.0)))
    assert not same(first, replace(collector, seed=1)(nc, Job(1, 0, 1.0)))
    with torch.no_grad():
        for parameter in nc.parameters():
            parameter.add_(0.1)
    assert not same(first, collector(nc, Job(1, 0, 1.0)))


def test_without_weight_nc_has_no_say() -> None:
    posterior, direct = (collector(make_nc(head), Job(0, 0, 0.0)) for head in HEADS)
    assert same(posterior, direct)


def test_a_frozen_image_encoder_embeds_once_and_gives_the_same() -> None:
    nc = make_nc("direct")
    frozen = replace(collector, frozen=True)
    for index in (0, 1):
        own, usual = (c(nc, Job(index, 0, 1.0)) for c in (frozen, collector))
        for a, b in zip(own[0].tensors(), usual[0].tensors(), strict=True):
            torch.testing.assert_close(a, b)


def test_impossible_sizes_are_refused() -> None:
    for smallest in (5, 41):
        with pytest.raises(ValueError, match=f"smallest must be from 6,.*to 40,.*got {smallest}"):
            replace(collector, smallest=smallest)
    with pytest.raises(ValueError, match="looks must be at least 2, got 1"):
        replace(collector, looks=1)
    with pytest.raises(ValueError, match="tasks must be at least 1, got 0"):
        replace(collector, tasks=0)
