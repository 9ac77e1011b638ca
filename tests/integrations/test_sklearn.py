import io
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import joblib  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from neural_complexity.beliefs import Categorical
from neural_complexity.integrations import sklearn as estimators
from neural_complexity.integrations.sklearn import NCClassifier, NCRegressor, Training
from neural_complexity.learners.fit import Recipe, evaluate
from neural_complexity.learners.networks import mlp
from neural_complexity.losses import cross_entropy
from neural_complexity.model.cached import CachedStates, Encoder
from neural_complexity.model.card import Card
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import raw
from neural_complexity.regularizers.nc import minibatch_penalty, trust
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task

QUICK: dict[str, Any] = {"steps": 20, "lr": 0.1, "hidden": (8,)}


@parametrize_with_checks([NCClassifier(**QUICK), NCRegressor(**QUICK)])  # type: ignore[untyped-decorator]
def test_scikit_learn_is_content(estimator: Any, check: Any) -> None:
    check(estimator)


def labelled_nc(**more: Any) -> NeuralComplexity:
    options: dict[str, Any] = {"loss": "cross_entropy", "symmetric": True, "metric": True, **more}
    torch.manual_seed(1)
    return NeuralComplexity(3, 3, width=8, heads=2, **options).float()


def real_nc(**more: Any) -> NeuralComplexity:
    torch.manual_seed(1)
    return NeuralComplexity(3, 1, width=8, heads=2, **more).float()


def draw(P: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(P, 3))


X, NAMES = draw(40), np.array(["b", "c", "a"])
LABELS, REALS = NAMES[np.arange(40) % 3], X[:, 0] - 5 * X[:, 1]


def state(model: Any) -> list[torch.Tensor]:
    return list(model.network_.state_dict().values())


def alike(a: Any, b: Any) -> bool:
    return all(torch.equal(one, other) for one, other in zip(state(a), state(b), strict=True))


@pytest.mark.parametrize("head", ["posterior", "direct"])
@pytest.mark.parametrize("labels", [True, False])
def test_nc_regularizes_judges_and_is_left_alone(head: Any, labels: bool) -> None:
    torch.set_default_dtype(torch.float32)  # networks without NC are of this type
    nc = labelled_nc(head=head) if labels else real_nc(head=head)
    y, kind = (LABELS, NCClassifier) if labels else (REALS, NCRegressor)
    before = [value.clone() for value in nc.state_dict().values()]
    options: dict[str, Any] = {**QUICK, "random_state": 0, "safeguard": False, "floor": None}
    plain = kind(**QUICK, random_state=0).fit(X, y)
    U = draw(30, seed=1)
    inductive, transductive = (kind(nc, **options).fit(X, y, more) for more in (None, U))
    for model in (inductive, transductive):
        assert not alike(plain, model)
        assert np.isfinite(model.gap_)
        assert model.predict(U).shape == (30,)
        assert not hasattr(model, "trust_")
    assert alike(plain, kind(nc, **{**options, "weight": 0.0}).fit(X, y, U))
    assert not hasattr(plain, "gap_")
    assert all(torch.equal(a, b) for a, b in zip(before, nc.state_dict().values(), strict=True))
    assert all(parameter.grad is None for parameter in nc.parameters())


