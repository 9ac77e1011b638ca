"""Labelled points that a model did not learn from: what NC believed of them, and what was true."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest, norm
from sklearn.base import clone
from torch import Tensor

from neural_complexity.assessment.draws import beliefs, parts_of
from neural_complexity.assessment.metrics import Estimate
from neural_complexity.assessment.prepare import check_sets, read_points, with_probabilities
from neural_complexity.assessment.tilt import (
    ASSUMED,
    Tilt,
    likelihood_of_errors,
    likelihood_of_labels,
)
from neural_complexity.beliefs import Belief
from neural_complexity.convert import arrays_in as given
from neural_complexity.convert.folds import choose_folds, take
from neural_complexity.losses import squared_error, zero_one
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot

__all__ = ["Checked", "Labelled", "Pair", "believe_out_of_fold", "compare"]
__all__ += ["compare_held_out", "compare_out_of_fold"]
__all__ += ["gather_labelled", "learn_tilt", "prediction_powered", "refit_out_of_fold"]

RESAMPLES = 1000  # of points, for intervals
FOLDS = 5  # of NC's own, where those of the predictions are not known
Pair = tuple[Tensor, Tensor]  # what NC believed, and what was, (n,) each
Known = tuple[Tensor, float, Belief]  # numbers of points, the weight of a belief, and the belief


@dataclass(frozen=True, eq=False)
class Checked:
    """How NC did at labelled points that the model did not learn from."""

    points: int
    expected: float  # the share that NC expected to be wrong, or the mean squared error
    measured: float  # what it was
    errors: NDArray[np.float64]  # what is expected of each of them by now, (points,)
    labels: bool  # whether targets are classes

    def __str__(self) -> str:
        told, was = self.expected, self.measured
        what = "squared error"
        if self.labels:
            told, was, what = 1 - told, 1 - was, "accuracy"
        return f"NC expected {what} {told:.3g} on {self.points}, it was {was:.3g}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the numbers but those of single points."""
        return {name: value for name, value in vars(self).items() if name != "errors"}


@dataclass(frozen=True)
class Labelled:
    """Labelled points that a model, or copies of it, did not learn from; there may be none."""

    H_out: Tensor | None = None  # of training points, (M, C), out of fold
    folds: int = FOLDS  # of these
    X: Tensor | None = None  # held-out points, (n, D)
    y: Any = None  # their targets, as they were given
    H: Tensor | None = None  # predictions at these, (n, C)

    def compare(
        self, nc: NeuralComplexity, snapshot: Snapshot, names: Sequence[Any] | None
    ) -> list[Pair]:
        """Returns what NC believed of all of them, and what was true."""
        X_tr, Y_tr, C = snapshot.X_tr[0], snapshot.Y_tr[0], snapshot.H_te.shape[2]
        found, place = list[Pair](), dict[str, Any](dtype=X_tr.dtype, device=X_tr.device)
        if self.H_out is not None:
            if self.H_out.shape != (len(X_tr), C):
                got = tuple(self.H_out.shape)
                raise ValueError(f"out_of_fold must be ({len(X_tr)}, {C}), got shape {got}")
            H = self.H_out.to(**place)
            found.append(compare_out_of_fold(nc, X_tr, Y_tr, H, folds=self.folds))
        if self.X is not None and self.H is not None:
            y = self.y if names is None else given.encode(self.y, names, name="held_out")
            outputs = C if nc.labels else 1
            options: Any = {"points": len(self.X), "outputs": outputs, "labels": nc.labels}
            Y = given.targets("held_out", y, **options, **place)
            held = self.X.to(**place), Y, self.H.to(**place)
            found.append(compare_held_out(nc, X_tr, Y_tr, *held))
        return found

    def score(
        self, nc: NeuralComplexity, snapshot: Snapshot, confidence: float
    ) -> dict[str, Estimate]:
        """Returns what cross-validation alone says: mean loss out of fold, and accuracy."""
        if self.H_out is None:
            return {}
        H, Y = self.H_out.to(snapshot.H_tr)[None], snapshot.Y_tr
        losses = nc.loss(H, Y)[0].double().cpu().numpy()
        half = float(norm.isf((1 - confidence) / 2) * losses.std() / len(losses) ** 0.5)
        mean = float(losses.mean())
        found = {"loss": Estimate(mean, mean - half, mean + half, confidence)}
        if not nc.labels:
            h, y = (t[0, :, 0].double().cpu() for t in (H, Y))
            return found | _score_numbers(h, y, confidence)
        right = int((1 - zero_one(H, Y)).sum())
        ends = binomtest(right, len(losses)).proportion_ci(confidence, method="wilson")
        share = right / len(losses)
        found["accuracy"] = Estimate(share, float(ends.low), float(ends.high), confidence)
        return found


