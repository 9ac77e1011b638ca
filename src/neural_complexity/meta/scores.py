"""Scores over held-out tasks, each with a 95 % interval, and how far NC can be trusted by them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy.special import stdtrit  # scipy.stats takes a second to import
from torch import Tensor

from neural_complexity import ledger
from neural_complexity.meta.bank import Collection
from neural_complexity.model.card import HeldOutReport
from neural_complexity.model.judgement import Judgement
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.reliability.gap_bounds import margin
from neural_complexity.seeding import stream
from neural_complexity.snapshot import gap

__all__ = ["Estimate", "belief_loss", "compare", "correlation", "count", "describe", "estimate"]
__all__ += ["estimate_mean", "estimate_over_seeds", "make_report", "mean_absolute_error"]
__all__ += ["r_squared", "share_of_oracle"]

RESAMPLES = 500
BLOCK = 50  # resamples at a time: bounds memory
LEAST = 10  # learners of a kind, to say something about it
KINDS = ("training points", "training loss", "true gap")


@dataclass(frozen=True)
class Estimate:
    """A value, the half-width of its 95 % interval over tasks or seeds, and their number."""

    value: float
    ci95: float | None  # none for what is counted, or where it cannot be told
    n: int


def count(these: Tensor) -> Estimate:
    """Counts the tasks for which something is so, (B,)."""
    return Estimate(float(these.sum()), None, these.numel())


def estimate_mean(values: Tensor) -> Estimate:
    """Estimates the mean over tasks, (B,), with its normal interval."""
    n, wide = values.numel(), values.double()
    spread = wide.std().item() if n > 1 else math.inf
    return Estimate(wide.mean().item(), _interval(spread / n**0.5), n)


def estimate_over_seeds(values: Tensor) -> Estimate:
    """Estimates the mean over seeds, (seeds,), with Student's interval: they are few."""
    n, wide = values.numel(), values.double()
    half = float(stdtrit(n - 1, 0.975)) * wide.std().item() / n**0.5 if n > 1 else None
    return Estimate(wide.mean().item(), half, n)


