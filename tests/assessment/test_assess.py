import json
import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from assessed import KINDS, LABELS, calibrated, draw, example, make, outputs_of, shape
from neural_complexity.assessment import assess as assess_module
from neural_complexity.assessment.assess import assess, assess_predictions
from neural_complexity.assessment.result import Assessment
from neural_complexity.convert import arrays_in
from neural_complexity.losses import cross_entropy, squared_error
from neural_complexity.model.card import Card, HeldOutReport
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.regularizers.nc import trust
from neural_complexity.reliability.gap_bounds import METHODS

SHIPPED = ["sinusoid", "sinusoid-direct", "omniglot", "omniglot-direct"]


def sentence(error: BaseException) -> str:
    said = str(error)
    assert " must " in said, said
    assert "got" in said, said
    assert "\n" not in said
    assert not said.endswith(".")
    assert len(said) < 300, said
    return said


def check_finite(found: Assessment, M: int, N: int) -> None:
    assert found.training_points == M
    assert found.points.shape == (N,)
    assert np.isfinite(found.points).all()
    for value in (found.gap, found.loss_tr, found.loss_te, found.spread):
        assert math.isfinite(value)
    for share in (found.accuracy_tr, found.accuracy_te, found.trust):
        assert share is None or -1e-6 <= share <= 1 + 1e-6
    assert found.loss_te == pytest.approx(found.points.mean())
    rounding = 1e-5 * max(1.0, found.loss_tr)
    assert found.gap == pytest.approx(found.loss_te - found.loss_tr, abs=rounding, rel=1e-4)
    json.dumps(found.to_dict(), allow_nan=False)
    assert len(repr(found).splitlines()) <= 12


TROUBLES = [
    *("none", "none", "none", "NaN", "infinity", "huge", "text", "None", "ragged", "flat"),
    *("complex", "short", "columns", "cube", "objects"),
]


def spoil(values: NDArray[Any], trouble: str, C: int) -> Any:
    """Does something to an array that its owner would not want."""
    if trouble in ("NaN", "infinity", "huge"):
        values = values.astype(np.float64)
        values.reshape(-1)[-1:] = {"NaN": np.nan, "infinity": -np.inf, "huge": 1e300}[trouble]
        return values
    if trouble == "ragged":
        return [[1.0], [1.0, 2.0], *values.tolist()]
    changes: dict[str, Any] = {
        "text": lambda: np.full(values.shape, "seven"),
        "None": lambda: None,
        "flat": lambda: values.reshape(-1)[: C + 1],
        "complex": lambda: values * 1j,
        "short": lambda: values[:-1],
        "columns": lambda: values[..., None] * np.ones(C + 1),
        "cube": lambda: values[None],
        "objects": lambda: [object() for _ in values],
    }
    return changes[trouble]()


@given(
    kind=st.sampled_from([*KINDS, "sinusoid", "sinusoid-direct"]),
    M=st.sampled_from([0, 1, 2, 5, 300]),
    N=st.sampled_from([0, 1, 7]),
    C=st.sampled_from([1, 2, 3, 40]),
    where=st.integers(0, 4),
    trouble=st.sampled_from(TROUBLES),
    dtype=st.sampled_from(["float16", "float32", "float64", "int64", "bool", "bfloat16", "list"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=120)
def test_whatever_comes_the_answer_is_finite_or_one_sentence(
    kind: str, M: int, N: int, C: int, where: int, trouble: str, dtype: str, seed: int
) -> None:
    nc = make(kind)
    given: list[Any] = draw(nc, M, N, C, seed)
    if trouble != "none":
        given[where] = spoil(given[where], trouble, C)
    elif dtype == "bfloat16":
        given[where] = torch.from_numpy(given[where]).to(torch.bfloat16)
    elif dtype == "list":
        given[where] = given[where].tolist()
    elif not (where == 1 and nc.labels and dtype == "bool"):
        given[where] = given[where].astype(dtype)
    fits = M > 0 and N > 0 and (nc.symmetric or nc.outputs == C)
    X_tr, y_tr, H_tr, X_te, H_te = given
    try:
        found = assess_predictions(nc, X_tr, y_tr, H_tr, X_te, H_te)
    except (ValueError, TypeError) as error:
        said = sentence(error)
        assert trouble != "none" or not fits, said
    else:
        check_finite(found, M, N)
        # What was done may be harmless: an axis of one, or a number that is not too large.
        harmless = trouble in ("none", "huge", "columns", "cube", "flat")
        assert harmless or (trouble == "short" and where == 1 and M == 0)


@pytest.mark.parametrize("C", [1, 2, 10, 1000])
def test_any_number_of_classes(C: int) -> None:
    for kind in ("labels", "images"):
        check_finite(assess_predictions(make(kind), *draw(make(kind), 30, 20, C)), 30, 20)
    with pytest.raises(ValueError, match=f"one column for each of 3 classes, got {C}"):
        assess_predictions(make("labels direct"), *draw(make("labels direct"), 30, 20, C))


@pytest.mark.parametrize("kind", SHIPPED)
def test_what_ships_answers_for_any_model(kind: str) -> None:
    torch.set_default_dtype(torch.float32)  # as users run it
    nc = NeuralComplexity.pretrained(kind)
    X_tr, y_tr, _, X_te, _ = draw(nc, 12, 9, nc.outputs)
    model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape(nc)), nc.outputs))
    check_finite(nc.assess(model.double(), X_tr, y_tr, X_te), 12, 9)


