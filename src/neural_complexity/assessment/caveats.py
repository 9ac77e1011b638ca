"""Reasons to doubt an assessment, in plain sentences."""

import math
from collections.abc import Callable, Iterator

from neural_complexity.assessment.result import Assessment
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.snapshot import Snapshot

__all__ = ["PROBABILITIES", "SHUFFLED", "caveats"]

# Between families of tasks in the experiment `harm`, NC's gaps were no use (R2 below 0) where its
# mean trust was 0.18 or less, and of use where it was 0.49 or more.
LOW_TRUST = 0.3
SIGNIFICANT = 0.05  # p-values below it are warned of

PROBABILITIES = (
    "The predictions look like probabilities, but NC takes them for logits: pass their logarithm."
)
SHUFFLED = (
    "X_te is a DataLoader that shuffles: the indices of its points are those of this one pass. Use "
    "a fixed order to find the worst points again."
)
UNCALIBRATED = (
    "NC is not calibrated: there is no bound and no test for distribution shift. nc.calibrate with "
    "held-out learners adds both."
)

Caveat = Callable[[NeuralComplexity, Snapshot, Assessment], Iterator[str]]


def caveats(nc: NeuralComplexity, snapshot: Snapshot, found: Assessment) -> list[str]:
    """Returns what to keep in mind about an assessment of one learner."""
    return [sentence for caveat in CAVEATS for sentence in caveat(nc, snapshot, found)]


def _report(nc: NeuralComplexity, _: Snapshot, found: Assessment) -> Iterator[str]:
    """What went wrong when `meta_learn` tested NC, where it concerns this model."""
    report = nc.card.report
    if not report.beats_the_mean_gap:
        if report.verdict:  # otherwise it was not tested
            yield f"When it was made: {report.verdict}"
        return
    for kind in report.kinds:
        within = kind["what"] == "training loss" and kind["from"] <= found.loss_tr <= kind["to"]
        if within and abs(kind["bias"]) > max(abs(found.gap), kind["mean_error"]) / 2:
            how = "low" if kind["bias"] < 0 else "large"
            yield (
                f"For learners of a training loss from {kind['from']:.3g} to {kind['to']:.3g} NC's "
                f"gaps were too {how} by {abs(kind['bias']):.3g} on average when it was made."
            )
            return


def _trust(_: NeuralComplexity, snapshot: Snapshot, found: Assessment) -> Iterator[str]:
    if found.trust is None:
        yield (
            f"Trust cannot be measured on {_count(snapshot.X_tr.shape[1], 'training point')}: at "
            "least two points of one class are needed."
        )
    elif found.trust < LOW_TRUST:
        yield (
            f"NC does not understand this training set (trust {found.trust:.2f}): its predictions "
            "may be far off. NC was made for other data, or for data on another scale, or was "
            "trained too briefly, or the inputs say nothing about these targets."
        )


def _calibration(nc: NeuralComplexity, snapshot: Snapshot, found: Assessment) -> Iterator[str]:
    if nc.calibration is None or found.bound is None or found.unlike is None:
        yield UNCALIBRATED
        return
    if math.isinf(found.bound.high):
        yield _sentence(found.bound.note)
    if found.unlike.p_value < SIGNIFICANT:
        yield (
            "Distribution shift: the model or its data differs from what NC was calibrated on, so "
            f"the bound may not hold: {found.unlike.note}."
        )
    learners = len(nc.calibration)
    if 1 / (learners + 1) >= SIGNIFICANT:  # the least p-value there is
        yield (
            f"NC was calibrated on {_count(learners, 'learner')}, too few to test for distribution "
            "shift."
        )
    beyond = nc.calibration.beyond(snapshot.X_tr.shape[1], snapshot.X_te.shape[1])
    if beyond:
        yield _sentence(beyond)


def _leak(nc: NeuralComplexity, snapshot: Snapshot, _: Assessment) -> Iterator[str]:
    known = int(nc.card.knows(snapshot.X_te[0]).sum())
    if known:
        yield (
            f"NC was trained on the inputs of {known} of the {snapshot.X_te.shape[1]} test points "
            "and may know their labels: its predictions for these say nothing about new points."
        )


def _chance(_: NeuralComplexity, snapshot: Snapshot, found: Assessment) -> Iterator[str]:
    right = found.accuracy_tr
    if right is not None and right < 1 / snapshot.H_tr.shape[-1]:
        yield (
            f"The model gets {100 * right:.1f} % of its training points right, fewer than by "
            "chance: check that its columns are in the order of NC's classes (see `classes`)."
        )


CAVEATS: tuple[Caveat, ...] = (_report, _trust, _calibration, _leak, _chance)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _sentence(note: str) -> str:
    return f"{note[:1].upper()}{note[1:]}."
