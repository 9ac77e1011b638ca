from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import tree
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from neural_complexity.beliefs import Categorical, Histogram
from neural_complexity.integrations.estimator_nc import EstimatorNC
from neural_complexity.integrations.sklearn import NCClassifier, NCRegressor
from neural_complexity.model.architecture import Architecture
from neural_complexity.model.judgement import features, judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.model.table_network import describe_cells
from neural_complexity.regularizers.loop import NCRegularizer
from neural_complexity.regularizers.nc import trust
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.synthetic_tables import Tables


def make_nc(classes: int = 10) -> NeuralComplexity:
    """Returns an NC whose answers depend on everything: no weight is zero, as at the start."""
    torch.manual_seed(0)
    kind = {"loss": "cross_entropy"} if classes else {"loss": "squared_error", "bins": 24}
    sizes = {"for_tables": True, "table_layers": 2, "extra_rows": 2}
    nc = NeuralComplexity(30, classes or 1, width=16, heads=2, **kind, **sizes).double()
    for parameter in nc.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return nc


def make_task(classes: int = 10, seed: int = 0, tables: int = 2, D: int = 5) -> Task:
    family = Tables(classes=classes, train_points=(12, 12), test_points=6, features=(D, D))
    task = family.sample(tables, torch.Generator().manual_seed(seed))
    return task.map(lambda t: t.double() if t.is_floating_point() else t)


def believe(nc: NeuralComplexity, task: Task) -> Tensor:
    classes = 10 if nc.labels else None
    belief = nc.belief(task.X_tr, task.Y_tr, task.X_te, classes=classes)
    assert isinstance(belief, Categorical if nc.labels else Histogram)
    return belief.prediction.detach()


kinds = pytest.mark.parametrize("classes", [0, 10])
close = torch.testing.assert_close


@kinds
@settings(max_examples=10)
@given(st.permutations(range(5)), st.permutations(range(12)), st.integers(0, 9))
def test_the_order_of_features_and_training_rows_does_not_matter(
    classes: int, features: list[int], rows: list[int], seed: int
) -> None:
    nc, task = make_nc(classes), make_task(classes, seed)
    shuffled = Task(
        task.X_tr[:, rows][..., features], task.Y_tr[:, rows], task.X_te[..., features], task.Y_te
    )
    close(believe(nc, shuffled), believe(nc, task))


@kinds
def test_test_rows_do_not_see_each_other(classes: int) -> None:
    nc, task = make_nc(classes), make_task(classes)
    alone = [Task(task.X_tr, task.Y_tr, task.X_te[:, [i]], task.Y_te[:, [i]]) for i in range(6)]
    close(torch.cat([believe(nc, one) for one in alone], dim=1), believe(nc, task))


@kinds
def test_batched_equals_separate(classes: int) -> None:
    nc, task = make_nc(classes), make_task(classes)
    both = torch.cat([believe(nc, task[slice(b, b + 1)]) for b in range(2)])
    close(both, believe(nc, task))


@kinds
def test_everything_is_seen(classes: int) -> None:
    nc, task = make_nc(classes), make_task(classes)
    usual = believe(nc, task)
    for name in ("X_tr", "Y_tr", "X_te"):
        changed = replace(task, **{name: getattr(task, name).flip(1)})
        assert not torch.allclose(believe(nc, changed), usual)


@settings(max_examples=20)
@given(st.floats(0.01, 100), st.floats(-100, 100))
def test_units_of_features_do_not_matter(factor: float, offset: float) -> None:
    nc, task = make_nc(), make_task()
    moved = Task(factor * task.X_tr + offset, task.Y_tr, factor * task.X_te + offset, task.Y_te)
    close(believe(nc, moved), believe(nc, task), rtol=1e-5, atol=1e-6)


@settings(max_examples=20)
@given(st.floats(0.01, 100), st.floats(-100, 100))
def test_beliefs_are_in_the_units_of_the_targets(factor: float, offset: float) -> None:
    nc, task = make_nc(0), make_task(0)
    moved = Task(task.X_tr, factor * task.Y_tr + offset, task.X_te, task.Y_te)
    close(believe(nc, moved), factor * believe(nc, task) + offset, rtol=1e-5, atol=1e-5)


