"""scikit-learn estimators: a multilayer perceptron, regularized by NC."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from math import inf, isfinite, prod
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
from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.learners.fit import Regularizer, evaluate
from neural_complexity.learners.networks import Affine, mlp
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import PointLoss, cross_entropy, squared_error
from neural_complexity.model.heads import PosteriorHead
from neural_complexity.model.indexed import believe, embed
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.model.pretrained_files import find_nc
from neural_complexity.model.training_points import learned_from
from neural_complexity.regularizers.loop import UNTRUSTED
from neural_complexity.regularizers.nc import nc_penalty_by_number, nc_penalty_by_points
from neural_complexity.regularizers.trust import trust
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.splits import Minibatches

__all__ = ["NCClassifier", "NCRegressor"]

JUDGED = 4  # one training point of so many is held out, to judge on and to choose a weight by
FEWEST = 8  # training points that are left to learn from, to choose a weight


class _NCEstimator(BaseEstimator):  # type: ignore[misc]
    """What the classifier and the regressor share."""

    def __init__(
        self,
        nc: NeuralComplexity | str | Path | None = None,
        *,
        hidden: Sequence[int] = (64,),
        steps: int = 1000,
        batch: int = 32,
        lr: float = 0.003,
        weight: float | Sequence[float] | NDArray[Any] = (1.0, 0.1),
        floor: float | None = -0.1,
        safeguard: bool = True,
        random_state: Any = None,
    ) -> None:
        self.nc = nc
        self.hidden = hidden
        self.steps = steps
        self.batch = batch
        self.lr = lr
        self.weight = weight
        self.floor = floor
        self.safeguard = safeguard
        self.random_state = random_state

    def _learn(
        self,
        nc: NeuralComplexity | None,
        X: NDArray[Any],
        Y: Tensor,
        X_unlabelled: ArrayLike | None,
        make: partial[nn.Module],
        loss: PointLoss,
    ) -> None:
        """Trains the network on inputs, (points, D), and targets, (points,) or (points, 1)."""
        weights = _weights(self.weight)
        for name in ("trust_", "weight_", "gap_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        others = np.empty((0, X.shape[1]))
        if X_unlabelled is not None:
            others = validate_data(self, X_unlabelled, reset=False)
        shape = (X.shape[1],) if nc is None else nc.shape
        # NC may see images, of which scikit-learn knows rows of pixels.
        dtype = _dtype(nc)
        points = [_points("X", X, shape, dtype)]
        if len(others):
            points.append(_points("X_unlabelled", others, shape, dtype))
        device = torch.device("cpu") if nc is None else nc.x_mean.device
        store, Y = torch.cat(points).to(device), Y.to(device)  # (all points, ...)
        train = partial(self._train, store, make, loss, seed)
        everything, judged = torch.arange(len(store), device=device).tensor_split([len(X)])
        task, shown = self._arrange(nc, everything, judged, Y, seed)
        regularizer = judge = None
        if nc is not None:
            if self.safeguard:
                X_known, classes = store[shown.X_tr], self._classes(nc)
                nc.check(classes=classes, X_tr=X_known, Y_tr=shown.Y_tr)
                self.trust_ = float(trust(nc, X_known, shown.Y_tr, classes=classes))
                if not self.trust_:
                    warnings.warn(UNTRUSTED, stacklevel=3)
            self.weight_ = self._choose(nc, weights, store, len(others) > 0, Y, loss, train, seed)
            weighted, judge = self._regularizers(nc, store, task, shown)
            regularizer = weighted(self.weight_)
        h = train(task, regularizer)
        if not all(p.isfinite().all() for p in h.parameters()):
            raise ValueError(
                f"lr must be small enough for training to stay finite, got {self.lr} and a network "
                "that diverged"
            )
        self.network_ = h.one(0).cpu()
        if judge is not None:
            self.gap_ = float(self._judge(judge, h, task))

    def _train(
        self,
        store: Tensor,
        make: partial[nn.Module],
        loss: PointLoss,
        seed: int,
        task: Task,
        regularizer: Regularizer | None,
    ) -> BatchedLearner:
        recipe = Recipe(
            make=make,
            loss=loss,
            steps=self.steps,
            lr=self.lr,
            optimizer=Adam,
            look_up=store.__getitem__,
        )
        batches = Minibatches(task, M=self.batch, N=self.batch, seed=seed)
        return recipe.train(batches, stream(seed, "network"), regularizer=regularizer)

    def _choose(
        self,
        nc: NeuralComplexity,
        weights: tuple[float, ...],
        store: Tensor,
        transductive: bool,
        Y: Tensor,
        loss: PointLoss,
        train: Callable[[Task, Regularizer | None], BatchedLearner],
        seed: int,
    ) -> float:
        """Finds out on training points that are held out which weight does best.

        Trust says whether NC understands the task; but who has many labels may know more than NC.
        """
        if self.safeguard:
            weights = (*weights, 0.0) if self.trust_ else (0.0,)
        weights = tuple(dict.fromkeys(weights))
        order = torch.randperm(len(Y), generator=stream(seed, "held out")).to(Y.device)
        some = -(-len(Y) // JUDGED)
        if len(weights) == 1 or len(Y) - some < FEWEST:
            return weights[0]  # there is no choice, or nothing could be told from so few
        # Points that NC learned from would flatter it; if too few others are there, NC is held to
        # what its file says that it believes of new ones: a network that does better without NC is
        # not to be taught by it.
        new = order[~learned_from(nc, store[order])]
        honest = 2 * len(new) >= some
        least = 0.0 if honest else nc.provenance.get("belief_loss")
        if least is None:
            return min(weights)
        held = (new if honest else order)[:some]
        rest = order[~torch.isin(order, held)]
        task, shown = self._arrange(nc, rest, held if transductive else held[:0], Y, seed)
        weighted, _ = self._regularizers(nc, store, task, shown)
        found = []
        for weight in weights:
            h = train(task, weighted(weight))
            with torch.no_grad():
                value = float(loss(h(held[None]), Y[None, held]).mean())
            value = value if isfinite(value) else inf
            found.append((max(value, least) if weight else value, value, weight))
        return min(found)[-1]  # the smaller of two that are as good

    def _arrange(
        self,
        nc: NeuralComplexity | None,
        points: Tensor,
        judged: Tensor,
        Y: Tensor,
        seed: int,
    ) -> tuple[Task, Task]:
        """Gives what is learned from and judged on, and what NC is shown of it, by number.

        Args:
            nc: The gap predictor, if there is one.
            points: Numbers of the training points, (n,).
            judged: Numbers of the points to judge on; some training points if there are none.
            Y: Targets of all that have some.
            seed: Decides what is shown.
        """
        n = len(points)
        order = points[torch.randperm(n, generator=stream(seed, "shown")).to(points.device)]
        count = n if nc is None else min(n, nc.shown)
        if nc is None:
            judged = order
        elif not len(judged):
            if n < 2:
                raise ValueError(
                    "X must have at least 2 points, one for NC to judge on, without X_unlabelled, "
                    f"got n_samples={n}"
                )
            some = -(-n // JUDGED)
            count, judged = min(count, n - some), order[n - some :]
        shown = order[:count].sort().values
        blank = Y.new_zeros((1, len(judged), *Y.shape[1:]))  # nobody looks at it
        learned, known = (
            Task(some[None], Y[None, some], judged[None], blank) for some in (points, shown)
        )
        return learned, known

    def _regularizers(
        self, nc: NeuralComplexity, store: Tensor, task: Task, shown: Task
    ) -> tuple[Callable[[float], Regularizer | None], Regularizer]:
        """Gives what regularizes the network, by weight, and what judges it in the end."""
        classes = self._classes(nc)
        nc.check(classes=classes, X_tr=store[shown.X_tr], Y_tr=shown.Y_tr, X_te=store[task.X_te])
        share = 1.0
        if torch.isin(task.X_te, task.X_tr).all():
            # Labels speak for all training points, NC for those that it judges on. At weight 1 the
            # training loss cancels out, and with it the labels of all others.
            share = task.X_te.shape[1] / task.X_tr.shape[1]
        if self.safeguard:
            share = share * self.trust_**2
        look = embed(nc, store.__getitem__, torch.cat([shown.X_tr, task.X_te], dim=1))
        if isinstance(nc.head, PosteriorHead):
            make = partial(nc_penalty_by_number, nc, believe(nc, look, shown, classes=classes))
        else:
            make = partial(nc_penalty_by_points, nc, shown.X_tr, shown.Y_tr, embed=look)

        def regularizer(weight: float) -> Regularizer | None:
            # Where NC has nothing to say, the network is to the last bit the one without NC.
            return make(weight=weight * share, floor=self.floor) if weight * share else None

        return regularizer, make(weight=1.0, floor=None)

    @torch.no_grad()
    def _judge(self, judge: Regularizer, h: BatchedLearner, task: Task) -> Tensor:
        return judge(h, evaluate(h, task)).squeeze(0)

    def _classes(self, nc: NeuralComplexity) -> int | None:  # noqa: ARG002
        return None

    def _network(
        self, nc: NeuralComplexity | None, X: NDArray[Any], *ends: nn.Module, outputs: int
    ) -> partial[nn.Module]:
        """Gives a function that makes the network, which sees inputs of one scale."""
        mean, scale = _units("X", X)
        units = torch.from_numpy(1 / scale), torch.from_numpy(-mean / scale)
        return partial(_build, *units, tuple(self.hidden), outputs, ends, _dtype(nc))

    @torch.no_grad()
    def _predictions(self, X: ArrayLike) -> Tensor:
        """Gives the network's predictions, (points, C)."""
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False)
        parameter = next(self.network_.parameters())
        H: Tensor = self.network_(inputs("X", rows, dtype=parameter.dtype))
        return H


