import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from neural_complexity.baselines.estimates import ESTIMATES
from neural_complexity.experiments.base.table_evidence import (
    METRICS,
    Effort,
    fit_models,
    metrics_of,
)
from neural_complexity.experiments.base.table_models import draw_split, make_model
from neural_complexity.tasks.real_tables import RealTable


def make_table(labels: bool) -> RealTable:
    random = np.random.default_rng(0)
    X = pd.DataFrame(random.normal(size=(200, 3)), columns=list("abc"))
    y = X["a"] + 0.3 * random.normal(size=200)
    return RealTable("some table", X, (y > 0).astype(str) if labels else 5 * y, labels)


@pytest.mark.parametrize("labels", [True, False])
def test_models_of_a_split_are_described(labels: bool) -> None:
    table, effort = make_table(labels), Effort(("linear", "naive Bayes", "tree"), 1, 2)
    split = draw_split(table, 60, 50)
    assert split is not None
    found = fit_models(table, split, effort, seed=0)
    C, metrics = 2 if labels else 1, len(METRICS[labels])
    sizes = {"X_tr": (60, 3), "Y_tr": (60,), "X_te": (50, 3), "Y_te": (50,)}
    sizes |= {"H_out": (3, 60, C), "H_tr": (3, 60, C), "H_te": (3, 50, C)}
    sizes |= {"truth": (3, metrics), "seconds": (3,)}
    sizes |= {"estimates": (3, len(ESTIMATES), metrics)}
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == sizes
    there = ~found["truth"].isnan().any(dim=1)
    assert there.tolist() == [True, labels, True]  # numbers have no naive Bayes
    model = make_model("linear", labels=labels, seed=0).fit(split.X_tr, split.y_tr)
    told = model.predict_proba(split.X_te) if labels else model.predict(split.X_te)[:, None]
    np.testing.assert_allclose(found["H_te"][0], told)
    if labels:
        clipped = told.clip(1e-3)
        right = log_loss(split.y_te, clipped / clipped.sum(axis=1, keepdims=True))
        assert found["truth"][0, 1].item() == pytest.approx(right)
    else:
        right = ((told[:, 0] - split.y_te) ** 2).mean() / split.y_tr.var()
        assert found["truth"][0, 0].item() == pytest.approx(right)
    names = list(ESTIMATES)
    trained = found["estimates"][2, names.index("training loss")]
    assert (trained < found["estimates"][2, names.index("5-fold CV")]).all()  # a tree


def test_losses_are_means_in_a_unit() -> None:
    X, y = np.array([[0.0], [1.0], [2.0]]), np.array([0, 1, 1])
    p = LogisticRegression().fit(X, y).predict_proba(X)
    assert metrics_of(p, y, labels=True)[1].item() == pytest.approx(log_loss(y, p))
    found = metrics_of(X, np.array([0.0, 0.0, 0.0]), labels=False, unit=5.0)
    torch.testing.assert_close(found, torch.tensor([1 / 3], dtype=torch.float64))
