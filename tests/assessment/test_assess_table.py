import json

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression, Ridge

from neural_complexity import NeuralComplexity, assess

pytestmark = pytest.mark.usefixtures("single_precision")
X, y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[y]
MODEL = LogisticRegression(max_iter=500).fit(X[::3], NAMES[::3])


def test_an_assessment_has_metrics_intervals_and_a_test_for_moved_data() -> None:
    found = assess(MODEL, X[::3], NAMES[::3], X[1::3], metrics=["f1_macro"], confidence=0.9)
    assert list(found.metrics) == ["accuracy", "log_loss", "f1_macro"]
    for one in found.metrics.values():
        assert one.low <= one.value <= one.high
        assert one.confidence == 0.9
    assert found.bound is not None
    assert found.bound.low < found.gap < found.bound.high
    assert found.moved is not None
    assert found.moved.p_value > 0.01
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert "f1_macro" in text
    assert "f1_macro" in repr(found)
    assert "f1_macro" in found.to_html()
    assert not any("calibrated" in said for said in found.warnings)


def test_rows_from_elsewhere_are_told_and_make_intervals_wider() -> None:
    near = assess(MODEL, X[::3], NAMES[::3], X[1::3])
    far = assess(MODEL, X[::3], NAMES[::3], X[1::3] + np.array([3.0, 0, 0, 0]))
    assert near.moved is not None
    assert far.moved is not None
    assert far.moved.p_value < 1e-4
    assert "differ from training rows" in repr(far)
    wide, narrow = (one.metrics["accuracy"] for one in (far, near))
    assert wide.high - wide.low > narrow.high - narrow.low


def test_metrics_are_of_an_nc_for_tables() -> None:
    nc = NeuralComplexity.pretrained("sinusoid")
    with pytest.raises(ValueError, match="must be left out unless nc is for tables"):
        nc.assess(lambda x: x, X[:9, :1], X[:9, 1], X[9:20, :1], metrics=["r2"])


def test_one_row_and_one_class_have_an_answer() -> None:
    found = assess(MODEL, X[::3], NAMES[::3], X[1:2])
    assert found.moved is None
    assert found.metrics["log_loss"].value > 0
    ridge = Ridge().fit(X[::3, :3], X[::3, 3])
    assert "r2" not in assess(ridge, X[::3, :3], X[::3, 3], X[1:2, :3]).metrics
    alone = DummyClassifier().fit(X[:30], NAMES[:30])
    assert assess(alone, X[:30], NAMES[:30], X[30:60]).accuracy_te == pytest.approx(1, abs=0.02)