def test_cells_are_described_by_value_rank_and_what_is_missing() -> None:
    nan = torch.nan
    X_tr = torch.tensor([[[1.0, 5.0], [2.0, nan], [3.0, 5.0]]])
    X_te = torch.tensor([[[2.0, 5.0], [9.0, nan], [-9.0, 6.0]]])
    seen = describe_cells(X_tr, X_te)
    assert seen.shape == (1, 6, 2, 3)
    value, rank, missing = seen[0].unbind(dim=-1)
    unit = (2 / 3) ** 0.5
    assert value[:4, 0].tolist() == pytest.approx([-1 / unit, 0, 1 / unit, 0])
    assert 2 < value[4, 0] < 7 / unit  # far away, but not as far as it is
    assert value[5, 0] < -2
    assert rank[:, 0].tolist() == pytest.approx([-2 / 3, 0, 2 / 3, 0, 1, -1])
    assert value[[0, 2, 3], 1].tolist() == [0, 0, 0]  # a constant
    assert value[5, 1].item() == pytest.approx(0.2)  # what is no longer one, by a fifth
    assert missing.bool().tolist() == [
        [False, False],
        [False, True],
        [False, False],
        [False, False],
        [False, True],
        [False, False],
    ]
    assert value[[1, 4], 1].tolist() == rank[[1, 4], 1].tolist() == [0, 0]


@kinds
@settings(max_examples=30)
@given(st.data())
def test_odd_tables_have_finite_beliefs(classes: int, data: st.DataObject) -> None:
    nc, task = make_nc(classes), make_task(classes)
    X = torch.cat([task.X_tr, task.X_te], dim=1)
    odd = data.draw(st.sampled_from(["constant", "missing", "huge", "same", "one"]))
    column = data.draw(st.integers(0, 4))
    if odd == "constant":
        X[..., column] = data.draw(st.floats(-1e9, 1e9))
    elif odd == "missing":
        X[..., column:] = torch.nan
    elif odd == "huge":
        X[:, data.draw(st.integers(0, 17)), column] = 1e150
    elif odd == "same":
        X = X[:, :1].expand_as(X)
    Y_tr = torch.zeros_like(task.Y_tr) if odd == "one" else task.Y_tr
    assert believe(nc, Task(X[:, :12], Y_tr, X[:, 12:], task.Y_te)).isfinite().all()


def test_classes_without_a_training_row_are_next_to_impossible() -> None:
    nc, task = make_nc(), make_task()
    Y_tr = task.Y_tr % 2
    few = nc.belief(task.X_tr, Y_tr, task.X_te, classes=2)
    more = nc.belief(task.X_tr, Y_tr, task.X_te, classes=5)
    assert isinstance(few, Categorical)
    assert isinstance(more, Categorical)
    rest = more.probabilities[..., 2:].sum(dim=-1)
    assert (rest > 0).all()
    assert (rest < 0.05).all()
    kept = more.probabilities[..., :2]
    close(kept / kept.sum(dim=-1, keepdim=True), few.probabilities)


@settings(max_examples=10)
@given(st.permutations(range(4)), st.integers(0, 9))
def test_no_class_is_special(order: list[int], seed: int) -> None:
    nc, task = make_nc(), make_task(4, seed)
    usual = nc.belief(task.X_tr, task.Y_tr, task.X_te, classes=4).prediction
    renamed = nc.belief(task.X_tr, torch.tensor(order)[task.Y_tr], task.X_te, classes=4).prediction
    close(renamed[..., order], usual)


def test_there_may_be_more_classes_than_in_any_synthetic_table() -> None:
    nc, X = make_nc(), torch.randn(1, 60, 3, dtype=torch.double)
    Y_tr = torch.arange(50)[None] % 25
    p = nc.belief(X[:, :50], Y_tr, X[:, 50:], classes=25).prediction.softmax(dim=-1)
    assert p.shape == (1, 10, 25)
    assert p.isfinite().all()


@kinds
def test_without_layers_beliefs_are_those_of_the_regressions(classes: int) -> None:
    nc, task = make_nc(classes), make_task(classes)
    own = replace(nc.architecture, table_layers=0)
    plain = NeuralComplexity(own.inputs, own.outputs, **without(own)).double()
    untrained = NeuralComplexity(own.inputs, own.outputs, **without(nc.architecture)).double()
    close(believe(plain, task), believe(untrained, task))


def without(a: Architecture) -> dict[str, Any]:
    return {k: v for k, v in asdict(a).items() if k not in ("inputs", "outputs")}