def _score_numbers(H: Tensor, Y: Tensor, confidence: float) -> dict[str, Estimate]:
    """Returns R2 and the mean absolute error of predictions, (M,), with bootstrap intervals."""
    rows = torch.randint(len(Y), (RESAMPLES, len(Y)), generator=stream(0, "bootstrap"))
    rows[0] = torch.arange(len(Y))  # the points themselves come first
    h, y = H[rows], Y[rows]
    spread = (y - y.mean(dim=1, keepdim=True)).square().mean(dim=1)
    r2 = 1 - (h - y).square().mean(dim=1) / spread.clamp(min=torch.finfo(y.dtype).tiny)
    tails = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=y.dtype)
    found = {}
    for name, each in (("r2", r2), ("mean_absolute_error", (h - y).abs().mean(dim=1))):
        low, high = torch.quantile(each, tails).tolist()
        found[name] = Estimate(each[0].item(), low, high, confidence)
    return found


def gather_labelled(
    nc: NeuralComplexity,
    model: Any,
    X_tr: Any,
    y_tr: Any,
    *,
    classes: Sequence[Any] | None = None,
    folds: int | None = None,
    held_out: tuple[Any, Any] | None = None,
    out_of_fold: Any = None,
) -> Labelled:
    """Fits again, or reads, what a user has; see `prepare.Options`."""
    if folds is not None and out_of_fold is not None:
        raise ValueError("folds must be left out where out_of_fold is given, got both")
    if not nc.architecture.for_tables:
        return Labelled(folds=folds or FOLDS)  # refused where NC is asked
    like, H_out = nc.x_mean, None
    if folds is not None:
        names = given.columns_of(model) if classes is None else classes
        out_of_fold = refit_out_of_fold(
            model, X_tr, y_tr, folds, classes=names if nc.labels else None
        )
    if out_of_fold is not None:
        H = given.numbers("out_of_fold", out_of_fold)
        H = given.logarithms("out_of_fold", H) if nc.labels else H
        H_out = given.targets("out_of_fold", H, labels=False, dtype=like.dtype)
    if held_out is None:
        return Labelled(H_out, folds or FOLDS)
    if not (isinstance(held_out, tuple | list) and len(held_out) == 2):
        got = type(held_out).__name__
        raise TypeError(f"held_out must be inputs and targets, (X, y), got {got}")
    X, y = held_out
    check_sets(X_tr, None, X, name="held_out")
    if nc.labels:
        model, _ = with_probabilities(model, X_tr, y_tr)
    H = given.predict("held_out", model, X, labels=nc.labels, like=like)
    return Labelled(H_out, folds or FOLDS, read_points(nc, X_tr, X)[1], y, H)


def refit_out_of_fold(
    model: Any, X: Any, y: Any, folds: int, *, classes: Sequence[Any] | None = None
) -> NDArray[Any]:
    """Fits copies of a scikit-learn estimator without a fold each, and predicts the folds, (M, C).

    Args:
        model: The estimator, as the user has it.
        X: Training inputs.
        y: Their targets, (M,) or (M, 1).
        folds: How many.
        classes: Of the columns, if targets are labels; a class that a fit lacks has probability 0.

    Raises:
        TypeError: If the model cannot be copied and fitted again.
        ValueError: If there are fewer than two folds, or a fit fails.
    """
    y = given.array(y).reshape(len(y))
    if not 2 <= folds <= len(y):
        raise ValueError(f"folds must be from 2 to the number of points, got {folds}")
    if callable(model) or not (hasattr(model, "fit") and hasattr(model, "get_params")):
        wanted = "a scikit-learn estimator, which folds fit again (or give out_of_fold)"
        raise TypeError(f"model must be {wanted}, got {type(model).__name__}")
    labels = classes is not None
    codes = given.encode(y, classes, name="y_tr").numpy() if classes is not None else y
    found = np.zeros((len(y), len(classes) if classes is not None else 1))
    for kept, held in choose_folds(codes, folds, labels=labels):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # those of the fit were seen before
                fitted = clone(model).fit(take(X, kept), y[kept])
                if labels:
                    fitted, _ = with_probabilities(fitted, take(X, kept), y[kept])
                    p = fitted.predict_proba(take(X, held))
                    places = given.encode(fitted.classes_, classes or (), name="classes").numpy()
                    found[np.ix_(held, places)] = p
                else:
                    found[held] = np.asarray(fitted.predict(take(X, held))).reshape(-1, 1)
        except Exception as error:
            got = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}"
            raise ValueError(f"the model must fit {folds} folds, got {got}") from error
    return found