class NCClassifier(ClassifierMixin, _NCEstimator):  # type: ignore[misc]
    """A multilayer perceptron for classes, trained by Adam and regularized by NC.

    Args:
        nc: The gap predictor: a `NeuralComplexity`, the path of a saved one or the name of one that
            ships; `None` for no regularizer.
        hidden: The width of each hidden layer.
        steps: The number of updates.
        batch: Training points of each, and points that NC judges on.
        lr: The learning rate.
        weight: The lambda of Eq. (4); or several, of which the one is taken that does best on a
            quarter of the training points when the network learns from the others, which costs a
            training each. They are points that NC did not learn from itself, which its file knows
            (by the same numbers: scaled in another way, points are not recognised). Where there is
            not half of a quarter of those, NC is taken to do no better than it did on such points
            when it was made; if that is not known, the smallest weight is taken. Of several weights
            the first is taken where there are too few points to choose by. At 1 the network learns
            from NC alone, which knows the labels; below, more and more from labels.
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
                No pipeline transforms them: they must be on the scale of X.
                Without them NC judges it on some training inputs, whose labels NC is not shown, and
                its weight is multiplied by their share.

        Raises:
            TypeError: If the inputs are no numbers.
            ValueError: If something does not fit, or NC's own.
        """
        rows, y = validate_data(self, X, y)
        check_classification_targets(y)
        self.classes_, place = np.unique(y, return_inverse=True)
        nc = _load(self.nc, labels=True)
        self._columns = torch.arange(len(self.classes_))
        outputs = len(self.classes_)
        if nc is not None and not nc.symmetric:  # each of its classes has a number of its own
            own = nc.provenance.get("classes", range(nc.outputs))
            self._columns, outputs = encode(self.classes_, own), nc.outputs
        Y = self._columns[torch.from_numpy(place)]
        make = self._network(nc, rows, outputs=outputs)
        self._learn(nc, rows, Y, X_unlabelled, make, cross_entropy)
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Gives the likeliest class of each input, (points,)."""
        place = self._logits(X).argmax(dim=1).numpy()
        found: NDArray[Any] = self.classes_[place]
        return found

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Gives the probability of each class, (points, C)."""
        logits = self._logits(X).double()  # so that they sum to 1
        probabilities: NDArray[Any] = logits.softmax(dim=1).numpy()
        return probabilities

    def _logits(self, X: ArrayLike) -> Tensor:
        H = self._predictions(X)
        return H[:, self._columns]

    def _classes(self, nc: NeuralComplexity) -> int | None:
        return len(self.classes_) if nc.symmetric else None


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
        """Trains a new network.

        Args:
            X: Training inputs, (points, D); for an NC that sees images, their pixels.
            y: Their targets, (points,).
            X_unlabelled: As in `NCClassifier.fit`.

        Raises:
            TypeError: If these are no numbers.
            ValueError: If something does not fit, or NC's own.
        """
        rows, y = validate_data(self, X, y, y_numeric=True)
        nc = _load(self.nc, labels=False)
        if nc is not None and nc.outputs != 1:
            raise ValueError(f"nc must be for one output, got one for {nc.outputs}")
        column = np.asarray(y, dtype=float)[:, None]
        mean, scale = _units("y", column)
        # Learns in units of the targets' spread, and is judged in their own.
        end = Affine(torch.from_numpy(scale), torch.from_numpy(mean))
        Y = inputs("y", column, dtype=_dtype(nc))
        make = self._network(nc, rows, end, outputs=1)
        self._learn(nc, rows, Y, X_unlabelled, make, squared_error)
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Gives the prediction for each input, (points,)."""
        found: NDArray[Any] = self._predictions(X).squeeze(1).numpy()
        return found


def _load(nc: NeuralComplexity | str | Path | None, *, labels: bool) -> NeuralComplexity | None:
    """Gives the NC that is meant."""
    nc = find_nc(nc) if isinstance(nc, str | Path) else nc
    if nc is not None and not isinstance(nc, NeuralComplexity):
        raise TypeError(
            f"nc must be a NeuralComplexity, a path, a name or None, got {type(nc).__name__}"
        )
    if nc is not None and nc.labels != labels:
        wanted, got = ("labels", "real targets") if labels else ("real targets", "labels")
        raise ValueError(f"nc must be for {wanted}, got one for {got}")
    return nc


def _weights(given: float | Sequence[float] | NDArray[Any]) -> tuple[float, ...]:
    weights = np.atleast_1d(np.asarray(given)).tolist()
    if not weights or not all(isinstance(w, int | float) and 0 <= w < inf for w in weights):
        raise ValueError(f"weight must be one or several numbers from 0, got {given}")
    return tuple(float(weight) for weight in weights)


def _dtype(nc: NeuralComplexity | None) -> torch.dtype:
    return torch.get_default_dtype() if nc is None else nc.x_mean.dtype


def _points(name: str, rows: NDArray[Any], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Gives inputs as NC and the network see them, (points, *shape)."""
    if rows.shape[1] != prod(shape):
        raise ValueError(
            f"{name} must have {prod(shape)} features as NC's inputs have, got {rows.shape[1]}"
        )
    return inputs(name, rows.reshape(-1, *shape), shape=shape, dtype=dtype)


def _units(name: str, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Gives mean and spread of each column, (D,); what does not vary has nothing to scale."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean, scale = rows.mean(axis=0, dtype=float), rows.std(axis=0, dtype=float)
    if not np.isfinite(scale).all():
        raise ValueError(f"{name} must hold numbers of ordinary size, got {np.abs(rows).max():g}")
    return mean, np.where(scale > 0, scale, 1.0)


def _build(
    scale: Tensor,
    shift: Tensor,
    hidden: tuple[int, ...],
    outputs: int,
    ends: tuple[nn.Module, ...],
    dtype: torch.dtype,
) -> nn.Module:
    network = mlp(len(scale), hidden, outputs)
    return nn.Sequential(nn.Flatten(), Affine(scale, shift), *network, *ends).to(dtype)
