from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.svm import LinearSVC
from torch import Tensor, nn

from neural_complexity import NeuralComplexity, assess
from neural_complexity.assessment.prepare import CALIBRATED, choose_nc, with_probabilities

pytestmark = pytest.mark.usefixtures("single_precision")
X, y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])


def frame(rows: slice) -> pd.DataFrame:
    """Returns irises with a column of text, one of dates, and one value that is missing."""
    made = pd.DataFrame(X[rows].copy(), columns=["a", "b", "c", "d"])
    made["size"] = np.where(X[rows, 2] > 4, "large", "small")
    made["seen"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(len(made)), unit="D")
    made.loc[made.index[0], "a"] = np.nan
    return made


def test_a_pipeline_on_a_frame_with_text_is_assessed_in_one_call() -> None:
    train, test = frame(slice(0, None, 2)), frame(slice(1, None, 2))
    columns = make_column_transformer((OneHotEncoder(), ["size"]), ("passthrough", ["b", "c"]))
    labels = NAMES[y[::2]]
    model = make_pipeline(columns, RandomForestClassifier(random_state=0)).fit(train, labels)
    found = assess(model, train, labels, test)
    truth = (model.predict(test) == NAMES[y[1::2]]).mean()
    assert found.accuracy_te == pytest.approx(truth, abs=0.08)
    shuffled = assess(model, train.set_index(train.index[::-1]), labels, test)
    assert shuffled.loss_te == found.loss_te  # the index says nothing


@pytest.mark.parametrize(
    ("model", "target"),
    [
        (LogisticRegression(max_iter=500), y),
        (GridSearchCV(LogisticRegression(max_iter=500), {"C": [0.1, 1.0]}), NAMES[y]),
        (LogisticRegression(class_weight="balanced", max_iter=500), y.astype(float)),
        (LogisticRegression(max_iter=500), y == 1),
        (LinearSVC(), NAMES[y]),
        (RandomForestRegressor(10), X[:, 3]),
        (Ridge(), y),
    ],
)
def test_models_of_all_kinds_are_judged_by_the_nc_that_fits(model: Any, target: Any) -> None:
    fitted = model.fit(X[::2, :3], target[::2])
    found = assess(fitted, X[::2, :3], target[::2], X[1::2, :3])
    assert np.isfinite(found.points).all()
    assert (found.loss == "cross_entropy") == hasattr(fitted, "classes_")
    assert any("sigmoid" in said for said in found.warnings) == isinstance(model, LinearSVC)


def test_functions_and_modules_are_judged_by_their_targets() -> None:
    def model(x: Tensor) -> Tensor:
        return torch.stack([x[:, 0], -x[:, 0]], dim=1)

    assert choose_nc(None, model, y.tolist()).labels
    assert choose_nc(None, nn.Linear(4, 1), X[:, 3] + 0.01).labels is False
    assert not choose_nc(None, nn.Linear(4, 1), np.arange(60.0) - 30).labels  # whole by its nature
    assert choose_nc("sinusoid", model, y).outputs == 1
    nc = NeuralComplexity.pretrained("tables")
    assert choose_nc(nc, model, X[:, 0]) is nc
    found = assess(
        lambda rows: np.stack([rows["c"], 8 - rows["c"]], 1),
        frame(slice(0, 60)),
        y[:60] == 0,
        frame(slice(60, 99)),
        classes=[False, True],
    )
    assert found.accuracy_te is not None
    with pytest.raises(TypeError, match="nc must be a NeuralComplexity, a path, a name or None"):
        choose_nc(3, model, y)  # type: ignore[arg-type]


def test_decision_values_become_probabilities() -> None:
    model = LinearSVC().fit(X, y)
    made, said = with_probabilities(model, X, y)
    assert said == (CALIBRATED,)
    assert (made.predict(X) == y).mean() > 0.9
    forest = RandomForestClassifier(5).fit(X, y)
    assert with_probabilities(forest, X, y) == (forest, ())
    few = [0, 1, 2, 60, 61, 120]
    with pytest.raises(ValueError, match="two training points of each class"):
        with_probabilities(LinearSVC().fit(X[few], y[few]), X[few], y[few])


ODD: dict[str, Any] = {
    "sparse": lambda t: t.to_sparse(),
    "meta": lambda t: t.to("meta"),
    "nested": lambda t: torch.nested.nested_tensor(list(t)),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ODD)
def test_tensors_without_dense_values_are_told_in_one_sentence(kind: str) -> None:
    points, labels = torch.tensor(X[::2]), torch.tensor(y[::2])
    for name, given in (
        ("y_tr", (nn.Linear(4, 3), points, ODD[kind](labels), points)),
        ("X_te", (nn.Linear(4, 3), points, labels, ODD[kind](points))),
        ("the model's predictions for X_tr", (ODD[kind], points, labels, points)),
    ):
        sentence = f"^{name} must be a dense tensor that holds values, got a {kind} tensor"
        with pytest.raises(TypeError, match=sentence):
            assess(*given)


def test_targets_of_short_numbers_are_read() -> None:
    assert choose_nc(None, nn.Linear(4, 3), torch.tensor(y).bfloat16()).labels


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_targets_of_functions_must_be_finite(odd: float) -> None:
    with pytest.raises(ValueError, match="y_tr must be finite, got NaN or infinity$"):
        choose_nc(None, lambda X: X, np.array([0.0, odd]))