def estimate(statistic: Callable[..., Tensor], *columns: Tensor) -> Estimate:
    """Estimates any statistic of tasks, with an interval from resampling the tasks.

    It maps columns (..., B) to values (...); tasks are drawn jointly from all columns, (B,) each.
    """
    wide = [column.double() for column in columns]
    n, generator, resampled = wide[0].numel(), stream(0, "bootstrap"), []
    for _ in range(RESAMPLES // BLOCK):
        rows = torch.randint(n, (BLOCK, n), generator=generator)
        resampled.append(statistic(*(column[rows] for column in wide)))
    return Estimate(statistic(*wide).item(), _interval(torch.cat(resampled).std().item()), n)


def _interval(error: float) -> float | None:
    return 1.96 * error if math.isfinite(error) else None


def r_squared(predicted: Tensor, true: Tensor) -> Tensor:
    """Computes 1 - residual over total sum of squares along the last axis of (..., B).

    This is not the squared correlation: a biased prediction scores less.
    """
    residual = (true - predicted).square().sum(dim=-1)
    return 1 - residual / (true - true.mean(dim=-1, keepdim=True)).square().sum(dim=-1)


def correlation(predicted: Tensor, true: Tensor) -> Tensor:
    """Computes Pearson's correlation along the last axis of (..., B)."""
    p, t = (x - x.mean(dim=-1, keepdim=True) for x in (predicted, true))
    return (p * t).sum(dim=-1) / (p.square().sum(dim=-1) * t.square().sum(dim=-1)).sqrt()


def mean_absolute_error(predicted: Tensor, true: Tensor) -> Tensor:
    """Computes the mean absolute error along the last axis of (..., B)."""
    return (predicted - true).abs().mean(dim=-1)


def share_of_oracle(none: Tensor, ours: Tensor, oracle: Tensor) -> Tensor:
    """Computes how much of the oracle's improvement a regularizer achieves, from losses (..., B).

    It is (none - ours) / (none - oracle) of the mean test losses without a regularizer, with ours
    and with the true gap as one: 0 is no help, 1 as much as the true gap gives.
    """
    none, ours, oracle = (t.mean(dim=-1) for t in (none, ours, oracle))
    return (none - ours) / (none - oracle)


def compare(
    nc: NeuralComplexity, collections: Sequence[Collection], judgements: Sequence[Judgement]
) -> dict[str, Tensor]:
    """Returns predictions, the truth and `KINDS`, (n,) each, without learners that diverged."""
    rows = []
    for (snapshot, Y_te), judgement in zip(collections, judgements, strict=True):
        ledger.record("hold", snapshot.X_te, Y_te)
        true = gap(nc.loss, snapshot, Y_te)
        finite = judgement.gap.isfinite() & true.isfinite()
        points = torch.full_like(true, snapshot.H_tr.shape[1])
        columns = (judgement.gap, points, judgement.loss_tr, true)
        rows.append([column[finite].double().cpu() for column in columns])
    whole = [torch.cat(column) for column in zip(*rows, strict=True)]
    return dict(zip(("predicted", *KINDS), whole, strict=True))


@torch.no_grad()
def belief_loss(nc: NeuralComplexity, collections: Sequence[Collection]) -> float | None:
    """Returns the mean loss of NC's own beliefs on test points that it has not learned from.

    They come from as many training points as NC sees at once; `None` if its head has none.
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
    """Sums up how well NC predicts gaps, where it does worst, and whether it should be used."""
    predicted, true = compared["predicted"], compared["true gap"]
    n, error = len(true), predicted - true
    if n < LEAST or true.std() == 0:
        few = f"NC could not be tested: {n} held-out learners with gaps of their own are too few."
        return HeldOutReport(learners=n, verdict=f"{few} Do not rely on it.")
    r2, p = estimate(r_squared, predicted, true), predicted - predicted.mean()
    # The share of one half inside the 95 % conformal bound of the other, both ways; by twos, since
    # of each two learners that follow each other, one is trained to the end.
    first, covered = torch.arange(n) // 2 % 2 == 0, []
    for old, new in ((error[first], error[~first]), (error[~first], error[first])):
        width = margin(old.expand(len(new), -1), torch.ones_like(old), torch.ones_like(new))
        covered.append((new.abs() <= width).double())
    scores = {
        "correlation": correlation(predicted, true).item(),
        "mean_error": mean_absolute_error(predicted, true).item(),
        "mean_error_of_the_mean_gap": (true - true.mean()).abs().mean().item(),
        "bias": error.mean().item(),
        "slope": ((p * true).sum() / p.square().sum()).item(),  # 1 is right
        "coverage_95": torch.cat(covered).mean().item(),
        "mean_gap": true.mean().item(),
    }
    beats = r2.value - (r2.ci95 or math.inf) > 0
    kinds: list[dict[str, Any]] = []
    for what in KINDS:  # scores of thirds of the learners, by what is known about them
        values = compared[what]
        thirds = () if (values == values[0]).all() else values.argsort(stable=True).tensor_split(3)
        for rows in thirds:
            if len(rows) >= LEAST // 2:
                own = {"from": values[rows].min(), "to": values[rows].max()}
                own |= {"mean_error": error[rows].abs().mean(), "bias": error[rows].mean()}
                numbers = {name: score.item() for name, score in own.items()}
                kinds.append({"what": what, "learners": len(rows), **numbers})
    if beats:
        verdict = (
            f"NC explains {100 * r2.value:.0f} % of the variance of the gap on {n} held-out "
            f"learners; its mean error is {scores['mean_error']:.3g}, that of the mean gap "
            f"{scores['mean_error_of_the_mean_gap']:.3g}."
        )
        if kinds:
            worst = max(kinds, key=lambda kind: kind["mean_error"])
            span = f"{worst['what']} {worst['from']:.3g} to {worst['to']:.3g}"
            scored = f"mean error {worst['mean_error']:.3g}, bias {worst['bias']:.3g}"
            verdict += f" It is least exact for learners of {span}: {scored}."
    else:
        interval = "" if r2.ci95 is None else f" ± {r2.ci95:.2f}"
        verdict = (
            f"NC cannot beat predicting the mean gap, {scores['mean_gap']:.3g}, for every learner, "
            f"as far as can be told (R2 {r2.value:.2f}{interval} on {n} held-out learners). Do not "
            "rely on it: more data, more tasks or a larger budget may help."
        )
    known: dict[str, Any] = {k: v if math.isfinite(v) else None for k, v in scores.items()}
    known |= {"learners": n, "r2": r2.value, "r2_ci95": r2.ci95, "beats_the_mean_gap": beats}
    return HeldOutReport(**known, kinds=tuple(kinds), verdict=verdict)


def describe(report: HeldOutReport) -> str:
    """Returns the report as text, with a table of where NC does well and where not."""
    lines = [report.verdict]
    for kind in report.kinds:
        span = f"{kind['from']:.3g} to {kind['to']:.3g}"
        scored = f"mean error {kind['mean_error']:.3g}   bias {kind['bias']:+.3g}"
        who = f"{kind['what']:<16} {span:<20} {kind['learners']:>4} learners"
        lines.append(f"  {who}   {scored}")
    return "\n".join(lines)