@pytest.mark.parametrize("kind", KINDS)
def test_small_sets_are_judged_as_by_predict_however_they_come(kind: str) -> None:
    nc = make(kind)
    X, y, _, Z, _ = draw(nc, 6, 5, nc.outputs)
    model = outputs_of(nc)
    X_tr, X_te, Y_tr = torch.from_numpy(X), torch.from_numpy(Z), torch.from_numpy(y)
    five = [t.detach().unsqueeze(0) for t in (X_tr, Y_tr, model(X_tr), X_te, model(X_te))]
    found = nc.assess(model, X, y, Z)
    assert found.gap == pytest.approx(nc.predict(*five).item())
    assert found.loss_te == pytest.approx(nc.predict_loss(*five).item())
    loss = cross_entropy if nc.labels else squared_error
    assert found.loss_tr == pytest.approx(loss(five[2], five[1]).mean().item())
    if nc.labels:
        right = (model(X_tr).argmax(dim=1) == Y_tr).double().mean().item()
        assert found.accuracy_tr == pytest.approx(right)
    if nc.labels and "direct" not in kind:
        assert found.accuracy_te == pytest.approx(nc.predict_accuracy(*five).item())
    pairs, alone = TensorDataset(X_tr, Y_tr), TensorDataset(X_te, torch.zeros(5))
    for other in (
        nc.assess(model, X.tolist(), y.tolist(), Z.tolist()),
        nc.assess(model, pairs, X_te=TensorDataset(X_te)),
        nc.assess(model, DataLoader(pairs, batch_size=4), None, DataLoader(alone, batch_size=4)),
        nc.assess(lambda points: model(points).detach().numpy(), X_tr, Y_tr, X_te),
        assess_predictions(nc, X, y, five[2][0], Z, five[4][0].numpy()),
    ):
        assert np.array_equal(other.points, found.points)
        assert repr(other) == repr(found)
    batches = BatchSampler(RandomSampler(alone), 2, drop_last=False)
    for loader in (DataLoader(alone, shuffle=True), DataLoader(alone, batch_sampler=batches)):
        mixed = nc.assess(model, pairs, X_te=loader)
        np.testing.assert_allclose(sorted(mixed.points), sorted(found.points))
        assert "a DataLoader that shuffles" in mixed.warnings[-1]
        assert mixed.warnings[:-1] == found.warnings
    order = np.random.default_rng(0).permutation(5)
    turned = nc.assess(model, X, y, Z[order])
    np.testing.assert_allclose(turned.points, found.points[order])
    assert [order[i] for i in turned.worst()] == found.worst()
    assert found.worst(2) == found.worst()[:2]
    assert found.points[found.worst(1)[0]] == found.points.max()
    with pytest.raises(ValueError, match="k must be at least 0, got -1"):
        found.worst(-1)


