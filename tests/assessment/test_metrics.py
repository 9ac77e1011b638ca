from typing import Any

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    fbeta_score,
    log_loss,
    make_scorer,
    mean_absolute_error,
    mean_squared_error,
    precision_score,
    r2_score,
)

from neural_complexity.assessment.metrics import AT_ONCE, estimate_metrics

RANDOM = np.random.default_rng(0)
NAMES = np.array(["no", "yes"])
P = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.1, 0.9]])
DRAWN = (RANDOM.random((500, 4)) < P[:, 1]).astype(int)  # as the model says


def alarms(y: Any, told: Any) -> float:
    return float(precision_score(y, told, pos_label="yes", zero_division=0))


def test_metrics_of_every_kind_are_estimated() -> None:
    asked: list[Any] = [
        "accuracy",
        "roc_auc",
        "log_loss",
        "balanced_accuracy",
        "average_precision",
        alarms,
    ]
    scorer = make_scorer(fbeta_score, beta=2, pos_label="yes")
    found = estimate_metrics([*asked, scorer], DRAWN, P, classes=NAMES)
    assert list(found) == [*asked[:-1], "alarms", "fbeta_score"]
    expected = P.max(axis=1).mean()
    assert found["accuracy"].value == pytest.approx(expected, abs=0.04)
    assert found["log_loss"].value > 0
    for name, one in found.items():
        assert one.low <= one.value <= one.high, name
        assert "at 95 %" in str(one)


def test_numbers_have_metrics_too() -> None:
    H = np.linspace(0, 5, 40)
    drawn = H + RANDOM.normal(size=(300, 40))
    found = estimate_metrics(["r2", "mean_absolute_error", "neg_mean_squared_error"], drawn, H)
    assert found["mean_absolute_error"].value == pytest.approx((2 / np.pi) ** 0.5, abs=0.05)
    assert found["neg_mean_squared_error"].value == pytest.approx(-1, abs=0.1)
    assert 0 < found["r2"].low < found["r2"].high < 1


def test_what_is_no_metric_is_refused() -> None:
    with pytest.raises(ValueError, match="metric must be the name of a scorer .* got acuracy"):
        estimate_metrics(["acuracy"], DRAWN, P, classes=NAMES)
    with pytest.raises(TypeError, match="metric must be a name, a scorer or a function, got int"):
        estimate_metrics([3], DRAWN, P, classes=NAMES)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="metric roc_auc must have a value"):
        estimate_metrics(["roc_auc"], np.zeros((9, 4), dtype=int), P, classes=NAMES)


def test_intervals_are_quantiles_of_the_draws() -> None:
    wide, narrow = (
        estimate_metrics(["accuracy"], DRAWN, P, classes=NAMES, confidence=c)["accuracy"]
        for c in (0.99, 0.5)
    )
    assert wide.low < narrow.low <= narrow.high <= wide.high
    told = NAMES[P.argmax(axis=1)]
    values = [f1_score(NAMES[y], told, pos_label="yes", zero_division=0) for y in DRAWN]

    def f1(y: Any, told: Any) -> float:
        return float(f1_score(y, told, pos_label="yes", zero_division=0))

    found = estimate_metrics([f1], DRAWN, P, classes=NAMES)["f1"]
    assert found.value == pytest.approx(np.mean(values))
    assert found.low == pytest.approx(np.quantile(values, 0.025))


def test_draws_that_lack_a_class_count_where_they_can() -> None:
    rare = np.array([[0.99, 0.01]] * 5)
    drawn = (RANDOM.random((400, 5)) < 0.01).astype(int)
    found = estimate_metrics("log_loss", drawn, rare, classes=NAMES)["log_loss"]
    expected = -(0.99 * np.log(0.99) + 0.01 * np.log(0.01))
    assert found.value == pytest.approx(expected, abs=0.05)
    some = estimate_metrics(["roc_auc"], drawn, rare, classes=NAMES)["roc_auc"]
    assert some.defined < 0.2
    assert "of draws" in str(some)


def test_usual_metrics_without_a_value_are_left_out() -> None:
    found = estimate_metrics((), np.zeros((9, 1)), np.zeros(1), usual=("r2", "max_error"))
    assert list(found) == ["max_error"]


def test_metrics_of_one_name_stay_apart() -> None:
    scorers = [make_scorer(fbeta_score, beta=b, pos_label="yes", zero_division=0) for b in (0.5, 2)]
    found = estimate_metrics(scorers, DRAWN, P, classes=NAMES)
    assert list(found) == ["fbeta_score", "fbeta_score (2)"]


def test_metrics_of_labels_at_once_are_those_of_scikit_learn() -> None:
    g = np.random.default_rng(0)
    P, drawn = g.dirichlet(np.ones(3), 40), np.stack([g.permutation(40) % 3 for _ in range(9)])
    found = {name: compute(drawn, P).tolist() for name, compute in AT_ONCE[True].items()}
    losses = [log_loss(y, P) for y in drawn]
    assert found["log_loss"] == pytest.approx(losses)
    assert found["neg_log_loss"] == pytest.approx([-loss for loss in losses])
    assert found["accuracy"] == pytest.approx([accuracy_score(y, P.argmax(axis=1)) for y in drawn])


@pytest.mark.parametrize("name", AT_ONCE[False])
def test_metrics_of_numbers_at_once_are_those_of_scikit_learn(name: str) -> None:
    g = np.random.default_rng(0)
    H, drawn = g.normal(size=30), g.normal(size=(9, 30))
    drawn[3], drawn[4] = 1.0, H  # no spread, and no error
    scorers = {"r2": r2_score, "mean_absolute_error": mean_absolute_error}
    scorer = scorers.get(name, mean_squared_error)
    assert AT_ONCE[False][name](drawn, H).tolist() == pytest.approx([scorer(y, H) for y in drawn])
    assert np.isnan(AT_ONCE[False]["r2"](drawn[:, :1], H[:1])).all()
