"""Any classifier with probabilities as an NC: its beliefs are those of the classifier."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor

from neural_complexity.beliefs import Belief, Categorical
from neural_complexity.losses import cross_entropy
from neural_complexity.model.architecture import Architecture
from neural_complexity.model.heads import Head, Sets
from neural_complexity.model.network import NeuralComplexity

__all__ = ["EstimatorNC"]

LEAST = 1e-6  # the least probability of a class: no belief is certain


class _EstimatorHead(Head):
    """Fits the estimator to the training rows of each table, and asks it about the test rows."""

    name, sees_predictions = "estimator", False
    for_labels: ClassVar = {}

    def __init__(self, architecture: Architecture, features: int) -> None:
        super().__init__(architecture, features)
        self.estimator: Any = None

    def encode(self, sets: Sets) -> Belief:
        """Returns the estimator's probabilities of the classes that are encoded."""
        tables = zip(sets.X_tr, sets.Y_tr, sets.X_te, strict=True)
        C, known = sets.T_tr.shape[-1], []
        for X_tr, Y_tr, X_te in ([t.detach().cpu().numpy() for t in table] for table in tables):
            p = np.zeros((len(X_te), C))
            if len(set(Y_tr.tolist())) == 1:  # which most estimators refuse
                p[:, Y_tr[0]] = 1.0
            else:
                fitted = clone(self.estimator).fit(X_tr, Y_tr)
                p[:, fitted.classes_] = fitted.predict_proba(X_te)
            known.append(torch.from_numpy(p.clip(min=LEAST)).log())
        return Categorical(torch.stack(known).to(sets.T_tr))

    def losses(self, state: Belief, H_tr: Tensor, H_te: Tensor) -> Tensor:  # noqa: ARG002
        """Computes the expected loss under the belief, (B, N)."""
        return self.loss.expected(H_te, state)


class EstimatorNC(NeuralComplexity):
    """An NC whose beliefs are those of a classifier that is fitted to each training set.

    It judges models of tables of any features, as a pretrained one does, and is as good as the
    classifier's probabilities are. It cannot be saved: save the classifier.

    Args:
        estimator: An estimator with `fit`, `predict_proba` and `classes_`; a copy is fitted.

    Raises:
        TypeError: If it is no such estimator.

    Example:
        >>> from sklearn.ensemble import RandomForestClassifier
        >>> nc = EstimatorNC(RandomForestClassifier(min_samples_leaf=5))
        >>> nc.labels
        True
    """

    def __init__(self, estimator: Any) -> None:
        missing = [name for name in ("fit", "predict_proba") if not hasattr(estimator, name)]
        if missing or isinstance(estimator, type):
            got = f"a {type(estimator).__name__} without {' and '.join(missing) or 'an instance'}"
            raise TypeError(f"estimator must have fit and predict_proba, got {got}")
        super().__init__(1, 1, loss=cross_entropy.name, for_tables=True, width=1, heads=1)
        head = _EstimatorHead(self.architecture, 1)
        head.estimator = clone(estimator)
        self.head = head
        self.card = replace(self.card, context_size=sys.maxsize)  # whatever the estimator takes

    def save(self, path: str | Path) -> None:
        """Refuses: there is nothing but the estimator."""
        raise ValueError(f"an NC of an estimator must not be saved, got {path}: save the estimator")