def test_estimators_are_judged_by_their_probabilities_in_the_order_of_the_classes() -> None:
    nc = make("labels")
    g = np.random.default_rng(0)
    X, Z = g.normal(size=(40, 2)), g.normal(size=(9, 2))
    y = np.array(["cat", "dog", "eel"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    model = LogisticRegression().fit(X, y)
    found = nc.assess(model, X, y, Z)
    numbered = np.searchsorted(model.classes_, y)
    same = assess_predictions(
        nc, X, numbered, model.predict_log_proba(X), Z, model.predict_log_proba(Z)
    )
    np.testing.assert_allclose(found.points, same.points)
    assert found.accuracy_tr == pytest.approx(model.score(X, y))
    # An NC that remembers the names of its classes finds the columns by them.
    named = NeuralComplexity(2, 4, **LABELS)
    named.card = Card(classes=("eel", "ant", "cat", "dog"))
    by_name = named.assess(model, X, y, Z)
    lost = np.full((40 + 9, 4), np.log(1e-7))
    lost[:, [2, 3, 0]] = np.concatenate([model.predict_log_proba(X), model.predict_log_proba(Z)])
    y_named = [("eel", "ant", "cat", "dog").index(label) for label in y]
    named.card = Card()
    by_number = assess_predictions(named, X, y_named, lost[:40], Z, lost[40:])
    np.testing.assert_allclose(by_name.points, by_number.points)
    with pytest.raises(ValueError, match="y_tr must hold numbers|must hold labels of the classes"):
        named.assess(model, X, y, Z)
    with pytest.raises(TypeError, match="must be a regressor"):
        make("real").assess(model, X, X[:, 0], Z)
    check_finite(make("real").assess(Ridge().fit(X, X[:, 0]), X, X[:, 0], Z), 40, 9)


def test_columns_may_be_named_in_any_order() -> None:
    nc = make("labels")
    X, y, H, Z, G = draw(nc, 20, 6, 3)
    names = np.array(["a", "b", "c"])
    found = assess_predictions(nc, X, y, H, Z, G)
    order = [2, 0, 1]
    turned = assess_predictions(
        nc, X, names[y], H[:, order], Z, G[:, order], classes=names[order].tolist()
    )
    np.testing.assert_allclose(turned.points, found.points)
    for classes, said in (
        (["a", "b"], "one column for each of 2 classes, got 3"),
        (["a", "b", "b"], "classes must be different from each other"),
        (["a", "b", "d"], "y_tr must hold labels of the classes a, b, d, got 'c'"),
    ):
        with pytest.raises(ValueError, match=said):
            assess_predictions(nc, X, names[y], H, Z, G, classes=classes)
    with pytest.raises(ValueError, match="a single logit z of two classes is the columns 0 and z"):
        assess_predictions(nc, X, y.clip(0, 1), H[:, :1], Z, G[:, :1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"y_tr": None}, "y_tr must be the training targets, got None"),
        ({"X_te": None}, "X_te must be test inputs, which need no labels, got None"),
        ({"model": "forest"}, "model must be a callable"),
        ({"confidence": 1.5}, "confidence must be between 0 and 1, got 1.5"),
        ({"method": "hope"}, "method must be one of conformal, normalised"),
        ({"X_te": np.zeros((3, 5))}, r"X_te must be \(points, 2\), got shape \(3, 5\)"),
        ({"y_tr": [0.5] * 6}, "y_tr must hold whole numbers as labels, got 0.5"),
        ({"y_tr": [0] * 5}, "y_tr must be one for each of the 6 points, got 5 of them"),
        ({"y_tr": ["a"] * 6}, "y_tr must hold numbers, got text: 'a'"),
    ],
)
def test_mistakes_are_told_in_one_sentence(change: dict[str, Any], said: str) -> None:
    nc = make("labels")
    X_tr, y_tr, _, X_te, _ = draw(nc, 6, 5, 3)
    right = {"model": outputs_of(nc), "X_tr": X_tr, "y_tr": y_tr, "X_te": X_te}
    with pytest.raises((ValueError, TypeError), match=said) as caught:
        assess(nc=nc, **{**right, **change})
    sentence(caught.value)


