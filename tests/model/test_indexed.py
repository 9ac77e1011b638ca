import pytest
import torch
from torch import Tensor

from glyphs import thumbnails
from neural_complexity.losses import Categorical, cross_entropy
from neural_complexity.model.heads import Sets
from neural_complexity.model.indexed import (
    Beliefs,
    Embeddings,
    Known,
    believe,
    by_embeddings,
    embed,
    predict_in_parts,
    show,
)
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.image_datasets import SingleDataset
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
    def draw(numbers: Tensor) -> Tensor:
        return torch.randn(*numbers.shape, CLASSES, generator=stream(seed, "logits"))

    return Snapshot(task.X_tr, task.Y_tr, draw(task.X_tr), task.X_te, draw(task.X_te))


def known_to(nc: NeuralComplexity, task: Task) -> Known:
    embeddings = embed(nc, dataset().look_up, torch.arange(80))
    if nc.architecture["head"] == "posterior":
        return believe(nc, embeddings, task)
    return by_embeddings(nc, embeddings)


def directly(nc: NeuralComplexity, snapshot: Snapshot) -> Tensor:
    """The gaps that NC predicts from the images themselves."""
    look_up = dataset().look_up
    X_tr, X_te = look_up(snapshot.X_tr), look_up(snapshot.X_te)
    context = nc.encode(X_tr, snapshot.Y_tr, X_te)
    return nc.points(context, snapshot.H_tr, snapshot.H_te).mean(dim=1)


@pytest.mark.parametrize("numbers", [torch.arange(80), torch.tensor([[3, 70], [9, 3]])])
def test_looked_up_embeddings_are_those_of_the_images(
    nc: NeuralComplexity, numbers: Tensor
) -> None:
    embeddings = embed(nc, dataset().look_up, numbers)
    assert len(embeddings.table) == len(numbers.unique())
    with torch.no_grad():
        expected = nc.embed(dataset().look_up(numbers))
    torch.testing.assert_close(embeddings(numbers), expected)


def test_numbers_need_not_start_at_zero() -> None:
    table = torch.tensor([[1.0], [2.0], [3.0]])
    found = Embeddings(torch.tensor([2, 5, 9]), table)(torch.tensor([[9, 2], [5, 9]]))
    assert found[..., 0].tolist() == [[3, 1], [2, 3]]


@pytest.mark.parametrize("change", [(0, 0, 1), (2, 0, 0)])  # one that convolutions do not mind, too
def test_images_of_another_size_are_refused(
    nc: NeuralComplexity, change: tuple[int, int, int]
) -> None:
    shape = [a + b for a, b in zip(nc.architecture["inputs"], change, strict=True)]
    with pytest.raises(ValueError, match=r"inputs must be of NC's size, .*, got \(\d+, \d+, \d+\)"):
        embed(nc, lambda numbers: torch.zeros(*numbers.shape, *shape), torch.arange(3))


@pytest.mark.parametrize("missing", [0, 4, 10])
def test_numbers_that_nc_has_not_looked_at_are_refused(missing: int) -> None:
    numbers, table = torch.tensor([2, 5, 9]), torch.eye(3)
    sentence = f"inputs must be among the 3 that NC has looked at, got others: .{missing}"
    with pytest.raises(ValueError, match=sentence):
        Embeddings(numbers, table)(torch.tensor([5, missing]))
    beliefs = Beliefs(numbers.expand(2, -1).contiguous(), Categorical(table.expand(2, -1, -1)))
    seen, asked = torch.tensor([[2], [5]]), torch.tensor([[9, 2], [5, missing]])
    with pytest.raises(ValueError, match=sentence):
        beliefs(Task(seen, seen, asked, asked))


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
    found = known_to(nc, task)(asked).known
    look_up = dataset().look_up
    with torch.no_grad():
        own = nc.encode(look_up(task.X_tr), task.Y_tr, look_up(asked.X_te)).known
    assert isinstance(found, Categorical)
    assert isinstance(own, Categorical)
    torch.testing.assert_close(found.logits, own.logits)


def test_the_direct_head_has_no_beliefs(task: Task) -> None:
    nc = make_nc("direct")
    embeddings = embed(nc, dataset().look_up, torch.arange(80))
    with pytest.raises(ValueError, match="belief needs the posterior head"):
        believe(nc, embeddings, task)
    assert isinstance(by_embeddings(nc, embeddings)(snapshot_of(task)).known, Sets)


def test_one_part_is_the_prediction_itself(nc: NeuralComplexity, task: Task) -> None:
    snapshot = snapshot_of(task)
    found = predict_in_parts(nc, known_to(nc, task), snapshot, M=30, N=20)
    torch.testing.assert_close(found, directly(nc, snapshot).detach())


def test_parts_of_test_points_change_nothing_where_beliefs_are_at_hand(task: Task) -> None:
    nc, snapshot = make_nc("posterior"), snapshot_of(task)
    known = known_to(nc, task)
    whole = predict_in_parts(nc, known, snapshot, M=30, N=20)
    for M, N in ((30, 7), (30, 1), (6, 20), (7, 3)):
        found = predict_in_parts(nc, known, snapshot, M=M, N=N)
        torch.testing.assert_close(found, whole)


def test_learners_are_judged_one_by_one(nc: NeuralComplexity, task: Task) -> None:
    snapshot = snapshot_of(task)
    together = predict_in_parts(nc, known_to(nc, task), snapshot, M=6, N=5)
    for b in range(len(task)):
        one = slice(b, b + 1)
        alone = predict_in_parts(nc, known_to(nc, task[one]), snapshot[one], M=6, N=5)
        torch.testing.assert_close(together[one], alone)


def test_shown_points_are_some_of_the_training_points_with_their_labels(task: Task) -> None:
    few = show(task, 7, stream(0, "shown"))
    assert few.X_tr.shape == few.Y_tr.shape == (3, 7)
    for row, own in zip(few.X_tr, task.X_tr, strict=True):
        assert len(row.unique()) == 7
        assert torch.isin(row, own).all()
    assert torch.equal(few.Y_tr, dataset().labels[few.X_tr])
    assert torch.equal(few.X_te, task.X_te)
    assert torch.equal(few.X_tr, show(task, 7, stream(0, "shown")).X_tr)
    assert show(task, 99, stream(0, "shown")).X_tr.shape == (3, 30)
