from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from neural_complexity.baselines.rank_measures import rank_measures
from neural_complexity.baselines.ranking import CMI, GRANULATED, MAE, R2, TAU, WORST
from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.learners.networks import mlp
from neural_complexity.seeding import stream
from neural_complexity.task import Task

HYPER: dict[str, list[Any]] = {
    "width": [4, 4, 4, 4, 8, 8, 8, 8],
    "scale": [1.0, 1.0, 3.0, 3.0] * 2,
    "seed": [0, 1] * 4,
}


class Hidden(nn.Module):
    """Models that say the same of themselves and are not the same."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor, self.inner = factor, nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        H: Tensor = self.factor * self.inner(x)
        return H


def points() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    X = torch.randn(60, 2, generator=stream(0, "points"))
    y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
    return X[:30], y[:30], X[30:], y[30:]


def models() -> list[nn.Module]:
    found = list[nn.Module]()
    for width, scale, _ in product((4, 8), (1.0, 3.0), range(2)):
        model = mlp(2, (width,), 3, noise=lambda _: nn.Dropout(0.5))
        for p in model.parameters():
            p.data *= scale
        found.append(model)
    return found


def gaps_of(some: list[nn.Module]) -> Tensor:
    X_tr, y_tr, X_te, y_te = points()
    with torch.no_grad():
        losses = [
            [cross_entropy(m.eval()(X), y) for X, y in ((X_tr, y_tr), (X_te, y_te))] for m in some
        ]
    return torch.tensor([te - tr for tr, te in losses])


def norm(h: BatchedLearner, _: BatchedLearner, task: Task) -> Tensor:
    assert task.Y_te.eq(0).all()  # hidden from it
    return torch.stack([p.square().flatten(1).sum(dim=1) for p in h.parameters()]).sum(dim=0)


def distance(h: BatchedLearner, initial: BatchedLearner, _: Task) -> Tensor:
    pairs = zip(h.parameters(), initial.parameters(), strict=True)
    return torch.stack([(p - q).square().flatten(1).sum(dim=1) for p, q in pairs]).sum(dim=0)


def test_models_of_several_architectures_are_measured_each_by_itself() -> None:
    some = models()
    found = rank_measures(some, {"norm": norm}, points())
    norms = [sum(p.square().sum().item() for p in model.parameters()) for model in some]
    torch.testing.assert_close(found.values["norm"], torch.tensor(norms))
    torch.testing.assert_close(found.gaps, gaps_of(some))


def test_rows_are_sorted_and_have_all_scores() -> None:
    some = models()
    true = {id(model): gap for model, gap in zip(some, gaps_of(some), strict=True)}

    def best(h: BatchedLearner, _: BatchedLearner, task: Task) -> Tensor:
        same = [next(m for m in some if _same(h.one(b), m)) for b in range(len(task))]
        return torch.stack([true[id(model)] for model in same])

    measures = {"worst": lambda *own: -best(*own), "norm": norm, "best": best}
    found = rank_measures(some, measures, points(), hyperparameters=HYPER, predictions=["best"])
    assert found.table.index.tolist() == ["best", "norm", "worst"]
    line = found.table.loc["best"]
    wanted = {TAU: 1.0, GRANULATED: 1.0, CMI: 1.0, WORST: 0.0, R2: 1.0, MAE: 0.0}
    assert {name: line[name] for name in wanted} == pytest.approx(wanted)
    assert torch.tensor(found.table.loc["norm", R2]).isnan()
    assert repr(found).splitlines()[1].startswith("best")


def _same(a: nn.Module, b: nn.Module) -> bool:
    pairs = list(zip(a.parameters(), b.parameters(), strict=True))
    return all(p.shape == q.shape and torch.equal(p, q) for p, q in pairs)


def test_initial_models_reach_measures_and_count_as_zero_without() -> None:
    some, initial = models(), models()
    found = rank_measures(some, {"distance": distance}, points(), initial=initial)
    for model, start, told in zip(some, initial, found.values["distance"], strict=True):
        pairs = zip(model.parameters(), start.parameters(), strict=True)
        wanted = sum((p - q).square().sum().item() for p, q in pairs)
        assert told.item() == pytest.approx(wanted)
    without = rank_measures(some, {"distance": distance, "norm": norm}, points()).values
    torch.testing.assert_close(without["distance"], without["norm"])


def test_models_are_left_as_they_are() -> None:
    some = models()
    before = [{n: t.clone() for n, t in model.state_dict().items()} for model in some]
    rank_measures(some, {"norm": norm}, points())
    assert all(model.training for model in some)
    for model, state in zip(some, before, strict=True):
        assert all(torch.equal(t, state[n]) for n, t in model.state_dict().items())


def test_models_that_only_look_alike_are_told_apart() -> None:
    some = [Hidden(factor) for factor in (1.0, 2.0, 4.0)]
    torch.testing.assert_close(rank_measures(some, {"n": norm}, points()).gaps, gaps_of([*some]))


def test_arrays_and_models_in_single_precision_will_do() -> None:
    some = [model.float() for model in models()]
    X_tr, y_tr, X_te, y_te = (part.numpy() for part in points())
    data = X_tr, y_tr, X_te, y_te
    assert rank_measures(some, {"norm": norm}, data).gaps.dtype == torch.float64


def test_what_cannot_be_ranked_is_refused() -> None:
    some, data = models(), points()
    rank: Any = partial(rank_measures, measures={"norm": norm}, data=data)
    for error, sentence, call in (
        (ValueError, "models must be at least 3, got 2", lambda: rank(some[:2])),
        (TypeError, "Module, got function", lambda: rank([norm] * 3)),
        (
            ValueError,
            "initial must be one for each of 8 models, got 1",
            lambda: rank(some, initial=some[:1]),
        ),
        (
            ValueError,
            "width must be one for each of 8",
            lambda: rank(some, hyperparameters={"width": [1]}),
        ),
        (ValueError, "names of measures, got NC", lambda: rank(some, predictions=["NC"])),
        (
            ValueError,
            "y_te must be one for each",
            lambda: rank(some, data=(*data[:3], data[1][:9])),
        ),
        (
            ValueError,
            "one value per model, got shape \\(\\) for 4 models",
            lambda: rank(some, measures={"sum": lambda *own: norm(*own).sum()}),
        ),
    ):
        with pytest.raises(error, match=sentence):
            call()
    next(some[1].parameters()).data.fill_(torch.inf)
    with pytest.raises(ValueError, match="finite losses, got another one from model 1"):
        rank(some)