def test_what_looks_like_probabilities_is_warned_of() -> None:
    nc = make("labels")
    X, y, H, Z, G = draw(nc, 20, 6, 3)
    shares, more = (torch.from_numpy(h).softmax(dim=1) for h in (H, G))
    warned = assess_predictions(nc, X, y, shares, Z, more).warnings
    assert warned[0].startswith("The predictions look like probabilities")
    assert assess_predictions(nc, X, y, H, Z, G).warnings[0] != warned[0]


def test_numbers_too_large_to_square_are_told() -> None:
    nc = make("real")
    X, y, H, Z, G = draw(nc, 4, 3, 1)
    with pytest.raises(ValueError, match="of a size that losses can be computed from, got inputs"):
        assess_predictions(nc, X, y, H, Z, 1e200 * G)


def test_trust_is_measured_once_for_the_same_training_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X, noise = np.random.default_rng(0).normal(size=(2, 30, 2))
    asked = []

    def counted(*points: Any, **options: Any) -> torch.Tensor:
        asked.append(points)
        return trust(*points, **options)

    monkeypatch.setattr(assess_module, "trust", counted)
    model = Ridge().fit(X, noise[:, 0])
    first, second = (assess(model, X, noise[:, 0], X + move) for move in (0, 1))
    assert len(asked) == 1
    assert first.trust == second.trust
    assess(model, X, noise[:, 1], X)
    assert len(asked) == 2


def test_trust_looks_at_pairs_of_a_class_where_there_are_many() -> None:
    nc = make("labels")
    X, _, _, Z, _ = draw(nc, 1200, 3, 1)
    y = np.arange(1200) % 1000  # two points of 200 classes
    found = assess_predictions(nc, X, y, np.zeros((1200, 1000)), Z, np.zeros((3, 1000)))
    assert found.trust is not None


def test_a_known_function_is_judged_right() -> None:
    """The NC that ships knows how far a line is from a sinusoid."""
    torch.set_default_dtype(torch.float32)
    nc = NeuralComplexity.pretrained("sinusoid")
    g = np.random.default_rng(0)
    X, Z = g.uniform(-5, 5, (10, 1)), g.uniform(-5, 5, (200, 1))
    line = Ridge().fit(X, 2 * np.sin(X + 1))
    found = nc.assess(line, X, 2 * np.sin(X + 1), Z)
    true = (line.predict(Z).reshape(-1) - 2 * np.sin(Z[:, 0] + 1)) ** 2
    assert found.loss_te == pytest.approx(true.mean(), rel=0.1)
    assert np.corrcoef(found.points, true)[0, 1] > 0.9
    assert found.trust is not None
    assert found.trust > 0.9


def test_columns_and_arguments_in_the_wrong_place_are_noticed() -> None:
    import pandas

    nc = make("labels")
    X, y, _, Z, _ = draw(nc, 6, 5, nc.outputs)
    a, b = (pandas.DataFrame(points).add_prefix("c") for points in (X, Z))
    model = outputs_of(nc)
    assert nc.assess(model, a, y, b).gap == nc.assess(model, X, y, Z).gap
    with pytest.raises(ValueError, match="X_te must have the columns of X_tr in their order, got"):
        nc.assess(model, a, y, b[b.columns[::-1]])
    pairs = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    with pytest.raises(TypeError, match="y_tr must be the training targets, got a TensorDataset: "):
        nc.assess(model, pairs, pairs)
    wrong = torch.nn.functional.one_hot((torch.from_numpy(y) + 1) % nc.outputs, nc.outputs)
    told = assess_predictions(nc, X, y, 9.0 * wrong, Z, torch.randn(5, nc.outputs)).warnings
    assert any("0.0 % of its training points right, fewer than by chance" in t for t in told)


def test_doubts_are_told() -> None:
    found = example()
    assert any("not calibrated" in warning for warning in found.warnings)
    assert found.bound is None
    nc = make("labels")
    X, _, H, Z, G = draw(nc, 3, 4, 3)
    alone = assess_predictions(nc, X, [0, 1, 2], H, Z, G)
    assert alone.trust is None
    assert any("cannot be measured on 3 training points" in w for w in alone.warnings)
    # An untrained NC understands nothing.
    noise = assess_predictions(make("real"), *draw(make("real"), 50, 5, 1))
    assert noise.trust is not None
    assert noise.trust < 0.3
    assert any("does not understand this training set" in w for w in noise.warnings)