@pytest.mark.parametrize("head", ["posterior", "direct"])
@pytest.mark.parametrize("labels", [True, False])
def test_the_attributes_are_what_nc_says(head: Any, labels: bool) -> None:
    nc = labelled_nc(head=head) if labels else real_nc(head=head)
    y, kind = (LABELS, NCClassifier) if labels else (REALS, NCRegressor)
    U = draw(30, seed=1)
    model = kind(nc, **QUICK, random_state=0).fit(X, y, U)
    X_tr, X_te = (torch.from_numpy(part).float()[None] for part in (X, U))
    place = torch.from_numpy(np.unique(LABELS, return_inverse=True)[1])
    Y = place[None] if labels else torch.from_numpy(REALS).float()[None, :, None]
    assert model.trust_ == pytest.approx(trust(nc, X_tr, Y).item(), rel=1e-3, abs=1e-4)
    with torch.no_grad():
        H_tr, H_te = (model.network_(part[0])[None] for part in (X_tr, X_te))
        assert model.gap_ == pytest.approx(nc.predict(X_tr, Y, H_tr, X_te, H_te).item(), rel=1e-3)
    assert not model.network_.training
    if labels:
        assert model.classes_.tolist() == ["a", "b", "c"]
        probabilities = model.predict_proba(U)
        assert (model.classes_[probabilities.argmax(axis=1)] == model.predict(U)).all()
    else:
        assert model.predict(U) == pytest.approx(H_te[0, :, 0].numpy())


def test_an_nc_that_knows_less_than_the_labels_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.set_default_dtype(torch.float32)  # so that NC's precision is that of a plain estimator
    place = torch.from_numpy(np.unique(LABELS, return_inverse=True)[1])

    def believe_wrongly(nc: NeuralComplexity, task: Task, *_: Any, **__: Any) -> CachedStates:
        indices = raw(task.X_te).sort(dim=1).values
        wrong = torch.nn.functional.one_hot((place[indices % 40] + 1) % 3, 3)
        return CachedStates(indices, Categorical(5.0 * wrong.to(torch.get_default_dtype())))

    monkeypatch.setattr(estimators, "proof", lambda *_, **__: torch.ones(1))
    monkeypatch.setattr(estimators, "cache", believe_wrongly)
    nc = labelled_nc()
    options: dict[str, Any] = {"steps": 40, "random_state": 0}
    guarded = NCClassifier(nc, **options).fit(X, LABELS, X_unlabelled=X)
    bold = NCClassifier(nc, **options, weight=1, safeguard=False).fit(X, LABELS, X_unlabelled=X)
    plain = NCClassifier(**options).fit(X, LABELS)
    assert guarded.weight_ == 0
    assert (guarded.predict_proba(X) == plain.predict_proba(X)).all()
    assert bold.score(X, LABELS) < plain.score(X, LABELS)


PLACES = torch.from_numpy(np.unique(LABELS, return_inverse=True)[1])


def remembering(points: slice, monkeypatch: pytest.MonkeyPatch) -> NeuralComplexity:
    """Returns an NC that learned from some points, whose labels it knows, and nothing else."""

    def believe(nc: NeuralComplexity, task: Task, *_: Any, **__: Any) -> CachedStates:
        indices = raw(task.X_te).sort(dim=1).values
        known = torch.isin(indices % 40, torch.arange(40)[points])
        right = torch.nn.functional.one_hot(PLACES[indices % 40], 3)
        wrong = torch.nn.functional.one_hot((PLACES[indices % 40] + 1) % 3, 3)
        belief = Categorical(9.0 * torch.where(known[..., None], right, wrong))
        return CachedStates(indices, belief)

    monkeypatch.setattr(estimators, "proof", lambda *_, **__: torch.ones(1))
    monkeypatch.setattr(estimators, "cache", believe)
    nc = labelled_nc()
    nc.card = Card(learned_from=nc.card.remember([torch.from_numpy(X[points])]))
    return nc


