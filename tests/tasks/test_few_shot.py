"""Laws of few-shot tasks, on classes of unequal size in no order."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glyphs import glyphs
from neural_complexity.points import raw
from neural_complexity.seeding import stream
from neural_complexity.tasks.few_shot import FewShot
from neural_complexity.tasks.images import Images


def store(counts: list[int]) -> Images:
    """Makes images that all differ, two channels of 2 x 3, in random order."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=stream(0, "order"))]
    numbers = torch.arange(len(labels))
    pixels = torch.zeros(len(labels), 2, 2, 3, dtype=torch.uint8)
    pixels[:, 0, 0, 0] = (numbers % 256).to(torch.uint8)
    pixels[:, 1, 1, 2] = (numbers // 256).to(torch.uint8)
    return Images(pixels, labels)


@given(
    counts=st.lists(st.integers(4, 40), min_size=2, max_size=12),
    ways=st.integers(1, 12),
    shots=st.integers(1, 2),
    queries=st.integers(1, 2),
    batch=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
def test_laws_of_a_task(
    counts: list[int], ways: int, shots: int, queries: int, batch: int, seed: int
) -> None:
    ways = min(ways, len(counts))
    images = store(counts)
    family = FewShot(images, ways=ways, shots=shots, queries=queries)
    task = family.sample(batch, stream(seed, "x"))
    assert task.X_tr.shape == task.Y_tr.shape == (batch, ways * shots)
    assert task.X_te.shape == task.Y_te.shape == (batch, ways * queries)
    indices = torch.cat([raw(task.X_tr), raw(task.X_te)], dim=1)
    labels = torch.cat([task.Y_tr, task.Y_te], dim=1)
    assert (indices.sort(dim=1).values.diff(dim=1) > 0).all()  # no image twice
    for Y, each in ((task.Y_tr, shots), (task.Y_te, queries)):
        assert (torch.nn.functional.one_hot(Y, ways).sum(dim=1) == each).all()
    # A label is one class, and two labels are two.
    classes = images.labels[indices]
    same_label = labels[:, :, None] == labels[:, None, :]
    assert torch.equal(same_label, classes[:, :, None] == classes[:, None, :])
    # The seed decides alone.
    torch.rand(3)
    again = family.sample(batch, stream(seed, "x"))
    assert torch.equal(again.Y_tr, task.Y_tr)
    assert torch.equal(again.Y_te, task.Y_te)
    assert torch.equal(raw(again.X_tr), raw(task.X_tr))
    assert torch.equal(raw(again.X_te), raw(task.X_te))
    assert torch.equal(again.loaded().X_te, images.pixels[raw(task.X_te)] / 255)


def test_every_class_and_every_image_get_every_role() -> None:
    images = store([6, 9, 12, 7])
    task = FewShot(images, ways=3, shots=1, queries=2).sample(20_000, stream(0, "x"))
    first = images.labels[raw(task.X_tr)[:, 0]].bincount() / 20_000  # which class has label 0
    torch.testing.assert_close(first, torch.full((4,), 0.25), atol=0.015, rtol=0.0)
    for X, share in ((task.X_tr, 3 / 4), (task.X_te, 6 / 4)):
        expected = 20_000 * share / images.counts[images.labels]  # times an image is drawn
        assert ((raw(X).flatten().bincount() / expected - 1).abs() < 0.1).all()


def test_labels_do_not_tell_the_class() -> None:
    images = store([8] * 5)
    task = FewShot(images, ways=5, queries=1).sample(20_000, stream(0, "x"))
    pairs = torch.zeros(5, 5).index_put_(
        (task.Y_tr.flatten(), images.labels[raw(task.X_tr).flatten()]),
        torch.ones(()),
        accumulate=True,
    )
    torch.testing.assert_close(pairs / 20_000, torch.full((5, 5), 0.2), atol=0.015, rtol=0.0)


def test_the_precision_changes_no_task() -> None:
    drawn = []
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        family = FewShot(glyphs(5, 4), ways=5, queries=3)
        drawn.append(family.sample(8, stream(0, "x")))
        assert drawn[-1].loaded().X_tr.dtype == dtype
    assert torch.equal(raw(drawn[0].X_te), raw(drawn[1].X_te))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"ways": 0}, "ways must be at least 1, got 0"),
        ({"ways": 6}, "ways must be at most 5, got 6"),
        ({"ways": 5, "shots": 0}, "shots must be at least 1, got 0"),
        ({"ways": 5, "queries": 0}, "queries must be at least 1, got 0"),
        ({"ways": 5, "shots": 2, "queries": 3}, r"shots \+ queries must be at most 4, got 5"),
    ],
)
def test_impossible_families_are_refused(arguments: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        FewShot(store([9, 4, 7, 8, 9]), **arguments)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
        FewShot(glyphs(10, 6)).sample(0, stream(0, "x"))
