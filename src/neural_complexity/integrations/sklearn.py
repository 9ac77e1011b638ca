"""scikit-learn estimators: a multilayer perceptron, regularized by NC."""

import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from math import inf, prod
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn
from torch.optim import Adam

from neural_complexity.convert.arrays_in import encode, inputs
from neural_complexity.integrations.weight_choice import RegularizedTraining, Training
from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.learners.fit import Recipe
from neural_complexity.learners.networks import Affine, mlp
from neural_complexity.losses import cross_entropy, squared_error
from neural_complexity.model.network import NeuralComplexity, find_nc
from neural_complexity.regularizers.loop import UNTRUSTED

__all__ = ["NCClassifier", "NCRegressor"]


@dataclass(eq=False, repr=False)
class _NCEstimator(BaseEstimator):  # type: ignore[misc]
    """What the classifier and the regressor share."""

    nc: NeuralComplexity | str | Path | None = None
    _: KW_ONLY
    hidden: Sequence[int] = (64,)
    steps: int = 1000
    batch: int = 32
    lr: float = 0.003
    weight: float | Sequence[float] | NDArray[Any] = (1.0, 0.1)
    floor: float | None = -0.1
    safeguard: bool = True
    random_state: Any = None

    def _fit(
        self,
        nc: NeuralComplexity | None,
        X: NDArray[Any],
        Y: Tensor,
        X_unlabelled: ArrayLike | None,
        outputs: int,
        *ends: nn.Module,
    ) -> Self:
        """Trains the network on inputs, (points, D), and targets, (points,) or (points, 1)."""
        weights = np.atleast_1d(np.asarray(self.weight)).tolist()
        if not weights or not all(isinstance(w, int | float) and 0 <= w < inf for w in weights):
            raise ValueError(f"weight must be one or several numbers from 0, got {self.weight}")
        for name in ("trust_", "weight_", "gap_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        mean, scale = _units("X", X)
        standardize = Affine(torch.from_numpy(1 / scale), torch.from_numpy(-mean / scale))

        def make() -> nn.Module:
            network = mlp(X.shape[1], self.hidden, outputs)
            return nn.Sequential(nn.Flatten(), standardize, *network, *ends).to(_dtype(nc))

        sets, parts = {"X": X}, []
        if X_unlabelled is not None:
            sets["X_unlabelled"] = validate_data(self, X_unlabelled, reset=False)
        shape = (X.shape[1],) if nc is None else nc.shape
        for name, rows in sets.items():
            if rows.shape[1] != prod(shape):
                wanted = f"{prod(shape)} features as NC's inputs have"
                raise ValueError(f"{name} must have {wanted}, got {rows.shape[1]}")
            points = rows.reshape(-1, *shape)  # scikit-learn knows images as rows of pixels
            parts.append(inputs(name, points, shape=shape, dtype=_dtype(nc)))
        device = torch.device("cpu") if nc is None else nc.device
        loss = squared_error if Y.is_floating_point() else cross_entropy
        recipe = Recipe(make=make, loss=loss, steps=self.steps, lr=self.lr, optimizer=Adam)
        data = (torch.cat(parts).to(device), Y.to(device), recipe, self.batch, seed)
        known, others = torch.arange(len(data[0]), device=device).tensor_split([len(X)])
        if nc is None:
            training = Training(*data)
            h = training.train(training.task(known, known))
        else:
            classes = len(self.classes_) if nc.labels and nc.symmetric else None
            own = RegularizedTraining(*data, nc, classes, self.floor)
            h = self._fit_with_nc(own, [float(weight) for weight in weights], known, others)
        if not all(p.isfinite().all() for p in h.parameters()):
            got = f"{self.lr} and a network that diverged"
            raise ValueError(f"lr must be small enough for training to stay finite, got {got}")
        self.network_ = h.one(0).cpu()
        return self

    def _fit_with_nc(
        self, own: RegularizedTraining, weights: list[float], points: Tensor, others: Tensor
    ) -> BatchedLearner:
        """Trains the network with the best of the weights, and sets what was found on the way."""
        task, seen = own.arrange(points, others)
        factor = 1.0
        if self.safeguard:
            self.trust_ = own.trust(seen)
            if not self.trust_:
                warnings.warn(UNTRUSTED, stacklevel=4)
            factor = self.trust_**2
            weights = [*weights, 0.0] if self.trust_ else [0.0]
        distinct = list(dict.fromkeys(weights))
        self.weight_ = own.choose(distinct, factor, points, transductive=len(others) > 0)
        encoder = own.encoder(seen)
        h = own.train(task, own.penalty(encoder, task, self.weight_ * factor))
        self.gap_ = own.gap(encoder, task, h)
        return h

    @torch.no_grad()
    def _predictions(self, X: ArrayLike) -> Tensor:
        """Returns the network's predictions, (points, C), in the order of the classes."""
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False)
        H: Tensor = self.network_(inputs("X", rows, dtype=next(self.network_.parameters()).dtype))
        return H[:, self._columns]


