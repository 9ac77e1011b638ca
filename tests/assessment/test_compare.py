import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from neural_complexity import compare
from neural_complexity.assessment.page import CLIPPED

pytestmark = pytest.mark.usefixtures("single_precision")
X, y = load_breast_cancer(return_X_y=True)
A, B = np.split(np.random.default_rng(0).permutation(len(y))[:260], [60])
MODELS = {
    "constant": DummyClassifier().fit(X[A], y[A]),
    "linear": make_pipeline(StandardScaler(), LogisticRegression()).fit(X[A], y[A]),
    "tree": DecisionTreeClassifier(random_state=0).fit(X[A], y[A]),
}


def test_the_better_model_is_likelier_to_be_best() -> None:
    found = compare(MODELS, X[A], y[A], X[B], metrics=["roc_auc"])
    assert found.names[0] == "linear"
    assert sum(found.best.values()) == pytest.approx(1)
    assert found.best["linear"] > 0.8 > 0.1 > found.best["constant"]
    assert min(found.regret.values()) >= 0
    frame = found.to_df()
    assert list(frame.index) == found.names
    assert {"roc_auc low", "probability of being best"} <= set(frame.columns)
    assert "chance to be best" in repr(found)
    assert "a$x_$" in compare({"a$x_$": MODELS["tree"], **MODELS}, X[A], y[A], X[B]).to_html()
    page = found.to_html()
    assert "Which model? linear" in page
    assert CLIPPED in page
    assert page.count("src=") == page.count("src='data:image/png;base64,") == 1
    labels = found.plot().axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == found.names[::-1]


def test_models_that_say_the_same_have_the_same_chances() -> None:
    same = {"one": MODELS["linear"], "other": MODELS["linear"], "constant": MODELS["constant"]}
    found = compare(same, X[A], y[A], X[B])
    assert found.best["one"] == pytest.approx(found.best["other"], abs=0.15)


def test_regressors_are_compared() -> None:
    X, y = load_diabetes(return_X_y=True)
    kinds = {"linear": LinearRegression(), "tree": DecisionTreeRegressor(random_state=0)}
    fitted = {name: kind.fit(X[:150], y[:150]) for name, kind in kinds.items()}
    found = compare(fitted, X[:150], y[:150], X[150:])
    assert found.names == ["linear", "tree"]
    assert found.best["linear"] > 0.9


def test_one_model_is_not_compared() -> None:
    with pytest.raises(ValueError, match="models must be at least two by name, got 1"):
        compare({"tree": MODELS["tree"]}, X[A], y[A], X[B])
