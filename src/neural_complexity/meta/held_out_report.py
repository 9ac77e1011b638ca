"""How far an NC can be trusted, found out on learners that it was not trained on."""

import math
from typing import Any

import torch
from torch import Tensor

from neural_complexity.meta.executor import Collection
from neural_complexity.meta.scores import (
    correlation,
    estimate,
    mean_absolute_error,
    r_squared,
)
from neural_complexity.model.heads import PosteriorHead
from neural_complexity.model.judgement import judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.reliability.bounds import margin
from neural_complexity.snapshot import gap

__all__ = ["belief_loss", "describe", "judge_all", "make_report"]

LEAST = 10  # learners of a kind, to say something about it
KINDS = ("training points", "training loss", "true gap")


def judge_all(nc: NeuralComplexity, collections: list[Collection]) -> dict[str, Tensor]:
    """Lets NC judge learners whose truth is known, those that diverged left out.

    Args:
        nc: The gap predictor.
        collections: Learners and their test targets, any number of each size.

    Returns:
        One value per learner, (n,), of each name: predicted and true gap, training loss and points.
    """
    columns: dict[str, list[Tensor]] = {
        name: [] for name in ("predicted", "true gap", "training loss", "training points")
    }
    for snapshot, Y_te in collections:
        judgement = judge(nc, snapshot)
        true = gap(nc.loss, snapshot, Y_te)
        fine = judgement.gap.isfinite() & true.isfinite()
        points = torch.full_like(true, snapshot.X_tr.shape[1])
        for name, values in zip(
            columns, (judgement.gap, true, judgement.loss_tr, points), strict=True
        ):
            columns[name].append(values[fine].double().cpu())
    return {name: torch.cat(values) for name, values in columns.items()}


@torch.no_grad()
def belief_loss(nc: NeuralComplexity, collections: list[Collection]) -> float | None:
    """Gives what NC's own guesses cost on test points that it has not learned from.

    Args:
        nc: The gap predictor.
        collections: Learners on such points and their test targets; what they predict is ignored.

    Returns:
        The mean loss of the beliefs, from as many training points as NC sees at once; `None` if its
        head has none.
    """
    if not isinstance(nc.head, PosteriorHead):
        return None
    losses = []
    for snapshot, Y_te in collections:
        X_tr, Y_tr = snapshot.X_tr[:, : nc.shown], snapshot.Y_tr[:, : nc.shown]
        belief = nc.belief(X_tr, Y_tr, snapshot.X_te)
        losses.append(nc.loss(belief.prediction, Y_te).mean(dim=1))
    return torch.cat(losses).mean().item()


def make_report(judged: dict[str, Tensor]) -> dict[str, Any]:
    """Sums up how well NC predicts gaps, where it does worst, and whether it should be used.

    Args:
        judged: From `judge_all`.

    Returns:
        Numbers and sentences that JSON can hold.
    """
    predicted, true = judged["predicted"], judged["true gap"]
    n = len(true)
    if n < LEAST or true.std() == 0:
        return {"learners": n, "verdict": _too_few(n)}
    r2 = estimate(r_squared, predicted, true)
    of_mean = (true - true.mean()).abs().mean().item()
    error = mean_absolute_error(predicted, true).item()
    report: dict[str, Any] = {
        "learners": n,
        "r2": r2.value,
        "r2_ci95": r2.ci95,
        "correlation": _number(correlation(predicted, true).item()),
        "mean_error": error,
        "mean_error_of_the_mean_gap": of_mean,
        "bias": (predicted - true).mean().item(),
        "slope": _slope(predicted, true),
        "coverage_95": _coverage(predicted, true),
        "mean_gap": true.mean().item(),
        "kinds": _kinds(judged),
    }
    sure = r2.value - (r2.ci95 or math.inf) > 0
    report["beats_the_mean_gap"] = sure
    report["verdict"] = _verdict(report)
    return report


def _slope(predicted: Tensor, true: Tensor) -> float | None:
    """Gives by how much the gap grows with the predicted one: 1 is right."""
    p = predicted - predicted.mean()
    return _number(((p * true).sum() / p.square().sum()).item())


def _coverage(predicted: Tensor, true: Tensor) -> float:
    """Gives the share of one half inside the 95 % conformal bound of the other, both ways."""
    error = true - predicted
    # By twos: of each two learners that follow each other, one is trained to the end.
    first = torch.arange(len(error)) // 2 % 2 == 0
    halves = error[first], error[~first]
    shares = []
    for known, new in (halves, halves[::-1]):
        ones = torch.ones_like(new)
        width = margin(known.expand(len(new), -1), torch.ones_like(known), ones)
        shares.append((new.abs() <= width).double())
    return torch.cat(shares).mean().item()


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _too_few(n: int) -> str:
    return (
        f"NC could not be tested: {n} held-out learners with gaps of their own are too few. "
        "Do not rely on it."
    )


def _verdict(report: dict[str, Any]) -> str:
    if not report["beats_the_mean_gap"]:
        interval = "" if report["r2_ci95"] is None else f" ± {report['r2_ci95']:.2f}"
        return (
            f"NC cannot beat predicting the mean gap, {report['mean_gap']:.3g}, for every learner, "
            f"as far as can be told (R2 {report['r2']:.2f}{interval} on {report['learners']} "
            "held-out learners). Do not rely on it: more data, more tasks or a larger budget may "
            "help."
        )
    said = (
        f"NC explains {100 * report['r2']:.0f} % of the variance of the gap on "
        f"{report['learners']} held-out learners; its mean error is {report['mean_error']:.3g}, "
        f"that of the mean gap {report['mean_error_of_the_mean_gap']:.3g}."
    )
    worst = max(report["kinds"], key=lambda kind: kind["mean_error"], default=None)
    if worst is None:
        return said
    return (
        f"{said} It is least exact for learners of {worst['what']} {worst['from']:.3g} to "
        f"{worst['to']:.3g}: mean error {worst['mean_error']:.3g}, bias {worst['bias']:.3g}."
    )


def _kinds(judged: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Scores thirds of the learners, by what is known about them."""
    found = []
    error = judged["predicted"] - judged["true gap"]
    for what in KINDS:
        values = judged[what]
        if (values == values[0]).all():
            continue
        for rows in values.argsort(stable=True).tensor_split(3):
            if len(rows) >= LEAST // 2:
                found.append(
                    {
                        "what": what,
                        "from": values[rows].min().item(),
                        "to": values[rows].max().item(),
                        "learners": len(rows),
                        "mean_error": error[rows].abs().mean().item(),
                        "bias": error[rows].mean().item(),
                    }
                )
    return found


def describe(report: dict[str, Any]) -> str:
    """Writes a report for people, with a table of where NC does well and where not."""
    lines = [report["verdict"]]
    for kind in report.get("kinds", ()):
        span = f"{kind['from']:.3g} to {kind['to']:.3g}"
        lines.append(
            f"  {kind['what']:<16} {span:<20} {kind['learners']:>4} learners"
            f"   mean error {kind['mean_error']:.3g}   bias {kind['bias']:+.3g}"
        )
    return "\n".join(lines)