@kinds
def test_what_is_remembered_of_a_training_set_is_not_taken_for_another(classes: int) -> None:
    kind = {"loss": "cross_entropy"} if classes else {"loss": "squared_error", "bins": 24}

    def fresh() -> NeuralComplexity:
        made = NeuralComplexity(30, classes or 1, width=8, heads=2, for_tables=True, **kind)
        return made.double()

    nc, one, other = fresh(), make_task(classes), make_task(classes, seed=1)
    relabelled = replace(one, Y_tr=one.Y_tr.flip(1))
    few = replace(one, X_te=one.X_te[:, 2:4], Y_te=one.Y_te[:, 2:4])
    for task in (one, one, other, relabelled, one, few):
        close(believe(nc, task), believe(fresh(), task))
    single = one.map(lambda t: t.float() if t.is_floating_point() else t)
    close(believe(nc.float(), single), believe(fresh().float(), single))


def test_classes_are_those_of_the_labels_if_nobody_says() -> None:
    nc, X = make_nc(), torch.randn(1, 40, 3, dtype=torch.double)
    for classes in (2, 12):
        Y_tr = torch.arange(30)[None] % classes
        found = nc.belief(X[:, :30], Y_tr, X[:, 30:])
        close(found.prediction, nc.belief(X[:, :30], Y_tr, X[:, 30:], classes=classes).prediction)
        assert found.prediction.shape[-1] == classes
    forest = EstimatorNC(LogisticRegression()).double()
    assert forest.belief(X[:, :30], Y_tr, X[:, 30:]).prediction.shape[-1] == 12


def test_targets_that_do_not_vary_are_believed_in_their_own_unit() -> None:
    nc, X = make_nc(0), torch.randn(1, 20, 3, dtype=torch.double)
    for value in (1e-6, 1.0, 5e4):
        found = nc.belief(X[:, :12], torch.full((1, 12, 1), value).double(), X[:, 12:])
        assert isinstance(found, Histogram)
        assert (found.variance.sqrt() < 9 * value).all()


def test_a_model_without_error_is_believed_to_have_hardly_any() -> None:
    X = torch.randn(1, 240, 2, generator=torch.Generator().manual_seed(0))
    y = X @ torch.tensor([[1.0], [-0.5]])
    nc = NeuralComplexity.pretrained("tables-regression")
    belief = nc.belief(X[:, :200], y[:, :200], X[:, 200:])
    expected = nc.loss.expected(y[:, 200:], belief).mean() / y.var()
    assert expected < 0.01


def test_what_it_cannot_judge_is_refused() -> None:
    nc, task = make_nc(), make_task()
    with pytest.raises(ValueError, match="X_tr must be finite, got NaN or infinity"):
        nc.belief(task.X_tr / 0, task.Y_tr, task.X_te)
    with pytest.raises(ValueError, match="X_te must agree with X_tr on the number of features"):
        nc.belief(task.X_tr, task.Y_tr, task.X_te[..., :3])
    with pytest.raises(ValueError, match="bins must be 0 but for one real target"):
        NeuralComplexity(3, 2, for_tables=True, bins=8)
    with pytest.raises(ValueError, match="symmetric must be off for tables"):
        NeuralComplexity(3, 2, for_tables=True, loss="cross_entropy", symmetric=True)
    with pytest.raises(ValueError, match="bins must be at least 1 for tables of real targets"):
        NeuralComplexity(3, 1, for_tables=True)


@kinds
def test_an_nc_for_tables_is_saved_and_differentiable_in_predictions(
    classes: int, tmp_path: pytest.TempPathFactory
) -> None:
    nc, task = make_nc(classes), make_task(classes)
    path = f"{tmp_path}/nc.safetensors"
    nc.save(path)
    again = NeuralComplexity.load(path).double()
    C = classes or 1
    H_tr = torch.randn(2, 12, C, dtype=torch.double)
    H_te = torch.randn(2, 6, C, dtype=torch.double, requires_grad=True)
    first, second = (n.predict(task.X_tr, task.Y_tr, H_tr, task.X_te, H_te) for n in (nc, again))
    close(first, second)
    (gradient,) = torch.autograd.grad(first.sum(), H_te)
    assert (gradient != 0).any()


@pytest.fixture(params=[0, 10])
def single(request: pytest.FixtureRequest) -> NeuralComplexity:
    return make_nc(request.param).float()


