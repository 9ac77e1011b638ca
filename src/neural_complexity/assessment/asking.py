"""NC's opinion of one model: how badly it will generalize, where, and how sure that is."""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neural_complexity.bounds import METHODS, Interval, Likeness, Method, bound, unlike
from neural_complexity.data import encode, inputs, numbers, pair, targets
from neural_complexity.losses import zero_one
from neural_complexity.model.complexity import NeuralComplexity
from neural_complexity.model.judging import Judgement, features, judge
from neural_complexity.predictions import (
    check_predictions,
    columns_of,
    in_order,
    looks_like_shares,
    predict,
)
from neural_complexity.regularizers.trust import trust
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from neural_complexity.report.assessing import Findings

__all__ = ["Assessment", "assess", "assess_predictions"]

# Between families of tasks in the experiment `harm`, NC's gaps were no use (R2 below 0) where its
# mean trust was 0.18 or less, and of use where it was 0.49 or more.
LOW_TRUST = 0.3
UNUSUAL = 0.05  # p-values below it are told
SHOWN = 5  # of the worst points in a summary
TESTED = 256  # training points that trust is found out on, at most, and
NUMBERS = 50_000  # points times classes: both bound memory
UNCALIBRATED = (
    "NC is not calibrated, so there is no bound and no test whether the model is unlike those that "
    "NC knows: nc.calibrate with held-out learners gives both."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Assessment:
    """What NC says about one model. All losses are of the kind that NC was trained to predict."""

    gap: float
    """Predicted test loss minus training loss; positive means that the model overfits."""
    loss_tr: float
    """Training loss, measured."""
    loss_te: float
    """Test loss, predicted."""
    accuracy_tr: float | None
    """Share of training points that the model gets right, measured; `None` for real targets."""
    accuracy_te: float | None
    """The same for test points, predicted; `None` also for the direct head."""
    points: NDArray[np.float64]
    """Predicted loss of each test point, (N,)."""
    spread: float
    """NC's own standard deviation of the test loss; no bound by itself."""
    bound: Interval | None
    """Where the gap lies at the confidence that was asked for; `None` if NC is not calibrated."""
    trust: float | None
    """How far NC understands this training set, from 0 to 1 (see `trust`); `None` if it cannot be
    found out."""
    unlike: Likeness | None
    """Whether the model and its data are like those that NC was calibrated on, with a p-value;
    `None` if NC is not calibrated."""
    warnings: tuple[str, ...]
    """What to keep in mind, in plain sentences."""
    loss: str
    """The name of the loss."""
    training_points: int
    """How many there were, M."""

    def worst(self, k: int = 10) -> list[int]:
        """Gives the numbers, from 0, of the test points with the largest predicted loss.

        Args:
            k: How many, all of them if there are fewer.

        Raises:
            ValueError: If k is negative.
        """
        if k < 0:
            raise ValueError(f"k must be at least 0, got {k}")
        order: list[int] = np.argsort(-self.points, kind="stable")[:k].tolist()
        return order

    def to_dict(self) -> dict[str, Any]:
        """Gives everything as numbers, text, lists and `None`, as JSON knows them.

        An end of a bound that is infinite is `None`.
        """
        interval = None if self.bound is None else asdict(self.bound)
        if interval is not None:
            interval |= {end: _finite(interval[end]) for end in ("low", "high")}
        return {
            "gap": self.gap,
            "loss": self.loss,
            "loss_tr": self.loss_tr,
            "loss_te": self.loss_te,
            "accuracy_tr": self.accuracy_tr,
            "accuracy_te": self.accuracy_te,
            "spread": self.spread,
            "bound": interval,
            "trust": self.trust,
            "unlike": None if self.unlike is None else asdict(self.unlike),
            "training_points": self.training_points,
            "test_points": len(self.points),
            "warnings": list(self.warnings),
            "worst": self.worst(),
            "points": self.points.tolist(),
        }

    def plot(self) -> "Figure":
        """Draws the predicted loss of each test point, and the bound against the training loss.

        Returns:
            A matplotlib figure of two panels; `savefig` writes it.
        """
        from neural_complexity.report.assessing import draw

        return draw(self._findings())

    def to_html(self) -> str:
        """Makes one page of everything, which needs no other file and no network."""
        from neural_complexity.report.assessing import draw, tables
        from neural_complexity.report.drawing import to_png
        from neural_complexity.report.page import Figure, render

        found = self._findings()
        details = {k: v for k, v in self.to_dict().items() if k != "points"}
        lead = (
            f"Neural Complexity read {self.training_points} labelled training points and "
            f"{len(self.points)} unlabelled test points, and what the model says about both."
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "assessment.png"
            path.write_bytes(to_png(draw(found)))
            picture = Figure(
                path,
                "How the loss is expected to spread",
                "Left: every test point by its predicted loss. Right: the predicted test loss next "
                "to the training loss.",
            )
            return render(
                f"Predicted gap: {_signed(self.gap)}",
                lead,
                tables(found),
                [picture],
                details,
                remarks=self.warnings,
                detailed="All numbers but those of single points",
            )

    def __repr__(self) -> str:
        sizes = f"{self.training_points} training and {len(self.points)} test points"
        right_tr, right_te = (
            "" if share is None else f"   accuracy {100 * share:.1f} %"
            for share in (self.accuracy_tr, self.accuracy_te)
        )
        worst = ", ".join(f"{i} ({self.points[i]:.3g})" for i in self.worst(SHOWN))
        lines = [
            f"Assessment on {sizes}, {self.loss.replace('_', ' ')}",
            f"  training loss        {self.loss_tr:.4g}{right_tr}",
            f"  predicted test loss  {self.loss_te:.4g}{right_te}",
            f"  predicted gap        {_signed(self.gap)}",
            f"  bound of the gap     {self._bound_told()}",
            f"  trust                {'unknown' if self.trust is None else f'{self.trust:.2f}'}",
            f"  like calibration     {self._likeness_told()}",
            f"  worst test points    {worst}",
            *(f"  note: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)

    def _bound_told(self) -> str:
        if self.bound is None:
            return "none"
        ends = f"{_signed(self.bound.low)} to {_signed(self.bound.high)}"
        return f"{ends} at {100 * self.bound.confidence:g} % ({self.bound.method})"

    def _likeness_told(self) -> str:
        return "unknown" if self.unlike is None else f"p = {self.unlike.p_value:.2g}"

    def _findings(self) -> "Findings":
        from neural_complexity.report.assessing import Findings

        interval, told = None, "no bound: NC is not calibrated"
        if self.bound is not None:
            low, high = (self.loss_tr + end for end in (self.bound.low, self.bound.high))
            interval = (max(low, 0.0), max(high, 0.0))  # no loss is negative
            told = f"{100 * self.bound.confidence:g} % bound ({self.bound.method})"
        return Findings(
            loss=self.loss,
            loss_tr=self.loss_tr,
            loss_te=self.loss_te,
            accuracy_tr=self.accuracy_tr,
            accuracy_te=self.accuracy_te,
            interval=interval,
            told=told,
            points=self.points,
            worst=self.worst(),
        )


def assess(
    nc: NeuralComplexity,
    model: Any,
    X_tr: object,
    y_tr: object = None,
    X_te: object = None,
    *,
    classes: Sequence[Any] | None = None,
    confidence: float = 0.95,
    method: Method = "conformal",
) -> Assessment:
    """Predicts how badly a trained model generalizes, from its training set and unlabelled points.

    The model is asked about both sets and left as it was: modes, buffers and random numbers of
    PyTorch are restored. What NC judges are logits, or real outputs; that a model returns
    probabilities where logits are wanted cannot be told for certain, so it is warned of.

    Args:
        nc: The gap predictor.
        model: Any callable that maps a tensor of points to logits, (points, C), or real outputs; a
            `torch.nn.Module`, which is asked in evaluation mode, in parts, with numbers of its
            parameters' type and on their device; or a fitted scikit-learn estimator, a classifier
            with `predict_proba` or a regressor. Points have the layout in which they are given.
        X_tr: The training inputs: an array, a tensor, nested lists or a data frame; or a `Dataset`
            or `DataLoader` of pairs (x, y), and then y_tr is `None`.
        y_tr: Their targets: labels, (points,), or real numbers, (points,) or (points, C).
        X_te: The test inputs, likewise; labels that come with them are not looked at.
        classes: The class of each column of the model's predictions; if `None`, what an estimator
            says, or NC's own classes. A class of NC that has no column counts as next to
            impossible.
        confidence: How often the bound should hold.
        method: Of the bound, see `bounds.bound`.

    Returns:
        NC's opinion.

    Raises:
        TypeError: If something is of a kind that cannot be used.
        ValueError: If something has a wrong size or value, or the model cannot be asked.
    """
    X_tr, y_tr = pair("X_tr", X_tr, y_tr)
    if y_tr is None:
        raise TypeError("y_tr must be the training targets, got None")
    if X_te is None:
        raise TypeError("X_te must be test inputs, which need no labels, got None")
    X_te, _ = pair("X_te", X_te)
    like = nc.x_mean
    shape = nc.shape
    for name, X in (("X_tr", X_tr), ("X_te", X_te)):  # before the model stumbles over it
        inputs(name, X, shape=shape, dtype=like.dtype)
    H_tr, H_te = (
        predict(name, model, X, labels=nc.labels, like=like)
        for name, X in (("X_tr", X_tr), ("X_te", X_te))
    )
    return assess_predictions(
        nc,
        X_tr,
        y_tr,
        H_tr,
        X_te,
        H_te,
        classes=columns_of(model) if classes is None and nc.labels else classes,
        confidence=confidence,
        method=method,
    )


def assess_predictions(
    nc: NeuralComplexity,
    X_tr: object,
    y_tr: object,
    H_tr: object,
    X_te: object,
    H_te: object,
    *,
    classes: Sequence[Any] | None = None,
    confidence: float = 0.95,
    method: Method = "conformal",
) -> Assessment:
    """Does the same as `assess` for a model that lives elsewhere, from its predictions.

    Args:
        nc: The gap predictor.
        X_tr: As in `assess`.
        y_tr: As in `assess`.
        H_tr: The model's predictions for X_tr, (M, C): logits if targets are labels.
        X_te: As in `assess`.
        H_te: The model's predictions for X_te, (N, C).
        classes: As in `assess`.
        confidence: As in `assess`.
        method: As in `assess`.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method}")
    if classes is not None and not nc.labels:
        raise ValueError("classes must be None where NC judges real targets, got classes")
    (X_tr, y_tr), (X_te, _) = pair("X_tr", X_tr, y_tr), pair("X_te", X_te)
    like = nc.x_mean
    X_tr, X_te = (
        inputs(name, X, shape=nc.shape, dtype=like.dtype, device=like.device)
        for name, X in (("X_tr", X_tr), ("X_te", X_te))
    )
    M = len(X_tr)
    H_tr = check_predictions("H_tr", numbers("H_tr", H_tr).to(like), M)
    H_te = check_predictions("H_te", numbers("H_te", H_te).to(like), len(X_te))
    shares = nc.labels and H_tr.shape[1] > 1 and looks_like_shares(torch.cat([H_tr, H_te]))
    if nc.labels:
        known = _classes(nc, H_te, classes)
        columns = known if classes is None else classes
        H_tr, H_te = (
            in_order(name, H, columns, known) for name, H in (("H_tr", H_tr), ("H_te", H_te))
        )
        y_tr = _labels(nc, y_tr, known, classes, M).to(like.device)
    else:
        for name, H in (("H_tr", H_tr), ("H_te", H_te)):
            if H.shape[1] != nc.outputs:
                raise ValueError(
                    f"{name} must have {nc.outputs} columns like NC's targets, got {H.shape[1]}"
                )
        y_tr = targets(
            "y_tr",
            y_tr,
            labels=False,
            outputs=nc.outputs,
            points=M,
            dtype=like.dtype,
            device=like.device,
        )
    snapshot = Snapshot(*(t.unsqueeze(0) for t in (X_tr, y_tr, H_tr, X_te, H_te)))
    return _opinion(nc, snapshot, confidence, method, shares=shares)


def _classes(nc: NeuralComplexity, H: Tensor, columns: Sequence[Any] | None) -> Sequence[Any]:
    """Gives the classes in NC's order; one that knows no names takes any."""
    names = nc.provenance.get("classes")
    if names is not None:
        return list(names)
    if not nc.symmetric:
        return range(nc.outputs)
    return range(H.shape[1]) if columns is None else list(columns)


def _labels(
    nc: NeuralComplexity, y: object, known: Sequence[Any], columns: object, points: int
) -> Tensor:
    """Gives labels as numbers of NC's classes, (M,)."""
    if nc.provenance.get("classes") is None and (columns is None or not nc.symmetric):
        numbered = targets("y_tr", y, labels=True, points=points)
        if len(known) == 1 and numbered.any():
            raise ValueError(
                "predictions must have one column for each class, got one column for several "
                "labels: a single logit z of two classes is the columns 0 and z"
            )
        return targets("y_tr", numbered, labels=True, outputs=len(known))
    numbered = encode(y, known, name="y_tr")
    return targets("y_tr", numbered, labels=True, points=points)


def _opinion(
    nc: NeuralComplexity, snapshot: Snapshot, confidence: float, method: Method, *, shares: bool
) -> Assessment:
    """Asks NC about one learner, and how far its answer can be relied on."""
    judgement = judge(nc, snapshot)
    gap, loss_tr = judgement.gap.item(), judgement.loss_tr.item()
    if not math.isfinite(gap):
        raise ValueError(
            "inputs and predictions must be of a size that losses can be computed from, got "
            f"inputs up to {_size(snapshot.X_tr, snapshot.X_te)} and predictions up to "
            f"{_size(snapshot.H_tr, snapshot.H_te)}"
        )
    M, right = snapshot.X_tr.shape[1], judgement.accuracy.item()
    trusted = _trust(nc, snapshot)
    interval, like, reasons = _reliability(nc, snapshot, judgement, confidence, method)
    warnings = [*_doubts(trusted, M), *reasons]
    if shares:
        warnings.insert(
            0,
            "The predictions look like probabilities, but NC takes them for logits: give their "
            "logarithm.",
        )
    points = (judgement.points + judgement.loss_tr).squeeze(0).double().cpu().numpy()
    measured = 1 - zero_one(snapshot.H_tr, snapshot.Y_tr).mean().item() if nc.labels else None
    return Assessment(
        gap=gap,
        loss_tr=loss_tr,
        loss_te=float(points.mean()),
        accuracy_tr=measured,
        accuracy_te=right if math.isfinite(right) else None,
        points=points,
        spread=judgement.spread.item(),
        bound=interval,
        trust=trusted,
        unlike=like,
        warnings=tuple(warnings),
        loss=nc.loss.name,
        training_points=M,
    )


def _size(*tensors: Tensor) -> str:
    return f"{max(tensor.abs().max().item() for tensor in tensors):.3g}"


def _trust(nc: NeuralComplexity, snapshot: Snapshot) -> float | None:
    """Finds out on some training points how far NC understands them, if that can be."""
    Y = snapshot.Y_tr[0]
    classes = snapshot.H_tr.shape[-1] if nc.labels else None
    few = min(TESTED, max(2, NUMBERS // (classes or 1)))
    chosen = _some(Y, few, labels=nc.labels).to(Y.device)
    if len(chosen) < 2 or (nc.labels and len(Y[chosen].unique()) == len(chosen)):
        return None
    return trust(nc, snapshot.X_tr[:, chosen], snapshot.Y_tr[:, chosen], classes=classes).item()


def _some(Y: Tensor, few: int, *, labels: bool) -> Tensor:
    """Chooses points at random, by twos of a class, as one is tested from the other."""
    order = torch.randperm(len(Y), generator=stream(0, "points to test NC on"))
    if not labels:
        return order[:few]
    y = Y.cpu()[order]
    counts = y.bincount()
    by_class = y.argsort(stable=True)
    start = counts.cumsum(0) - counts
    rank = torch.empty_like(y)
    rank[by_class] = torch.arange(len(y)) - start[y[by_class]]  # of a point in its class
    # Those that have no other one of their class come last.
    turn = torch.where(counts[y] == 1, len(y), rank // 2)
    turns = torch.stack([turn, y], dim=1)
    return order[np.lexsort((turns[:, 1].numpy(), turns[:, 0].numpy()))][:few]


def _doubts(trusted: float | None, M: int) -> list[str]:
    if trusted is None:
        return [
            f"How far NC understands this training set cannot be found out from its {M} "
            f"{'point' if M == 1 else 'points'}: two of one class are the least."
        ]
    if trusted < LOW_TRUST:
        return [
            f"NC does not understand this training set (trust {trusted:.2f}): it was trained on "
            "other data, and its numbers may be far off."
        ]
    return []


def _reliability(
    nc: NeuralComplexity,
    snapshot: Snapshot,
    judgement: Judgement,
    confidence: float,
    method: Method,
) -> tuple[Interval | None, Likeness | None, list[str]]:
    """Gives the bound of the gap, whether the model is like those calibrated on, and doubts."""
    calibration = nc.calibration
    if calibration is None:
        return None, None, [UNCALIBRATED]
    interval = bound(
        calibration,
        judgement.gap.item(),
        judgement.spread.item(),
        confidence=confidence,
        method=method,
        least=-judgement.loss_tr.item(),
    )
    like = unlike(calibration, features(nc, snapshot, judgement).squeeze(0))
    doubts = []
    if math.isinf(interval.high):
        doubts.append(_sentence(interval.note))
    if like.p_value < UNUSUAL:
        doubts.append(
            "The model or its data is unlike what NC was calibrated on, so that the bound need not "
            f"hold: {like.note}."
        )
    beyond = calibration.beyond(snapshot.X_tr.shape[1], snapshot.X_te.shape[1])
    if beyond:
        doubts.append(_sentence(beyond))
    return interval, like, doubts


def _sentence(note: str) -> str:
    return f"{note[:1].upper()}{note[1:]}."


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _signed(value: float) -> str:
    return f"{value:+.3g}"