def compare_held_out(
    nc: NeuralComplexity, X_tr: Tensor, Y_tr: Tensor, X: Tensor, Y: Tensor, H: Tensor
) -> Pair:
    """Returns what NC believed of predictions H, (n, C), at points X, and what was true.

    That is the probability that they are wrong and whether they were, or expected and true squared
    errors; (n,) each.
    """
    rows = torch.arange(len(X), device=X.device)
    classes = H.shape[1] if nc.labels else None
    return compare(nc, list(_believe(nc, (X_tr, Y_tr), (X, rows), classes)), Y, H)


def compare_out_of_fold(
    nc: NeuralComplexity, X: Tensor, Y: Tensor, H: Tensor, *, folds: int = FOLDS
) -> Pair:
    """Does the same for training points, of which NC does not see a fold when asked about it."""
    classes = H.shape[1] if nc.labels else None
    return compare(nc, believe_out_of_fold(nc, X, Y, classes=classes, folds=folds), Y, H)


def believe_out_of_fold(
    nc: NeuralComplexity, X: Tensor, Y: Tensor, *, classes: int | None, folds: int = FOLDS
) -> list[Known]:
    """Returns NC's beliefs about training points of which it does not see a fold."""
    found = list[Known]()
    for fold in choose_folds(Y.cpu().numpy().reshape(len(Y)), folds, labels=nc.labels):
        kept, held = (torch.from_numpy(rows).to(X.device) for rows in fold)
        found += _believe(nc, (X[kept], Y[kept]), (X[held], held), classes)
    return found


def _believe(
    nc: NeuralComplexity, train: Pair, asked: Pair, classes: int | None
) -> Iterator[Known]:
    """Yields beliefs about points, given with their numbers, from training points and targets."""
    (X, rows), share = asked, 1 / len(parts_of(nc, len(train[0]), len(asked[0])))
    for _, some, belief in beliefs(nc, *train, X, classes=classes):
        yield rows[some], share, belief


def compare(nc: NeuralComplexity, known: list[Known], Y: Tensor, H: Tensor) -> Pair:
    """Returns what is believed of predictions H, (n, C), at points, and what is true by Y."""
    told = torch.zeros(len(H), dtype=torch.float64)
    loss = zero_one if nc.labels else squared_error
    for rows, share, belief in known:
        told[rows.cpu()] += share * loss.expected(H[None, rows], belief)[0].double().cpu()
    return told, loss(H[None], Y[None])[0].double().cpu()


def prediction_powered(
    pairs: Sequence[Pair], told: Tensor, *, labels: bool, confidence: float
) -> Estimate | None:
    """Estimates accuracy, or squared error, so that the interval holds whatever NC believes.

    What NC expects of new points is corrected by how far it was off at labelled ones, and both
    count by their own noise. That holds if new points are like the labelled ones, of which there
    must be at least two.

    Args:
        pairs: What NC believed of labelled points, and what was; see `compare_held_out`.
        told: What it believes of new points, (N,).
        labels: Whether targets are classes.
        confidence: Of the interval.
    """
    off = [(true - believed).double() for believed, true in pairs]
    if sum(map(len, off)) < 2:
        return None
    known = torch.cat(off)
    value = float(told.double().mean() + known.mean())
    noise = known.var(correction=1) / len(known) + told.double().var(correction=0) / len(told)
    half = float(norm.isf((1 - confidence) / 2) * noise.sqrt())
    value = 1 - value if labels else value
    ends = np.clip([value - half, value + half], 0, 1 if labels else None)
    return Estimate(float(np.clip(value, *ends)), float(ends[0]), float(ends[1]), confidence)


def learn_tilt(nc: NeuralComplexity, pairs: list[Pair]) -> Tilt:
    """Returns the tilt of a model at labelled points, given what was believed there."""
    tilt = Tilt.prior(ASSUMED[nc.labels])
    for pair in pairs:
        tilt = tilt.after((likelihood_of_labels if nc.labels else likelihood_of_errors)(*pair))
    return tilt
