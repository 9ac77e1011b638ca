"""scikit-learn estimators: a multilayer perceptron, regularized by NC, whose weight they choose."""

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
from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.learners.fit import Recipe, Regularizer, evaluate
from neural_complexity.learners.networks import Affine, mlp
from neural_complexity.losses import cross_entropy, squared_error
from neural_complexity.model.cached import CachedEmbeddings, Encoder, cache, embed_store
from neural_complexity.model.network import NeuralComplexity, find_nc
from neural_complexity.points import check_dense, indexed, join, raw, values
from neural_complexity.regularizers.loop import UNTRUSTED
from neural_complexity.regularizers.nc import minibatch_penalty, proof, safeguard_factor
from neural_complexity.seeding import stream
from neural_complexity.task import Task
from neural_complexity.tasks.splits import Minibatches

__all__ = ["NCClassifier", "NCRegressor", "Training"]

HELD_OUT = 4  # one training point of so many is held out, to judge on and to choose a weight by
LARGEST = 1e15  # what a loss that is no number counts
FEWEST = 8  # training points that are left to learn from, to choose a weight
Array = NDArray[Any]


@dataclass(frozen=True)
class Training:
    """How a network learns from points of one dataset, given by their indices, and from NC."""

    X: Tensor  # all inputs, those with targets first
    Y: Tensor  # targets of these, (points,) or (points, 1)
    recipe: Recipe
    batch: int
    seed: int
    nc: Any  # the regularizer; without one there is only `task` and `train`
    classes: int | None  # of labels, if not as many as NC was made for
    floor: float | None  # see `nc_penalty`

    def task(self, points: Tensor, judged: Tensor) -> Task:
        """Returns the task to learn from points, (n,), and to be judged on others."""
        blank = self.Y.new_zeros((1, len(judged), *self.Y.shape[1:]))  # nobody looks at it
        X_tr, X_te = (indexed(some[None], self.X.__getitem__) for some in (points, judged))
        return Task(X_tr, self.Y[None, points], X_te, blank)

    def train(self, task: Task, regularizer: Regularizer | None = None) -> BatchedLearner:
        """Trains a new network."""
        batches = Minibatches(task, M=self.batch, N=self.batch, seed=self.seed)
        return self.recipe.train(batches, stream(self.seed, "network"), regularizer=regularizer)

    def arrange(self, points: Tensor, judged: Tensor) -> tuple[Task, Task, Encoder]:
        """Returns what is learned from and judged on, what NC sees of it, and NC's work on that.

        Without points to judge on, these are training points whose targets NC does not see.
        """
        nc, n, order = self.nc, len(points), self._shuffle(points, "shown")
        size = min(n, nc.card.context_size)
        if not len(judged):
            if n < 2:
                wanted = "at least 2 points, one for NC to judge on, without X_unlabelled"
                raise ValueError(f"X must have {wanted}, got n_samples={n}")
            held_out = -(-n // HELD_OUT)
            size, judged = min(size, n - held_out), order[n - held_out :]
        task, seen = self.task(points, judged), self.task(order[:size].sort().values, judged)
        X_tr, X_te = values(seen.X_tr), values(seen.X_te)
        nc.check(classes=self.classes, X_tr=X_tr, Y_tr=seen.Y_tr, X_te=X_te)
        if nc.head.sees_predictions:
            return task, seen, CachedEmbeddings(nc, fixed=(seen.X_tr, seen.Y_tr))
        embeddings = embed_store(nc, self.X.__getitem__, raw(join([seen.X_tr, seen.X_te], dim=1)))
        return task, seen, cache(nc, seen, embeddings, classes=self.classes)

    def penalty(self, encode: Encoder, task: Task, weight: float) -> Regularizer | None:
        """Returns the penalty, or nothing where NC has no weight, so that it changes no bit."""
        train, test = raw(task.X_tr), raw(task.X_te)
        if torch.isin(test, train).all():
            # Labels speak for all training points, NC for those that it judges on. At weight 1 the
            # training loss cancels out, and with it the labels of all others.
            weight *= test.shape[1] / train.shape[1]
        elif self.nc.architecture.for_tables:
            weight *= min(1.0, self.nc.card.context_size / train.shape[1])  # the share that it sees
        options: Any = {"weight": weight, "floor": self.floor}
        return minibatch_penalty(self.nc, encode, **options) if weight else None

    def choose(self, weights: list[float], factor: float, points: Tensor, others: Tensor) -> float:
        """Returns the weight, times a factor, that does best on training points held out.

        An NC for tables keeps its first weight unless one is clearly better, and has the smallest
        if there are no others. Trust says whether NC understands the task; but who has many
        labels may know more than NC. It is the first where points are too few. If there are others,
        NC judges on those held out.
        """
        order, size = self._shuffle(points, "held out"), -(-len(points) // HELD_OUT)
        if len(weights) == 1 or len(points) - size < FEWEST:
            return weights[0]
        if self.nc.architecture.for_tables and not len(others):
            return min(weights)  # it knows no more than the labels do
        # Points that NC learned from would flatter it; if too few others are there, NC is held to
        # what its file says that it believes of new ones: a network that does better without NC is
        # not to be taught by it.
        new = order[~self.nc.card.knows(self.X[order])]
        honest = 2 * len(new) >= size
        least = 0.0 if honest else self.nc.card.belief_loss
        if least is None:
            return min(weights)
        held_out = (new if honest else order)[:size]
        rest = order[~torch.isin(order, held_out)]
        task, _, encode = self.arrange(rest, held_out if len(others) else others)
        test, found, losses = self.task(held_out, held_out), [], list[Tensor]()
        for weight in weights:
            h = self.train(task, self.penalty(encode, task, weight * factor))
            with torch.no_grad():
                each = self.recipe.loss(h(test.X_tr), test.Y_tr).flatten()
            losses.append(each.nan_to_num(LARGEST, LARGEST, LARGEST))
            value = losses[-1].mean().item()
            found.append((max(value, least) if weight else value, value, weight))
        if self.nc.architecture.for_tables:
            return weights[_clearly_best(losses, 0)]
        return min(found)[-1]  # the smaller of two that are as good

    def _shuffle(self, points: Tensor, name: str) -> Tensor:
        order = torch.randperm(len(points), generator=stream(self.seed, name))
        return points[order.to(points.device)]


def _clearly_best(losses: list[Tensor], usual: int) -> int:
    """Returns the number of the least losses, (n,) each, or the usual one.

    The latter where these are not clearly less: by a standard error of the mean difference.
    """
    best = min(range(len(losses)), key=lambda i: losses[i].mean().item())
    gain = losses[usual] - losses[best]
    return best if gain.mean() > gain.std(correction=0) / len(gain) ** 0.5 else usual


@dataclass(eq=False, repr=False)
class _NCEstimator(BaseEstimator):  # type: ignore[misc]
    """What the classifier and the regressor share."""

    nc: NeuralComplexity | str | Path | None = None
    _: KW_ONLY
    hidden: Sequence[int] = (64,)
    steps: int = 1000
    batch: int = 32
    lr: float = 0.003
    weight: float | Sequence[float] | Array = (1.0, 0.1)
    floor: float | None = -0.1
    safeguard: bool = True
    random_state: Any = None

    def fit(self, X: ArrayLike, y: ArrayLike, X_unlabelled: ArrayLike | None = None) -> Self:
        """Trains a new network.

        Args:
            X: Training inputs, (points, D); for an NC that sees images, their pixels.
            y: Their labels, of any kind, or real targets, (points,).
            X_unlabelled: Inputs to judge the network on while it is trained, the test inputs, say.
                No pipeline transforms them: they must be on the scale of X. Without them NC judges
                on some training inputs, whose labels it does not see, and its weight is multiplied
                by their share.

        Raises:
            TypeError: If the inputs are no numbers.
            ValueError: If something does not fit, or NC's own.
        """
        weights = np.atleast_1d(np.asarray(self.weight)).tolist()
        if not weights or not all(isinstance(w, int | float) and 0 <= w < inf for w in weights):
            raise ValueError(f"weight must be one or several numbers from 0, got {self.weight}")
        for name in ("trust_", "weight_", "gap_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        for name, some in (("X", X), ("y", y), ("X_unlabelled", X_unlabelled)):
            check_dense(name, some)
        rows, given = validate_data(self, X, y, y_numeric=isinstance(self, RegressorMixin))
        sets = {"X": rows}
        if X_unlabelled is not None:
            sets["X_unlabelled"] = validate_data(self, X_unlabelled, reset=False)
        nc = find_nc(self.nc) if isinstance(self.nc, str | Path) else self.nc
        Y, outputs, *ends = self._read_targets(nc, given)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        like = torch.empty(0) if nc is None else nc.x_mean
        D, (mean, scale) = rows.shape[1], _units("X", rows)

        def make() -> nn.Module:
            start = (nn.Flatten(), Affine(1 / scale, -mean / scale))
            return nn.Sequential(*start, *mlp(D, self.hidden, outputs), *ends).to(like.dtype)

        shape = (D,) if nc is None else nc.shape or (D,)  # images come as rows of pixels
        if prod(shape) != D:
            raise ValueError(f"X must have {prod(shape)} features as NC's inputs have, got {D}")
        place: Any = {"shape": shape, "dtype": like.dtype, "device": like.device}
        parts = [inputs(name, some.reshape(-1, *shape), **place) for name, some in sets.items()]
        loss = squared_error if Y.is_floating_point() else cross_entropy
        recipe = Recipe(make=make, loss=loss, steps=self.steps, lr=self.lr, optimizer=Adam)
        classes = outputs if nc is not None and nc.labels and nc.symmetric else None
        points, Y = torch.cat(parts), Y.to(like.device)
        own = Training(points, Y, recipe, self.batch, seed, nc, classes, self.floor)
        h = self._train(own, list(map(float, weights)))
        if not all(p.isfinite().all() for p in h.parameters()):
            wanted = "small enough for training to stay finite"
            raise ValueError(f"lr must be {wanted}, got {self.lr} and a network that diverged")
        self.network_ = h.one(0).cpu()
        return self

    def _read_targets(self, nc: Any, y: Array) -> tuple[Tensor, int, *tuple[nn.Module, ...]]:
        """Returns targets, (points,) or (points, 1), outputs of a network, and how it ends."""
        labels = isinstance(self, ClassifierMixin)
        if nc is not None and not isinstance(nc, NeuralComplexity):
            got = type(nc).__name__
            raise TypeError(f"nc must be a NeuralComplexity, a path, a name or None, got {got}")
        if nc is not None and nc.labels != labels:
            kinds = ("real targets", "labels")
            raise ValueError(f"nc must be for {kinds[labels]}, got one for {kinds[not labels]}")
        if labels:
            check_classification_targets(y)
            self.classes_, indices = np.unique(y, return_inverse=True)
            order: Sequence[Any] = self.classes_.tolist()
            if nc is not None and not nc.symmetric:  # its classes have an order of their own
                order = nc.card.classes or range(nc.outputs)
            self._columns = encode(self.classes_, order)
            return self._columns[indices], len(order)
        if nc is not None and nc.outputs != 1:
            raise ValueError(f"nc must be for one output, got one for {nc.outputs}")
        column = np.asarray(y, dtype=float)[:, None]
        mean, scale = _units("y", column)
        self._columns = torch.arange(1)
        # Learns in units of the targets' spread, and is judged in their own.
        Y = inputs("y", column, dtype=None if nc is None else nc.x_mean.dtype)
        return Y, 1, Affine(scale, mean)

    def _train(self, own: Training, weights: list[float]) -> BatchedLearner:
        """Trains the network with the best of the weights, and sets what was found on the way."""
        indices = torch.arange(len(own.X), device=own.X.device)
        points, others = indices.tensor_split([len(own.Y)])
        if own.nc is None:
            return own.train(own.task(points, points))
        factor, (task, seen, encode) = 1.0, own.arrange(points, others)
        if self.safeguard:
            self.trust_ = float(proof(own.nc, values(seen.X_tr), seen.Y_tr, classes=own.classes))
            factor = safeguard_factor(own.nc, self.trust_)
            if not factor:
                warnings.warn(UNTRUSTED, stacklevel=3)
            weights = [*weights, 0.0] if factor else [0.0]
        self.weight_ = own.choose(list(dict.fromkeys(weights)), factor, points, others)
        h = own.train(task, own.penalty(encode, task, self.weight_ * factor))
        with torch.no_grad():
            self.gap_ = float(minibatch_penalty(own.nc, encode, floor=None)(h, evaluate(h, task)))
        return h

    @torch.no_grad()
    def _predictions(self, X: ArrayLike) -> Tensor:
        """Returns the network's predictions, (points, C), in the order of the classes."""
        check_is_fitted(self)
        check_dense("X", X)
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
            the network learns from NC alone, which knows the labels; below, more from labels. An NC
            for tables keeps the first unless another is better by a standard error, times the share
            of the training points that it can see; without X_unlabelled it knows no more than the
            labels do, and the smallest is taken.
        floor: See `nc_penalty`.
        safeguard: Whether NC has to prove itself: its weight is multiplied by the square of
            `trust`, or by `reliance` if it is for tables, and 0, which leaves it out, is one of the
            weights to choose from.
        random_state: An integer makes `fit` repeatable.

    Attributes:
        classes_: The classes, (C,).
        n_features_in_: Input features, D.
        network_: The network, in evaluation mode; maps (points, D) to logits.
        trust_: Trust, or reliance, 0 to 1, if there is an NC and the safeguard is on.
        weight_: The weight that was chosen, if there is an NC.
        gap_: The gap that it predicts for the network, if there is one.

    Example:
        >>> X, y = [[0.0], [0.1], [0.9], [1.0]], ["low", "low", "high", "high"]
        >>> NCClassifier(steps=100, random_state=0).fit(X, y).predict([[0.2], [0.8]]).tolist()
        ['low', 'high']
    """

    def predict(self, X: ArrayLike) -> Array:
        """Returns the likeliest class of each input, (points,)."""
        likeliest = self._predictions(X).argmax(dim=1).numpy()
        return np.asarray(self.classes_[likeliest])

    def predict_proba(self, X: ArrayLike) -> Array:
        """Returns the probability of each class, (points, C)."""
        return self._predictions(X).double().softmax(dim=1).numpy()  # doubles sum to 1


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

    def predict(self, X: ArrayLike) -> Array:
        """Returns the prediction for each input, (points,)."""
        return self._predictions(X).squeeze(1).numpy()


def _units(name: str, rows: Array) -> tuple[Tensor, Tensor]:
    """Returns mean and spread of each column, (D,); what does not vary has nothing to scale."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean, scale = rows.mean(axis=0, dtype=float), rows.std(axis=0, dtype=float)
    if not np.isfinite(scale).all():
        raise ValueError(f"{name} must hold numbers of ordinary size, got {np.abs(rows).max():g}")
    return torch.from_numpy(mean), torch.from_numpy(np.where(scale > 0, scale, 1.0))