def test_test_points_that_nc_learned_from_are_told() -> None:
    nc = deepcopy(make("labels"))
    X, y, _, Z, _ = draw(nc, 6, 5, nc.outputs)
    model = outputs_of(nc)
    learned = nc.card.remember([torch.from_numpy(X), torch.from_numpy(Z[:2])])
    nc.card = replace(nc.card, learned_from=learned)
    told = nc.assess(model, X, y, np.asfortranarray(Z)).warnings
    assert any("trained on the inputs of 2 of the 5 test" in warning for warning in told)
    assert not any("trained on the inputs" in w for w in nc.assess(model, X, y, Z[2:]).warnings)


def test_what_went_wrong_when_nc_was_made_is_told() -> None:
    nc = deepcopy(make("labels"))
    X, y, _, Z, _ = draw(nc, 6, 5, nc.outputs)
    found = nc.assess(outputs_of(nc), X, y, Z)
    nc.card = Card(report=HeldOutReport(verdict="NC cannot. Do not."))
    assert nc.assess(outputs_of(nc), X, y, Z).warnings[0] == "When it was made: NC cannot. Do not."
    kind = {"what": "training loss", "from": 0.0, "to": 99.0, "mean_error": 0.1, "bias": 9.0}
    nc.card = Card(report=HeldOutReport(beats_the_mean_gap=True, kinds=(kind,)))
    assert "gaps were too large by 9 on" in nc.assess(outputs_of(nc), X, y, Z).warnings[0]
    kind["bias"] = 0.01 * found.gap
    assert nc.assess(outputs_of(nc), X, y, Z).warnings == found.warnings


def test_a_calibrated_nc_bounds_the_gap_and_tells_strangers() -> None:
    nc, learner = calibrated()
    usual = [t[0] for t in learner(1).tensors()]
    found = assess_predictions(nc, *usual, confidence=0.9)
    assert found.bound is not None
    assert found.bound.low <= found.gap <= found.bound.high
    assert found.bound.low >= -found.loss_tr - 1e-9
    assert found.unlike is not None
    assert found.unlike.p_value > 0.05
    assert not any("shift" in w or "sizes" in w or "calibrat" in w for w in found.warnings)
    assert f"p = {found.unlike.p_value:.2g}" in repr(found)
    X, y, H, Z, G = usual
    odd = assess_predictions(nc, X, y, H + 50, Z, G + 50)
    assert any("differs from what NC was calibrated on" in warning for warning in odd.warnings)
    many = assess_predictions(nc, X.repeat(9, 1), y.repeat(9, 1), H.repeat(9, 1), Z, G)
    assert any("72 training points against 8" in warning for warning in many.warnings)
    few, enough = (assess_predictions(calibrated(n)[0], *usual).warnings for n in (19, 20))
    assert any("calibrated on 19 learners, too few to test" in warning for warning in few)
    assert not any("too few to test" in warning for warning in enough)
    sure = assess_predictions(nc, *usual, confidence=0.999)
    assert sure.bound is not None
    assert math.isinf(sure.bound.high)
    assert any("too few" in warning for warning in sure.warnings)
    json.dumps(sure.to_dict(), allow_nan=False)
    assert len(sure.plot().axes) == 2
    for method in METHODS:
        got = assess_predictions(nc, *usual, confidence=0.8, method=method).bound
        assert got is not None
        assert got.method == method


def test_inputs_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked, check = [], arrays_in.inputs

    def inputs(name: str, X: object, **options: Any) -> torch.Tensor:
        checked.append(name)
        return check(name, X, **options)

    monkeypatch.setattr(arrays_in, "inputs", inputs)
    nc = make("real")
    X_tr, y_tr, _, X_te, _ = draw(nc, 8, 5, 1)
    assess(outputs_of(nc), X_tr, y_tr, X_te, nc=nc)
    assert checked == ["X_tr", "X_te"]


def test_a_training_loss_too_large_for_a_number_is_refused() -> None:
    nc = make("real")
    X, y, H, Z, G = draw(nc, 4, 3, 1)
    with pytest.raises(ValueError, match="loss on X_tr must be a finite number, got one too large"):
        assess_predictions(nc, X, y, 1e200 * H, Z, G)
