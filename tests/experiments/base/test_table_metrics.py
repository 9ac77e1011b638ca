import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score, roc_auc_score

from neural_complexity.experiments.base.table_metrics import DRAWN_METRICS, drawn_metrics


@given(st.integers(2, 4), st.integers(8, 30), st.integers(0, 50), st.booleans())
def test_they_are_those_of_scikit_learn(C: int, N: int, seed: int, ties: bool) -> None:
    g = np.random.default_rng(seed)
    P = g.dirichlet(np.ones(C), N).round(1 if ties else 9)
    y = np.stack([g.permutation(np.arange(N) % C) for _ in range(3)])
    found = drawn_metrics(torch.from_numpy(y), torch.from_numpy(P))
    assert found.shape == (3, len(DRAWN_METRICS))
    for own, (auc, f1) in zip(y, found.tolist(), strict=True):
        each = [roc_auc_score(own == c, P[:, c]) for c in range(C)]
        assert auc == pytest.approx(np.mean(each))
        assert f1 == pytest.approx(f1_score(own, P.argmax(axis=1), average="macro"))


def test_labels_of_one_class_have_no_area() -> None:
    found = drawn_metrics(torch.zeros(1, 5, dtype=torch.int64), torch.eye(3)[[0, 0, 0, 1, 1]])
    assert found[0, 0].isnan()
    assert found[0, 1] == pytest.approx((0.75 + 0) / 2)
