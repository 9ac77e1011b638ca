import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import binom
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.metrics import mean_absolute_error, r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from neural_complexity import NeuralComplexity, assess
from neural_complexity.assessment.evidence import (
    Labelled,
    compare_held_out,
    compare_out_of_fold,
    learn_tilt,
    prediction_powered,
    refit_out_of_fold,
)
from neural_complexity.assessment.tilt import GRID

pytestmark = pytest.mark.usefixtures("single_precision")
X, y = load_breast_cancer(return_X_y=True)
ROWS = np.random.default_rng(0).permutation(len(y))
A, B, C = ROWS[:80], ROWS[80:200], ROWS[200:300]


def test_folds_move_the_estimate_to_what_labels_say() -> None:
    tree = DecisionTreeClassifier(random_state=0).fit(X[A], y[A])
    alone = assess(tree, X[A], y[A], X[B])
    folds = assess(tree, X[A], y[A], X[B], folds=5)
    assert folds.accuracy_te is not None
    assert alone.accuracy_te is not None
    said = folds.cross_validated["accuracy"].value
    ends = sorted([alone.accuracy_te, said])
    assert ends[0] - 0.02 <= folds.accuracy_te <= ends[1] + 0.02
    assert folds.loss_te == pytest.approx(folds.points.mean())
    assert folds.metrics["accuracy"].low < folds.accuracy_te < folds.metrics["accuracy"].high
    H = refit_out_of_fold(tree, X[A], y[A], 5, classes=[0, 1])
    same = assess(tree, X[A], y[A], X[B], out_of_fold=H)
    assert same.loss_te == pytest.approx(folds.loss_te)


def test_held_out_points_that_go_wrong_make_the_estimate_worse() -> None:
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X[A], y[A])
    alone = assess(model, X[A], y[A], X[B])
    fine = assess(model, X[A], y[A], X[B], held_out=(X[C], model.predict(X[C])))
    bad = assess(model, X[A], y[A], X[B], held_out=(X[C], 1 - model.predict(X[C])))
    assert bad.accuracy_te is not None
    assert alone.accuracy_te is not None
    assert fine.accuracy_te is not None
    assert bad.accuracy_te < alone.accuracy_te <= fine.accuracy_te + 1e-6
    assert bad.loss_te > fine.loss_te


def test_regressors_learn_from_labels_too() -> None:
    X, y = load_diabetes(return_X_y=True)
    model = Ridge().fit(X[:100], y[:100])
    fine, bad = (
        assess(
            model, X[:100], y[:100], X[200:], held_out=(X[100:200], model.predict(X[100:200]) + e)
        )
        for e in (20.0, 300.0)
    )
    assert fine.loss_te < bad.loss_te
    folds = assess(model, X[:100], y[:100], X[200:], folds=4, metrics=["mean_squared_error"])
    for name, scorer in (("r2", r2_score), ("mean_absolute_error", mean_absolute_error)):
        out = refit_out_of_fold(model, X[:100], y[:100], 4)[:, 0]
        one = folds.cross_validated[name]
        assert one.value == pytest.approx(scorer(y[:100], out), rel=1e-4)
        assert one.low < one.value < one.high
    true = ((model.predict(X[200:]) - y[200:]) ** 2).mean()
    found = folds.metrics["mean_squared_error"]
    assert found.low < true < found.high


def test_believed_and_true_errors_have_the_order_of_the_points() -> None:
    nc = NeuralComplexity.pretrained("tables")
    x, labels = torch.from_numpy(X[A]).float(), torch.from_numpy(y[A])
    H = torch.zeros(80, 2)
    H[:, 0] = 1.0  # says 0 of everything
    told, true = compare_out_of_fold(nc, x, labels, H)
    assert torch.equal(true, labels.double())
    assert told[labels == 1].mean() > told[labels == 0].mean() + 0.5
    held, also = compare_held_out(nc, x, labels, x[:9], labels[:9], H[:9])
    assert held.shape == also.shape == (9,)
    assert learn_tilt(nc, [(torch.full((50,), 0.01), torch.ones(50))]).mean(GRID) > 1