class NCClassifier(ClassifierMixin, _NCEstimator):  # type: ignore[misc]
    """A multilayer perceptron for classes, trained by Adam and regularized by NC.

    Args:
        nc: The gap predictor: a `NeuralComplexity`, the path of a saved one or the name of one that
            ships; `None` for no regularizer.
        hidden: The width of each hidden layer.
        steps: The number of updates.
        batch: Training points of each, and points that NC judges on.
        lr: The learning rate.
        weight: The lambda of Eq. (4). Of several, the one is taken that does best on a quarter of
            the training points when the network learns from the others, which costs a training
            each, or the first where there are too few points. The quarter is taken from points that
            NC did not learn from itself, which its file knows (points that were scaled in another
            way are not recognised). Where there are too few of those, NC counts as no better than
            on new points when it was made; if that is not known, the smallest weight is taken. At 1
            the network learns from NC alone, which knows the labels; below, more from labels.
        floor: See `nc_penalty`.
        safeguard: Whether NC has to prove itself: its weight is multiplied by the square of
            `trust`, and 0, which leaves it out, is one of the weights to choose from.
        random_state: An integer makes `fit` repeatable.

    Attributes:
        classes_: The classes, (C,).
        n_features_in_: Input features, D.
        network_: The network, in evaluation mode; maps (points, D) to logits.
        trust_: How far NC is trusted, 0 to 1, if there is one and the safeguard is on.
        weight_: The weight that was chosen, if there is an NC.
        gap_: The gap that it predicts for the network, if there is one.

    Example:
        >>> X, y = [[0.0], [0.1], [0.9], [1.0]], ["low", "low", "high", "high"]
        >>> NCClassifier(steps=100, random_state=0).fit(X, y).predict([[0.2], [0.8]]).tolist()
        ['low', 'high']
    """

    def fit(self, X: ArrayLike, y: ArrayLike, X_unlabelled: ArrayLike | None = None) -> Self:
        """Trains a new network.

        Args:
            X: Training inputs, (points, D); for an NC that sees images, their pixels.
            y: Their labels, (points,), of any kind.
            X_unlabelled: Inputs to judge the network on while it is trained, the test inputs, say.
                No pipeline transforms them: they must be on the scale of X. Without them NC judges
                on some training inputs, whose labels it does not see, and its weight is multiplied
                by their share.

        Raises:
            TypeError: If the inputs are no numbers.
            ValueError: If something does not fit, or NC's own.
        """
        rows, y = validate_data(self, X, y)
        check_classification_targets(y)
        self.classes_, indices = np.unique(y, return_inverse=True)
        nc = _load(self.nc, labels=True)
        self._columns, outputs = torch.arange(len(self.classes_)), len(self.classes_)
        if nc is not None and not nc.symmetric:  # its classes have an order of their own
            own = nc.card.classes or range(nc.outputs)
            self._columns, outputs = encode(self.classes_, own), nc.outputs
        Y = self._columns[torch.from_numpy(indices)]
        return self._fit(nc, rows, Y, X_unlabelled, outputs)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Returns the likeliest class of each input, (points,)."""
        likeliest = self._predictions(X).argmax(dim=1).numpy()
        found: NDArray[Any] = self.classes_[likeliest]
        return found

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Returns the probability of each class, (points, C)."""
        logits = self._predictions(X).double()  # so that they sum to 1
        probabilities: NDArray[Any] = logits.softmax(dim=1).numpy()
        return probabilities


class NCRegressor(RegressorMixin, _NCEstimator):  # type: ignore[misc]
    """A multilayer perceptron for real targets, trained by Adam and regularized by NC.

    The arguments and attributes are those of `NCClassifier`, but for the classes; `network_` maps
    (points, D) to predictions, (points, 1).

    Example:
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.0, 2.0, 4.0, 6.0]
        >>> model = NCRegressor(steps=300, random_state=0).fit(X, y)
        >>> bool(abs(model.predict([[1.5]])[0] - 3.0) < 0.2)
        True
    """

    def fit(self, X: ArrayLike, y: ArrayLike, X_unlabelled: ArrayLike | None = None) -> Self:
        """Trains a new network; y are real targets, (points,), all else is as in `NCClassifier`."""
        rows, y = validate_data(self, X, y, y_numeric=True)
        nc = _load(self.nc, labels=False)
        if nc is not None and nc.outputs != 1:
            raise ValueError(f"nc must be for one output, got one for {nc.outputs}")
        column = np.asarray(y, dtype=float)[:, None]
        mean, scale = _units("y", column)
        # Learns in units of the targets' spread, and is judged in their own.
        end = Affine(torch.from_numpy(scale), torch.from_numpy(mean))
        self._columns, Y = torch.arange(1), inputs("y", column, dtype=_dtype(nc))
        return self._fit(nc, rows, Y, X_unlabelled, 1, end)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Returns the prediction for each input, (points,)."""
        found: NDArray[Any] = self._predictions(X).squeeze(1).numpy()
        return found


def _load(nc: NeuralComplexity | str | Path | None, *, labels: bool) -> NeuralComplexity | None:
    nc = find_nc(nc) if isinstance(nc, str | Path) else nc
    if nc is not None and not isinstance(nc, NeuralComplexity):
        got = type(nc).__name__
        raise TypeError(f"nc must be a NeuralComplexity, a path, a name or None, got {got}")
    if nc is not None and nc.labels != labels:
        wanted, got = ("labels", "real targets") if labels else ("real targets", "labels")
        raise ValueError(f"nc must be for {wanted}, got one for {got}")
    return nc


def _dtype(nc: NeuralComplexity | None) -> torch.dtype:
    return torch.get_default_dtype() if nc is None else nc.x_mean.dtype


def _units(name: str, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns mean and spread of each column, (D,); what does not vary has nothing to scale."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean, scale = rows.mean(axis=0, dtype=float), rows.std(axis=0, dtype=float)
    if not np.isfinite(scale).all():
        raise ValueError(f"{name} must hold numbers of ordinary size, got {np.abs(rows).max():g}")
    return mean, np.where(scale > 0, scale, 1.0)