@pytest.mark.parametrize("features", [1, 3, 40])
def test_models_of_any_table_are_assessed(single: NeuralComplexity, features: int) -> None:
    random = np.random.default_rng(0)
    X_tr, X_te = random.normal(size=(30, features)), random.normal(size=(7, features))
    y = (X_tr[:, 0] > 0).astype(int) if single.labels else X_tr[:, 0].copy()
    kind = tree.DecisionTreeClassifier if single.labels else tree.DecisionTreeRegressor
    X_tr[3, 0] = X_te[2, -1] = np.nan  # which trees know how to handle
    found = single.assess(kind().fit(X_tr, y), X_tr, y, X_te)
    assert np.isfinite(found.loss_te)
    assert found.points.shape == (7,)
    with pytest.raises(ValueError, match="X_te must be finite, got NaN or infinity at 1 of 7"):
        single.assess(kind().fit(X_tr, y), X_tr, y, np.where(X_te == X_te[0, 0], np.inf, X_te))
    with pytest.raises(ValueError, match=r"X_tr must be \(points, features\), got shape"):
        single.assess(kind(), np.zeros((2, 1, 8, 8)), y[:2], X_te)


@pytest.mark.filterwarnings("ignore:NC is not trusted")
def test_models_of_any_table_are_regularized(single: NeuralComplexity) -> None:
    torch.manual_seed(0)
    model, X = nn.Linear(4, 3 if single.labels else 1), torch.randn(20, 4)
    y = torch.arange(20) % 3 if single.labels else torch.randn(20)
    penalty = NCRegularizer(single, safeguard=False)
    penalty(model, X, y, torch.randn(9, 4)).backward()
    assert model.weight.grad is not None
    assert (model.weight.grad != 0).any()
    kind = NCClassifier if single.labels else NCRegressor
    estimator = kind(single, steps=3, hidden=(4,), random_state=0)
    estimator.fit(X.numpy(), y.numpy(), X_unlabelled=torch.randn(9, 4).numpy())
    assert estimator.predict(X.numpy()).shape == (20,)


def test_a_missing_value_does_not_take_trust_away() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(80, 3))
    y = (X[:, 0] > 0).astype(int)
    nc = EstimatorNC(LogisticRegression()).double()
    missing = EstimatorNC(HistGradientBoostingClassifier()).double()
    X_tr, Y_tr = torch.from_numpy(X)[None], torch.from_numpy(y)[None]
    whole = trust(nc, X_tr, Y_tr, classes=2)
    assert whole > 0.5
    X_tr[0, 5, 1] = torch.nan
    assert trust(missing, X_tr, Y_tr, classes=2) > 0.3


def test_columns_that_vary_by_rounding_are_constant_and_large_ones_are_numbers() -> None:
    X_tr = torch.full((1, 50, 2), 0.1, dtype=torch.float32)
    X_tr[0, :, 1] = 1e38 * torch.linspace(-3, 3, 50)
    X_te = torch.tensor([[[0.1, 3e38], [0.11, -3e38]]])
    seen = describe_cells(X_tr, X_te)
    assert seen.isfinite().all()
    assert seen[0, :50, 0, 0].abs().max() < 1e-4
    assert seen[0, 51, 0, 0].abs() < 1
    assert seen[0, 50:, 1, 0].tolist() == pytest.approx([1.7, -1.7], abs=0.1)


@pytest.mark.parametrize("classes", [0, 3])
def test_units_of_tables_need_no_sample(classes: int) -> None:
    bins = {} if classes else {"bins": 8}
    nc = NeuralComplexity.for_tasks(make_task(classes), for_tables=True, width=8, **bins)
    assert nc.x_mean.shape == (1,)
    with pytest.raises(ValueError, match="for_tables must be off but for the posterior head"):
        NeuralComplexity(3, 1, head="direct", for_tables=True)
    with pytest.raises(ValueError, match="for_tables must be off but for .* features"):
        NeuralComplexity((1, 8, 8), 1, for_tables=True)


def test_calibration_knows_tables_of_any_unit() -> None:
    nc, task = make_nc(), make_task(tables=6)
    H_tr, H_te = (torch.randn(6, n, 10, dtype=torch.double) for n in (12, 6))
    snapshot = Snapshot(task.X_tr, task.Y_tr, H_tr, task.X_te, H_te)
    snapshot.X_tr[:, 3, 2] = torch.nan
    nc.calibrate([(snapshot, task.Y_te)])
    assert nc.calibration is not None
    first = features(nc, snapshot, judge(nc, snapshot))
    larger = Snapshot(100 * task.X_tr, task.Y_tr, H_tr, 100 * task.X_te, H_te)
    close(features(nc, larger, judge(nc, larger)), first, rtol=1e-5, atol=1e-6)


def test_an_nc_for_tables_is_not_exported(tmp_path: pytest.TempPathFactory) -> None:
    with pytest.raises(ValueError, match="nc must be for inputs of one size for ONNX, got one for"):
        make_nc().float().to_onnx(f"{tmp_path}/nc.onnx")
