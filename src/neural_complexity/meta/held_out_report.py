"""How far an NC can be trusted, measured on learners that it was not trained on."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from neural_complexity import ledger
from neural_complexity.meta.executor import Collection
from neural_complexity.meta.scores import correlation, estimate, mean_absolute_error, r_squared
from neural_complexity.model.card import HeldOutReport
from neural_complexity.model.judgement import Judgement
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.reliability.gap_bounds import margin
from neural_complexity.snapshot import gap

__all__ = ["belief_loss", "compare", "describe", "make_report"]

LEAST = 10  # learners of a kind, to say something about it
KINDS = ("training points", "training loss", "true gap")


def compare(
    nc: NeuralComplexity, collections: Sequence[Collection], judgements: Sequence[Judgement]
) -> dict[str, Tensor]:
    """Compares judgements with the truth, learners that diverged left out.

    Args:
        nc: The gap predictor.
        collections: Learners and their test targets, any number of each size.
        judgements: What NC predicts about them.

    Returns:
        One value per learner, (n,), of each name: predicted and true gap, training loss and points.
    """
    rows = []
    for (snapshot, Y_te), judgement in zip(collections, judgements, strict=True):
        ledger.record("hold", snapshot.X_te, Y_te)
        true = gap(nc.loss, snapshot, Y_te)
        finite = judgement.gap.isfinite() & true.isfinite()
        points = torch.full_like(true, snapshot.H_tr.shape[1])
        columns = (judgement.gap, true, judgement.loss_tr, points)
        rows.append([column[finite].double().cpu() for column in columns])
    names = ("predicted", "true gap", "training loss", "training points")
    whole = [torch.cat(column) for column in zip(*rows, strict=True)]
    return dict(zip(names, whole, strict=True))


@torch.no_grad()
def belief_loss(nc: NeuralComplexity, collections: Sequence[Collection]) -> float | None:
    """Returns what NC's own beliefs cost on test points that it has not learned from.

    Args:
        nc: The gap predictor.
        collections: Learners on such points and their test targets; what they predict is ignored.

    Returns:
        The mean loss of the beliefs, from as many training points as NC sees at once; `None` if its
        head has none.
    """
    losses, size = [], nc.card.context_size
    for snapshot, Y_te in collections:
        context = nc.encode(snapshot.X_tr[:, :size], snapshot.Y_tr[:, :size], snapshot.X_te)
        belief = nc.head.belief(context.state)
        if belief is None:
            return None
        losses.append(nc.loss(belief.prediction, Y_te).mean(dim=1))
    return torch.cat(losses).mean().item()


def make_report(compared: dict[str, Tensor]) -> HeldOutReport:
    """Sums up how well NC predicts gaps, where it does worst, and whether it should be used.

    Args:
        compared: From `compare`.
    """
    predicted, true = compared["predicted"], compared["true gap"]
    n = len(true)
    if n < LEAST or true.std() == 0:
        return HeldOutReport(learners=n, verdict=_too_few(n))
    r2 = estimate(r_squared, predicted, true)
    p = predicted - predicted.mean()
    scores: dict[str, Any] = {
        "learners": n,
        "r2": r2.value,
        "r2_ci95": r2.ci95,
        "correlation": _number(correlation(predicted, true).item()),
        "mean_error": mean_absolute_error(predicted, true).item(),
        "mean_error_of_the_mean_gap": (true - true.mean()).abs().mean().item(),
        "bias": (predicted - true).mean().item(),
        "slope": _number(((p * true).sum() / p.square().sum()).item()),  # 1 is right
        "coverage_95": _coverage(predicted, true),
        "mean_gap": true.mean().item(),
        "beats_the_mean_gap": r2.value - (r2.ci95 or math.inf) > 0,
    }
    kinds = tuple(_kinds(compared))
    return HeldOutReport(**scores, kinds=kinds, verdict=_verdict(scores, kinds))


def _coverage(predicted: Tensor, true: Tensor) -> float:
    """Returns the share of one half inside the 95 % conformal bound of the other, both ways."""
    error = true - predicted
    # By twos: of each two learners that follow each other, one is trained to the end.
    first = torch.arange(len(error)) // 2 % 2 == 0
    halves = error[first], error[~first]
    shares = []
    for known, new in (halves, halves[::-1]):
        width = margin(known.expand(len(new), -1), torch.ones_like(known), torch.ones_like(new))
        shares.append((new.abs() <= width).double())
    return torch.cat(shares).mean().item()


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _too_few(n: int) -> str:
    return (
        f"NC could not be tested: {n} held-out learners with gaps of their own are too few. "
        "Do not rely on it."
    )


def _verdict(scores: dict[str, Any], kinds: Sequence[dict[str, Any]]) -> str:
    if not scores["beats_the_mean_gap"]:
        interval = "" if scores["r2_ci95"] is None else f" ± {scores['r2_ci95']:.2f}"
        return (
            f"NC cannot beat predicting the mean gap, {scores['mean_gap']:.3g}, for every learner, "
            f"as far as can be told (R2 {scores['r2']:.2f}{interval} on {scores['learners']} "
            "held-out learners). Do not rely on it: more data, more tasks or a larger budget may "
            "help."
        )
    said = (
        f"NC explains {100 * scores['r2']:.0f} % of the variance of the gap on "
        f"{scores['learners']} held-out learners; its mean error is {scores['mean_error']:.3g}, "
        f"that of the mean gap {scores['mean_error_of_the_mean_gap']:.3g}."
    )
    worst = max(kinds, key=lambda kind: kind["mean_error"], default=None)
    if worst is None:
        return said
    return (
        f"{said} It is least exact for learners of {worst['what']} {worst['from']:.3g} to "
        f"{worst['to']:.3g}: mean error {worst['mean_error']:.3g}, bias {worst['bias']:.3g}."
    )


def _kinds(compared: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Scores thirds of the learners, by what is known about them."""
    found = []
    error = compared["predicted"] - compared["true gap"]
    for what in KINDS:
        values = compared[what]
        if (values == values[0]).all():
            continue
        for rows in values.argsort(stable=True).tensor_split(3):
            if len(rows) >= LEAST // 2:
                scores = {"from": values[rows].min(), "to": values[rows].max()}
                scores |= {"mean_error": error[rows].abs().mean(), "bias": error[rows].mean()}
                numbers = {name: score.item() for name, score in scores.items()}
                found.append({"what": what, "learners": len(rows), **numbers})
    return found


def describe(report: HeldOutReport) -> str:
    """Returns the report as text, with a table of where NC does well and where not."""
    lines = [report.verdict]
    for kind in report.kinds:
        span = f"{kind['from']:.3g} to {kind['to']:.3g}"
        lines.append(
            f"  {kind['what']:<16} {span:<20} {kind['learners']:>4} learners"
            f"   mean error {kind['mean_error']:.3g}   bias {kind['bias']:+.3g}"
        )
    return "\n".join(lines)
