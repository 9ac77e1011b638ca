"""TabPFN of 2022 as a belief: `PYTHONPATH=benchmarks` and `run tables --belief tabpfn_v1:TabPFNv1`.

Its weights are inside the source archive of `tabpfn` 0.1, and the code of 0.1.11 runs with today's
libraries after two changes. Unpack 0.1.11, copy `tabpfn/models_diff` of 0.1 into it, and name the
folder that holds `tabpfn` in TABPFN_V1. Its weights are a pickle: loading them runs code from that
file, which the library itself never does.
"""

import os
import sys
from typing import Any, Optional, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor, nn
from torch.nn.modules import transformer

FEATURES = 100  # that it reads at most


class TabPFNv1(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The classifier, with three of its ensemble's members; missing values count as 0."""

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> Self:
        """Keeps the training rows: it learns when it predicts."""
        self.model_ = _load()(device="cpu", N_ensemble_configurations=3)
        self.model_.fit(self._read(X), y)
        self.classes_ = self.model_.classes_
        return self

    def predict_proba(self, X: NDArray[Any]) -> NDArray[Any]:
        """Returns probabilities, (rows, C)."""
        found: NDArray[Any] = self.model_.predict_proba(self._read(X))
        return found

    def _read(self, X: NDArray[Any]) -> NDArray[Any]:
        known: NDArray[Any] = np.nan_to_num(X[:, :FEATURES])
        return known


def _load() -> Any:
    """Returns the class, of a package that expects names which have moved since."""
    folder = os.environ.get("TABPFN_V1")
    if not folder:
        raise ValueError("TABPFN_V1 must name the folder that holds tabpfn 0.1.11, got nothing")
    if folder not in sys.path:
        sys.path.insert(0, folder)
        names: dict[str, Any] = {"Tensor": Tensor, "Module": nn.Module, "Linear": nn.Linear}
        names |= {"Dropout": nn.Dropout, "LayerNorm": nn.LayerNorm}
        names |= {"MultiheadAttention": nn.MultiheadAttention, "Optional": Optional}
        for name, value in names.items():
            setattr(transformer, name, value)
    usual = torch.load

    def load_pickle(*arguments: Any, **options: Any) -> Any:
        return usual(*arguments, **{**options, "weights_only": False})

    torch.load = load_pickle
    try:
        from tabpfn import TabPFNClassifier  # type: ignore[import-not-found]

        TabPFNClassifier(device="cpu")  # reads the weights, once
        return TabPFNClassifier
    finally:
        torch.load = usual