def test_what_cannot_be_used_is_refused() -> None:
    forest = RandomForestClassifier(5, random_state=0).fit(X[A], y[A])
    for options, said in (
        ({"folds": 1}, "folds must be from 2"),
        ({"folds": 3, "out_of_fold": np.full((80, 2), 0.5)}, "got both"),
        (
            {"out_of_fold": np.full((7, 2), 0.5)},
            r"out_of_fold must be \(80, 2\), got shape \(7, 2\)",
        ),
        ({"out_of_fold": np.full((80, 2), 2.0)}, "must be probabilities"),
        ({"held_out": X[C]}, "held_out must be inputs and targets"),
        ({"held_out": (X[C], y[A])}, "held_out must be one for each of the 100 points, got 80"),
        ({"nc": "digits", "folds": 3}, "X_tr must be"),
    ):
        with pytest.raises((ValueError, TypeError), match=said):
            assess(forest, X[A], y[A], X[B], **options)
    with pytest.raises(TypeError, match="which folds fit again"):
        assess(lambda x: x[:, :2], X[A], y[A], X[B], folds=3)
    assert Labelled().H_out is None


def test_folds_fit_anew_what_has_no_probabilities() -> None:
    random = np.random.default_rng(0)
    noise, coin = random.normal(size=(80, 200)), random.integers(0, 2, 80)
    model = RidgeClassifier().fit(noise, coin)
    found = assess(model, noise, coin, random.normal(size=(50, 200)), folds=5)
    assert found.cross_validated["accuracy"].value < 0.75  # nothing can be learned


def test_targets_come_in_many_shapes() -> None:
    labels = np.array(["no", "yes"])[y]
    forest = RandomForestClassifier(5, random_state=0).fit(X[A], labels[A])
    shapes = [labels[A], labels[A, None], pd.DataFrame({"y": labels[A]}), labels[A].astype(object)]
    found = [assess(forest, X[A], one, X[B], folds=3).loss_te for one in shapes]
    assert np.ptp(found) < 1e-9
    three = RandomForestClassifier(5, random_state=0).fit(X[A], np.arange(80) % 3)
    two = np.arange(80) % 3 < 2
    fine = assess(three, X[A][two], (np.arange(80) % 3)[two], X[B], folds=3)
    assert np.isfinite(fine.points).all()


def test_held_out_columns_are_in_order() -> None:
    frame = pd.DataFrame(X[:, :4], columns=list("abcd"))
    held = (frame.iloc[C][list("dcba")], y[C])
    with pytest.raises(ValueError, match="held_out must have the columns of X_tr in their order"):
        assess(lambda x: x[:, :2], frame.iloc[A], y[A], frame.iloc[B], held_out=held)


@pytest.mark.parametrize("bias", [0.0, 0.3])
def test_prediction_powered_intervals_hold_whatever_nc_believes(bias: float) -> None:
    inside, n = 0, 300
    for seed in range(n):
        g = torch.Generator().manual_seed(seed)
        p = torch.rand(100 + 4000, generator=g).double() * 0.4  # how often a model is wrong
        was = (torch.rand(len(p), generator=g) < p).double()
        told = (p + bias).clamp(max=1)
        found = prediction_powered(
            [(told[:100], was[:100])], told[100:], labels=True, confidence=0.9
        )
        assert found is not None
        inside += found.low <= float(1 - p[100:].mean()) <= found.high
    assert binom.ppf(0.001, n, 0.87) <= inside  # the normal distribution is not quite that of 100


def test_prediction_powered_estimates_need_labels() -> None:
    told = torch.full((9,), 0.2)
    assert prediction_powered([], told, labels=True, confidence=0.95) is None
    one = [(torch.tensor([0.2]), torch.tensor([0.0]))]
    assert prediction_powered(one, told, labels=True, confidence=0.95) is None
    tree = DecisionTreeClassifier(random_state=0).fit(X[A], y[A])
    found = assess(tree, X[A], y[A], X[B], folds=5)
    assert found.powered is not None
    assert found.powered.low <= found.powered.value <= found.powered.high <= 1
    assert "prediction-powered" in repr(found)
    assert assess(tree, X[A], y[A], X[B]).powered is None