def test_nc_is_not_tested_on_points_that_it_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an NC that knows their labels by heart, and nothing else, would pass."""
    nc = remembering(slice(30), monkeypatch)
    options: dict[str, Any] = {"steps": 40, "random_state": 0}
    assert NCClassifier(nc, **options).fit(X, LABELS, X_unlabelled=X).weight_ == 0
    nc.card = Card()
    assert NCClassifier(nc, **options).fit(X, LABELS, X_unlabelled=X).weight_ > 0


@pytest.mark.parametrize(("cost", "helps"), [(0.0, True), (None, False), (100.0, False)])
def test_an_nc_that_learned_from_all_points_is_held_to_what_it_believes_of_others(
    monkeypatch: pytest.MonkeyPatch, cost: float | None, helps: bool
) -> None:
    nc = remembering(slice(None), monkeypatch)
    nc.card = replace(nc.card, belief_loss=cost)
    model = NCClassifier(nc, steps=40, random_state=0).fit(X, LABELS, X_unlabelled=X)
    assert (model.weight_ > 0) == helps


def test_what_an_earlier_fit_found_is_gone_and_weights_may_be_an_array() -> None:
    model = NCClassifier(labelled_nc(), **QUICK, random_state=0, weight=np.array([1, 0.1]))
    assert model.fit(X, LABELS).weight_ in (1.0, 0.1, 0.0)
    model.set_params(nc=None).fit(X, LABELS)
    assert not any(hasattr(model, name) for name in ("weight_", "trust_", "gap_"))


def test_an_nc_that_is_not_trusted_is_left_out_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimators, "proof", lambda *_, **__: torch.zeros(1))
    with pytest.warns(UserWarning, match="NC is not trusted .* on the scale that it was made with"):
        assert NCClassifier(labelled_nc(), **QUICK).fit(X, LABELS).weight_ == 0


def test_only_what_is_clearly_better_takes_the_place_of_the_usual() -> None:
    usual, noise = torch.ones(100), torch.randn(100, generator=torch.Generator().manual_seed(0))
    noise = noise - noise.mean()
    slightly, clearly = usual - 0.05 + noise, usual - 0.3 + noise  # the standard error is 0.1
    assert estimators._clearly_best([usual, slightly], 0) == 0
    assert estimators._clearly_best([slightly, usual], 1) == 1
    assert estimators._clearly_best([usual, clearly], 0) == 1
    diverged = torch.full((100,), estimators.LARGEST)
    assert estimators._clearly_best([diverged, usual], 0) == 1


@pytest.mark.parametrize(("weight", "chosen"), [((0.5, 3.0), 0.5), (0.2, 0.2), ((0.0,), 0.0)])
def test_where_nothing_can_be_told_the_first_weight_is_taken(weight: Any, chosen: float) -> None:
    model = NCClassifier(labelled_nc(), **QUICK, weight=weight, safeguard=False)
    assert model.fit(X[:9], LABELS[:9]).weight_ == chosen


def test_labels_go_by_the_names_that_nc_remembers() -> None:
    """An NC that tells classes apart must be told which is which; one not seen has no column."""
    nc = labelled_nc(symmetric=False, metric=False)
    nc.card = Card(classes=("c", "a", "b"))
    some = LABELS != "b"
    model = NCClassifier(nc, **QUICK, random_state=0, safeguard=False).fit(X[some], LABELS[some])
    assert model._columns.tolist() == [1, 0]
    assert model.predict_proba(X).shape == (40, 2)
    assert model.score(X[some], LABELS[some]) > 0.5
    with pytest.raises(ValueError, match="y must hold labels of the classes c, a, b, got 'd'"):
        NCClassifier(nc, **QUICK).fit(X, np.where(some, LABELS, "d"))


def test_models_survive_joblib_and_clone() -> None:
    model = NCClassifier(labelled_nc(), **QUICK, random_state=0).fit(X, LABELS)
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    again = joblib.load(file)
    assert (again.predict_proba(X) == model.predict_proba(X)).all()
    assert alike(again.fit(X, LABELS), model)
    assert alike(clone(model).fit(X, LABELS), model)


def test_nc_may_be_a_name_or_a_path_and_see_images(tmp_path: Path) -> None:
    line = np.linspace(-3, 3, 12)[:, None]
    model = NCRegressor("sinusoid", **QUICK, random_state=0).fit(line, np.sin(line[:, 0]))
    assert model.trust_ > 0.5
    torch.manual_seed(0)
    nc = NeuralComplexity(
        (1, 8, 8), 10, loss="cross_entropy", symmetric=True, width=8, heads=2, channels=4
    )
    nc.save(tmp_path / "nc.safetensors")
    pixels, digit = load_digits(return_X_y=True)
    path = str(tmp_path / "nc.safetensors")
    images = NCClassifier(path, **QUICK).fit(pixels[:100] / 16, digit[:100])
    assert images.predict(pixels[:5] / 16).shape == (5,)
    assert 0 <= images.trust_ <= 1


def test_what_does_not_fit_is_refused_in_one_sentence() -> None:
    wrong: Any = 7
    wrong_type: Any = "heavy"
    cases: list[tuple[Any, Any, Any, str]] = [
        (NCClassifier(wrong), X, LABELS, "nc must be a NeuralComplexity, a path, a name or None"),
        (NCClassifier(weight=()), X, LABELS, r"weight must be one or several .*, got \(\)"),
        (NCRegressor(weight=[1, -1]), X, REALS, r"weight must be .* numbers from 0, got \[1, -1\]"),
        (NCRegressor(weight=wrong_type), X, REALS, "weight must be .* numbers from 0, got heavy"),
        (NCClassifier("cat"), X, LABELS, "nc must be a safetensors file or one of .*, got cat"),
        (NCClassifier(real_nc()), X, LABELS, "nc must be for labels, got one for real targets"),
        (NCRegressor(labelled_nc()), X, REALS, "nc must be for real targets, got one for labels"),
        (NCRegressor(real_nc()), X[:, :2], REALS, "X must have 3 features as NC's inputs have"),
        (NCRegressor(real_nc()), X[:1], REALS[:1], "X must have at least 2 points.*n_samples=1"),
        (NCClassifier(labelled_nc()), X[:3], LABELS[:3], "the safeguard must have two training"),
        (NCRegressor(steps=3), X, 1e300 * REALS, "y must hold numbers of ordinary size, got"),
        (NCRegressor(steps=9, lr=1e200), X, REALS, "lr must be small enough for training to stay"),
        (NCClassifier(steps=-1), X, LABELS, "steps must not be negative, got -1"),
    ]
    for model, inputs, y, message in cases:
        with pytest.raises((TypeError, ValueError), match=message) as caught:
            model.fit(inputs, y)
        assert "\n" not in str(caught.value)


@settings(max_examples=40)
@given(st.data())
def test_whatever_comes_gives_finite_predictions_or_a_clear_error(data: st.DataObject) -> None:
    def pick(*values: Any) -> Any:
        return data.draw(st.sampled_from(values))

    labels, P = data.draw(st.booleans()), pick(40, 40, 5, 2, 1, 0)
    rows = pick(1.0, 1.0, 1.0, 0.0, 1e30, 1e300) * draw(P, seed=pick(0, 1))
    rows = rows.astype(pick("f4", "f8", "f2", "i4", "O")) if np.abs(rows).sum() < 1e4 else rows
    if pick(False, False, False, True) and P:
        rows[0, 0] = pick(np.nan, np.inf, 7) if rows.dtype.kind in "fO" else 7
    if pick(*[False] * 7, True):
        rows = pick([["cat"] * 3] * P, rows[:, :2], rows[:, 0], None)
    kinds = [NAMES[np.arange(P) % 3], np.arange(P), np.arange(P) % 2, np.zeros(P, int)]
    y = pick(*kinds) if labels or pick(*[False] * 7, True) else pick(1.0, 1e20) * draw(P)[:, 1]
    y = y[: len(y) - pick(0, 0, 0, 0, 0, 1)]
    nc = pick(None, labelled_nc() if labels else real_nc(), labelled_nc(symmetric=False))
    model = (NCClassifier if labels else NCRegressor)(nc, steps=2, hidden=(4,), random_state=0)
    try:
        found = model.fit(rows, y, pick(None, None, draw(4), draw(1)[:, :2])).predict(draw(6))
    except (TypeError, ValueError) as error:
        text = str(error)
        assert text
    else:
        assert found.shape == (6,)
        assert set(found) <= set(y) if labels else np.isfinite(found).all()


def regularized(points: int, seed: int = 0, head: str = "posterior") -> Training:
    """An NC that sees ten points at most, and points of three classes."""
    options = {"loss": "cross_entropy", "symmetric": True, "metric": True, "head": head}
    nc = NeuralComplexity(3, 3, width=8, heads=2, **options)
    nc.card = Card(context_size=10)
    X, Y = torch.randn(points, 3), torch.arange(points) % 3
    recipe = Recipe(make=partial(mlp, 3, (8,), 3), loss=cross_entropy, steps=5, lr=0.1)
    return Training(X, Y, recipe, batch=8, seed=seed, nc=nc, classes=3, floor=None)


@pytest.mark.parametrize("n", [2, 5, 40])
def test_without_other_inputs_nc_judges_on_points_that_it_does_not_see(n: int) -> None:
    own = regularized(40, seed=n)
    task, seen, _ = own.arrange(torch.arange(n), torch.arange(0))
    known, judged = set(raw(seen.X_tr)[0].tolist()), set(raw(task.X_te)[0].tolist())
    assert known | judged <= set(range(n))
    assert not known & judged
    assert len(known) == min(10, n - -(-n // 4))
    assert len(judged) == -(-n // 4)
    assert torch.equal(raw(task.X_te), raw(seen.X_te))
    assert torch.equal(seen.Y_tr[0], own.Y[raw(seen.X_tr)[0]])
    if n == 40:
        other, *_ = regularized(40, seed=1).arrange(torch.arange(n), torch.arange(0))
        assert not torch.equal(raw(other.X_te), raw(task.X_te))


def gap(own: Training, encode: Encoder, h: nn.Module, snapshot: Snapshot) -> float:
    return minibatch_penalty(own.nc, encode, floor=None)(h, snapshot).item()


@pytest.mark.parametrize("head", ["posterior", "direct"])
def test_a_penalty_speaks_for_the_points_that_it_judges_on(head: str) -> None:
    own = regularized(40, head=head)
    points = torch.arange(40)
    task, _, encode = own.arrange(points[:30], points[30:])
    h = own.train(task)
    whole = own.penalty(encode, task, 0.5)
    assert whole is not None
    snapshot = evaluate(h, task)
    assert whole(h, snapshot).item() == pytest.approx(0.5 * gap(own, encode, h, snapshot))
    assert own.penalty(encode, task, 0.0) is None
    inductive, _, encode = own.arrange(points, points[:0])  # a quarter of the training points
    part = own.penalty(encode, inductive, 0.5)
    assert part is not None
    again = evaluate(h, inductive)
    predicted = gap(own, encode, h, again)
    assert part(h, again).item() == pytest.approx(0.5 * predicted / 4)


ODD: dict[str, Any] = {
    "sparse": lambda X: X.to_sparse(),
    "meta": lambda X: X.to("meta"),
    "nested": lambda X: torch.nested.nested_tensor(list(X)),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ODD)
def test_tensors_without_dense_values_are_told_in_one_sentence(kind: str) -> None:
    model, odd = NCClassifier(**QUICK), ODD[kind](torch.tensor(X))
    sentence = f"must be a dense tensor that holds values, got a {kind} tensor"
    with pytest.raises(TypeError, match=f"X {sentence}"):
        model.fit(odd, LABELS)
    with pytest.raises(TypeError, match=f"X_unlabelled {sentence}"):
        model.fit(X, LABELS, X_unlabelled=odd)
    model.fit(X, LABELS)
    with pytest.raises(TypeError, match=f"X {sentence}"):
        model.predict(odd)
