import pytest
import torch
from torch import Tensor

from glyphs import thumbnails
from neural_complexity.beliefs import Categorical
from neural_complexity.losses import cross_entropy
from neural_complexity.model.cached import (
    CachedEmbeddings,
    CachedStates,
    Encoder,
    cache,
    embed_store,
    subsample,
)
from neural_complexity.model.judgement import judge_minibatches
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import indexed, raw
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.images import SingleDataset
from neural_complexity.tasks.splits import Splits

CLASSES = 4


def dataset() -> SingleDataset:
    return SingleDataset("glyphs", thumbnails(classes=CLASSES, drawings=20), 70)


def family() -> Splits:
    return Splits(dataset(), torch.arange(80), train=30, test=20, M=6, N=5)


def make_nc(head: str, **more: int) -> NeuralComplexity:
    example = family().sample(4, stream(0, "units"))
    return NeuralComplexity.for_tasks(
        example,
        loss=cross_entropy.name,
        head=head,
        width=16,
        heads=2,
        channels=4,
        image_layers=2,
        **more,
    )


@pytest.fixture(params=["posterior", "direct"])
def nc(request: pytest.FixtureRequest) -> NeuralComplexity:
    return make_nc(request.param)


@pytest.fixture
def task() -> Task:
    return family().split(3, stream(0, "task"))


def snapshot_of(task: Task, seed: int = 0) -> Snapshot:
    def draw(X: Tensor) -> Tensor:
        return torch.randn(*X.shape, CLASSES, generator=stream(seed, "logits"))

    return Snapshot(task.X_tr, task.Y_tr, draw(task.X_tr), task.X_te, draw(task.X_te))


def cached(nc: NeuralComplexity, task: Task) -> Encoder:
    return cache(nc, task, embed_store(nc, dataset(), torch.arange(80)))


def directly(nc: NeuralComplexity, snapshot: Snapshot) -> Tensor:
    """The gaps that NC predicts from the images themselves."""
    X_tr, X_te = (dataset()(raw(X)) for X in (snapshot.X_tr, snapshot.X_te))
    context = nc.encode(X_tr, snapshot.Y_tr, X_te)
    return nc.points(context, snapshot.H_tr, snapshot.H_te).mean(dim=1)


@pytest.mark.parametrize("numbers", [torch.arange(80), torch.tensor([[3, 70], [9, 3]])])
def test_looked_up_embeddings_are_those_of_the_images(
    nc: NeuralComplexity, numbers: Tensor
) -> None:
    embeddings = embed_store(nc, dataset(), numbers)
    assert len(embeddings.table) == len(numbers.unique())
    with torch.no_grad():
        expected = nc.embed(dataset()(numbers))
    torch.testing.assert_close(embeddings(numbers), expected)


@pytest.mark.parametrize("change", [(0, 0, 1), (2, 0, 0)])  # one that convolutions do not mind, too
def test_images_of_another_size_are_refused(
    nc: NeuralComplexity, change: tuple[int, int, int]
) -> None:
    shape = [a + b for a, b in zip(nc.shape, change, strict=True)]
    with pytest.raises(ValueError, match=r"inputs must be of NC's size, .*, got \(\d+, \d+, \d+\)"):
        embed_store(nc, lambda i: torch.zeros(*i.shape, *shape), torch.arange(3))


@pytest.mark.parametrize("missing", [0, 4, 10])
def test_test_points_that_nc_was_not_asked_about_are_refused(missing: int) -> None:
    table = Categorical(torch.eye(3).expand(2, -1, -1))
    states = CachedStates(torch.tensor([2, 5, 9]).expand(2, -1).contiguous(), table)
    seen, asked = torch.tensor([[2], [5]]), torch.tensor([[9, 2], [5, missing]])
    task = Task(indexed(seen, dataset()), seen, indexed(asked, dataset()), asked)
    with pytest.raises(ValueError, match=f"must be among the 3 .*, got others: .{missing}"):
        states(task)


@pytest.mark.parametrize(
    ("rounds", "places"),
    [
        (3, torch.arange(20).flip(0)),  # test points see each other: all of them, in any order
        (0, torch.tensor([9, 3, 3, 17])),  # each by itself: any of them
    ],
)
def test_beliefs_are_those_of_the_posterior_head(task: Task, rounds: int, places: Tensor) -> None:
    nc = make_nc("posterior", rounds=rounds)
    asked = Task(task.X_tr, task.Y_tr, task.X_te[:, places], task.Y_te[:, places])
    found = cached(nc, task)(asked).state
    with torch.no_grad():
        own = nc.encode(task.X_tr, task.Y_tr, asked.X_te).state
    assert isinstance(found, Categorical)
    torch.testing.assert_close(found.logits, own.logits)


def test_a_head_that_sees_predictions_is_asked_at_each_step(task: Task) -> None:
    nc, snapshot = make_nc("direct"), snapshot_of(task)
    encode = cached(nc, task)
    assert isinstance(encode, CachedEmbeddings)
    plain = CachedEmbeddings(nc)(snapshot)
    assert torch.allclose(encode(snapshot).state.X_te, plain.state.X_te)


def test_a_fixed_context_asks_for_predictions_only_where_nc_sees_them(
    nc: NeuralComplexity, task: Task
) -> None:
    context = CachedEmbeddings(nc, fixed=(task.X_tr, task.Y_tr))(snapshot_of(task))
    assert (context.X_tr is task.X_tr) == nc.head.sees_predictions


def test_one_part_is_the_prediction_itself(nc: NeuralComplexity, task: Task) -> None:
    snapshot = snapshot_of(task)
    found = judge_minibatches(nc, cached(nc, task), snapshot, M=30, N=20)
    torch.testing.assert_close(found, directly(nc, snapshot).detach())


def test_parts_of_test_points_change_nothing_where_beliefs_are_at_hand(task: Task) -> None:
    nc, snapshot = make_nc("posterior"), snapshot_of(task)
    encode = cached(nc, task)
    whole = judge_minibatches(nc, encode, snapshot, M=30, N=20)
    for M, N in ((30, 7), (30, 1), (6, 20), (7, 3)):
        found = judge_minibatches(nc, encode, snapshot, M=M, N=N)
        torch.testing.assert_close(found, whole)


def test_learners_are_judged_one_by_one(nc: NeuralComplexity, task: Task) -> None:
    snapshot = snapshot_of(task)
    together = judge_minibatches(nc, cached(nc, task), snapshot, M=6, N=5)
    for b in range(len(task)):
        one = slice(b, b + 1)
        alone = judge_minibatches(nc, cached(nc, task[one]), snapshot[one], M=6, N=5)
        torch.testing.assert_close(together[one], alone)


def test_a_subsample_is_some_of_the_training_points_with_their_labels(task: Task) -> None:
    few = subsample(task, 7, stream(0, "some"))
    assert few.X_tr.shape == few.Y_tr.shape == (3, 7)
    for row, own in zip(raw(few.X_tr), raw(task.X_tr), strict=True):
        assert len(row.unique()) == 7
        assert torch.isin(row, own).all()
    assert torch.equal(few.Y_tr, dataset().labels[raw(few.X_tr)])
    assert torch.equal(raw(few.X_te), raw(task.X_te))
    assert torch.equal(raw(few.X_tr), raw(subsample(task, 7, stream(0, "some")).X_tr))
    assert subsample(task, 99, stream(0, "some")).X_tr.shape == (3, 30)
