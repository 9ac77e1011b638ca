from typing import Any

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from neural_complexity.beliefs import Categorical
from neural_complexity.integrations.estimator_nc import LEAST, EstimatorNC
from neural_complexity.regularizers.loop import NCRegularizer

random = np.random.default_rng(0)
X_TR, X_TE = random.normal(size=(80, 4)), random.normal(size=(50, 4))
Y = (X_TR[:, 0] > 0).astype(int) + (X_TR[:, 1] > 0.5)
ESTIMATORS = [
    LogisticRegression(),
    RandomForestClassifier(20, random_state=0),
    KNeighborsClassifier(),
    GaussianNB(),
    DecisionTreeClassifier(random_state=0),
    LinearDiscriminantAnalysis(),
    HistGradientBoostingClassifier(random_state=0),
]
every = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)


def tensors(*arrays: Any) -> list[torch.Tensor]:
    return [torch.from_numpy(a)[None] for a in arrays]


@every
def test_beliefs_are_the_estimators_probabilities(estimator: Any) -> None:
    nc = EstimatorNC(estimator).double()
    X_tr, y, X_te = tensors(X_TR, Y, X_TE)
    belief = nc.belief(X_tr, y, X_te, classes=3)
    assert isinstance(belief, Categorical)
    expected = estimator.fit(X_TR, Y).predict_proba(X_TE)
    np.testing.assert_allclose(belief.probabilities[0], expected, atol=10 * LEAST)


@every
def test_a_model_is_judged_by_the_expected_loss_under_these(estimator: Any) -> None:
    nc = EstimatorNC(estimator).double()
    model = LogisticRegression(C=0.1).fit(X_TR, Y)
    found = nc.assess(model, X_TR, Y, X_TE)
    p = estimator.fit(X_TR, Y).predict_proba(X_TE)
    loss = -(p * model.predict_log_proba(X_TE)).sum(axis=1).mean()
    assert found.loss_te == pytest.approx(loss, rel=1e-4)
    right = np.take_along_axis(p, model.predict(X_TE)[:, None], 1).mean()
    assert found.accuracy_te == pytest.approx(right, abs=1e-4)


def test_it_regularizes() -> None:
    nc, model = EstimatorNC(GaussianNB()).double(), torch.nn.Linear(4, 3).double()
    (X,), (y,) = tensors(X_TR), tensors(Y)
    penalty = NCRegularizer(nc, safeguard=False)
    penalty(model, X[0], y[0], torch.from_numpy(X_TE)).backward()
    assert model.weight.grad is not None
    assert (model.weight.grad != 0).any()


def test_classes_may_be_absent_or_alone() -> None:
    nc = EstimatorNC(LogisticRegression()).double()
    X_tr, y, X_te = tensors(X_TR, Y, X_TE)
    more = nc.belief(X_tr, y, X_te, classes=5).prediction.softmax(dim=-1)
    assert (more[..., 3:] < 2 * LEAST).all()
    alone = nc.belief(X_tr, torch.zeros_like(y), X_te, classes=2).prediction.softmax(dim=-1)
    assert (alone[..., 0] > 0.999).all()


def test_the_estimator_sees_all_training_rows() -> None:
    class Counting(GaussianNB):  # type: ignore[misc]
        def fit(self, X: Any, y: Any) -> Any:
            counted.append(len(X))
            return super().fit(X, y)

    counted: list[int] = []
    X, nc = random.normal(size=(700, 2)), EstimatorNC(Counting()).double()
    y = (X[:, 0] > 0).astype(int)
    nc.assess(GaussianNB().fit(X, y), X, y, X[:5])
    assert max(counted) == 700


def test_the_estimator_that_was_given_is_not_fitted() -> None:
    estimator = GaussianNB()
    EstimatorNC(estimator).double().belief(*tensors(X_TR, Y, X_TE), classes=3)
    assert not hasattr(estimator, "classes_")


def test_what_it_cannot_do_is_told() -> None:
    with pytest.raises(TypeError, match="estimator must have fit and predict_proba, got a SVC"):
        EstimatorNC(SVC())
    with pytest.raises(TypeError, match="got a ABCMeta without an instance"):
        EstimatorNC(GaussianNB)
    with pytest.raises(ValueError, match="must not be saved, got .*: save the estimator"):
        EstimatorNC(GaussianNB()).save("nc.safetensors")
