import torch
from torch import Tensor

from neural_complexity.learners.networks import mlp
from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta.executor import Job
from neural_complexity.meta.sources import Part, Source, TaskList, make_source
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import raw
from neural_complexity.seeding import stream
from neural_complexity.tasks.sinusoids import Sinusoids
from neural_complexity.tasks.split_tasks import split_tasks
from neural_complexity.tasks.splits import Splits

RECIPE = Recipe(make=lambda: mlp(1, (4,), 1), steps=5, lr=0.01)
PARTS: tuple[Part, ...] = ("validation", "report")


def learners(source: Source, part: Part, index: int = 0) -> tuple[Tensor, Tensor]:
    snapshot, Y_te = source.learners(RECIPE, part, tasks=3, seed=1, index=index, device="cpu")
    assert snapshot.H_te.shape == Y_te.shape
    assert not snapshot.H_te.requires_grad
    return snapshot.X_tr, snapshot.X_te


def test_no_point_that_nc_is_tested_on_is_ever_learned_from() -> None:
    X = torch.arange(100.0).to(torch.get_default_dtype())[:, None]
    source = make_source(split_tasks(X, X[:, 0].sin()), seed=0)
    assert isinstance(source.family, Splits)
    nc = NeuralComplexity.for_tasks(source.family.sample(4, stream(0, "units")), width=8)
    collector = source.collector(RECIPE, tasks=2, seed=0, device="cpu")
    rows, _ = collector(nc, Job(0, 0, 0.5))
    seen = {*raw(rows.X_tr).flatten().tolist(), *raw(rows.X_te).flatten().tolist()}
    tested = set[int]()
    for part in PARTS:
        for index in range(4):
            X_tr, X_te = learners(source, part, index)
            assert {int(x) for x in X_tr.flatten()} <= set(source.family.pool.tolist())
            tested |= {int(x) for x in X_te.flatten()}
    assert not seen & tested
    assert seen <= set(source.family.pool.tolist())
    assert len(tested) == 30  # all that are held out
    held_out = [source.held_out[part] for part in PARTS]
    assert not torch.isin(*held_out).any()  # type: ignore[call-overload]


def test_learners_have_no_more_training_points_than_was_asked_for() -> None:
    X = torch.arange(200.0).to(torch.get_default_dtype())[:, None]
    y = X[:, 0].sin()
    asked = make_source(split_tasks(X, y, train=20, test=8), seed=0)
    assert isinstance(asked.family, Splits)
    assert (asked.family.train, asked.family.test) == (20, 8)
    sizes = {learners(asked, "report", index)[0].shape[1] for index in range(20)}
    assert max(sizes) <= 20
    whole = make_source(split_tasks(X, y), seed=0)
    assert isinstance(whole.family, Splits)
    assert (whole.family.train, whole.family.test) == (105, 35)  # shares of what NC may know
    assert whole.largest == 140


def test_held_out_learners_depend_on_part_and_index_alone() -> None:
    family = Sinusoids()
    source = Source(family, {"validation": family, "report": family})
    first = learners(source, "report")[0]
    assert torch.equal(first, learners(source, "report")[0])
    assert not torch.equal(first, learners(source, "report", 1)[0])
    assert not torch.equal(first, learners(source, "validation")[0])


def test_a_list_of_tasks_is_gone_through_before_one_comes_again() -> None:
    task = Sinusoids().sample(5, stream(0, "tasks"))
    drawn = TaskList(task).sample(7, stream(0, "draw"))
    assert len(drawn) == 7
    assert drawn.X_tr[:5].flatten(1).unique(dim=0).shape[0] == 5
