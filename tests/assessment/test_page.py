from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.tree import DecisionTreeClassifier

from assessed import BOUND, example
from neural_complexity import assess
from neural_complexity.assessment.page import tables_of
from neural_complexity.assessment.result import Assessment

pytestmark = pytest.mark.usefixtures("single_precision")
X, y = load_breast_cancer(return_X_y=True, as_frame=True)
A, B = np.split(np.random.default_rng(0).permutation(len(y))[:200], [60])


@pytest.fixture(scope="module")
def found() -> Assessment:
    names = np.array(["<i>bad</i>", "good"])[y.iloc[A]]
    tree = DecisionTreeClassifier(random_state=0).fit(X.iloc[A], names)
    return assess(tree, X.iloc[A], names, X.iloc[B], folds=5, metrics=["f1_macro"])


def test_the_tables_hold_what_is_known() -> None:
    losses, worst = tables_of(
        example(bound=BOUND, loss_tr=0.25, points=np.array([1.0, 2.0]), accuracy_te=None)
    )
    assert [row[0] for row in losses.rows] == ["loss", "accuracy", "bound of the loss"]
    assert losses.rows[-1][-1] == "0 to 1.75"  # no loss is negative
    assert losses.note.startswith(
        "90 % bound (conformal). Probabilities of predict_proba are clipped"
    )
    assert "1e-07" in losses.note
    assert "clipped" not in tables_of(example(accuracy_tr=None))[0].note  # of real targets
    assert worst.rows == (("1", "2"), ("0", "1"))
    (only,) = tables_of(example(accuracy_tr=None))[0].rows
    assert only[0] == "loss"


def test_a_table_is_told_with_folds_shift_slices_and_rows(found: Assessment) -> None:
    titles = [table.title for table in tables_of(found)]
    assert titles == [
        "Loss (cross entropy)",
        "Metrics on the new points",
        "Have the data moved?",
        "Where it will fail",
        "Test points that NC expects to go worst",
    ]
    _, metrics, moved, slices, worst = tables_of(found)
    folds = found.cross_validated["accuracy"]
    accuracy = next(row for row in metrics.rows if row[0] == "accuracy")
    assert accuracy[3:] == (f"{folds.value:.3g}", f"{folds.low:.3g} to {folds.high:.3g}")
    assert "NC expected accuracy" in metrics.note
    assert found.moved is not None
    assert moved.rows[0][1] == f"{found.moved.p_value:.2g}"
    assert len(slices.rows) == len(found.slices) > 0
    assert found.errors is not None
    assert found.slices[0].error > found.errors.mean()
    assert len(worst.header) == 10
    first, name = found.worst(1)[0], worst.header[2]
    assert worst.rows[0][0] == str(first)
    assert float(worst.rows[0][2]) == pytest.approx(X.iloc[B][name].iloc[first], rel=1e-3)
    assert "8 of 30 features" in worst.note


def test_the_page_escapes_what_frames_say(found: Assessment) -> None:
    assert found.inputs is not None
    hostile = found.inputs.assign(**{"<script>": "<script>alert(1)</script>"}).iloc[:, ::-1]
    hostile = hostile.assign(**{found.slices[0].feature: np.nan})
    page = replace(found, inputs=hostile).to_html()
    assert "<script" not in page
    assert "What is assumed" in page
    assert "missing" in page
    assert "http" not in page
