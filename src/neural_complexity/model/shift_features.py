"""Features of learners and tasks that show a distribution shift, and NC's calibration by them."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import softmax

from neural_complexity.model.card import CONTEXT_SIZE
from neural_complexity.model.judgement import Judgement, embed_in_parts, judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import values
from neural_complexity.reliability.calibration import Calibration, join
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap

__all__ = ["FEATURES", "FEATURES_OF_LABELS", "features", "measure"]

VALUES = 2**22  # of inputs that are looked at at a time: bounds memory
# What a person would call each feature.
FEATURES = (
    "training loss",
    "predicted test loss",
    "spread of NC's prediction",
    "shift from training to test inputs",
    "size of the inputs",
    "size of the training targets",
    "size of the predictions",
    "NC's surprise at training targets",
)
FEATURES_OF_LABELS = (*FEATURES[:5], "balance of the classes", "confidence", FEATURES[-1])
LARGE = 10.0  # standard deviations from which on inputs are all the same: far away
SMALL = 1e-3  # differences of losses below this part of their unit tell nothing


@torch.no_grad()
def features(nc: NeuralComplexity, snapshot: Snapshot, judgement: Judgement) -> Tensor:
    """Describes learners and tasks by what can be seen without test targets, (B, 8) as `FEATURES`.

    Learners that NC is asked about should be like those that it was calibrated on in these
    features (`reliability.shift` tests it). All are averages, mostly as logarithms, so that numbers
    of points matter little. The last one hides half of some training points from NC, at random,
    and compares what a guess about them costs with what NC predicts that it costs: a task of
    another kind shows there, whatever the learner. Where the judgement is NaN, they are, too.
    """
    unit = float(nc.loss.unit(nc.y_scale))
    told = (judgement.loss_tr, judgement.loss_te.clamp(min=0), judgement.spread)
    columns = torch.stack([(each / unit + SMALL).log() for each in told], dim=1)
    points = snapshot.H_tr.shape[1] + snapshot.H_te.shape[1]
    learners = max(1, VALUES // (points * math.prod(nc.shape)))
    parts = [
        torch.cat([_of_sets(nc, snapshot[rows]), _surprise(nc, snapshot[rows], unit)], dim=1)
        for rows in torch.arange(len(snapshot)).split(learners)
    ]
    found = torch.cat([columns, torch.cat(parts)], dim=1)
    found[judgement.gap.isnan()] = torch.nan
    return found


def measure(
    nc: NeuralComplexity,
    held_out: Sequence[tuple[Snapshot, Tensor]],
    judgements: Sequence[Judgement] | None = None,
) -> Calibration:
    """Compares what NC predicts about held-out learners with the truth; see `NC.calibrate`.

    The judgements are what NC predicts about them, if that is at hand.
    """
    judged = [judge(nc, snapshot) for snapshot, _ in held_out] if judgements is None else judgements
    found, total = [], sum(len(snapshot) for snapshot, _ in held_out)
    for (snapshot, Y_te), judgement in zip(held_out, judged, strict=True):
        # What is left out is seen in what can be seen of a new learner, too: its predictions.
        kept = ~judgement.gap.isnan()
        if not kept.any():
            continue
        one, M = snapshot.H_te[kept][:1].expand(len(kept), -1, -1), snapshot.H_tr.shape[1]
        nc.check(X_te=snapshot.X_te, Y_te=Y_te, H_te=one)
        true = gap(nc.loss, snapshot[kept], Y_te[kept])
        calibration = Calibration(
            judgement.gap[kept],
            true.nan_to_num(nan=math.inf, posinf=math.inf),
            judgement.spread[kept],
            features(nc, snapshot, judgement)[kept],
            FEATURES_OF_LABELS if nc.labels else FEATURES,
            ((M, M), (one.shape[1], one.shape[1])),
        )
        found.append(calibration)
    n = sum(map(len, found))
    if n == 0:
        raise ValueError(f"at least one learner must not have diverged, got {total} that did")
    note = f"{total - n} of {total} learners diverged and are left out" if n < total else ""
    return replace(join(found), note=note)


def _of_sets(nc: NeuralComplexity, snapshot: Snapshot) -> Tensor:
    """Describes inputs, training targets and predictions, (B, 4)."""
    # What hardly varies is huge in its own units once it does: one such value would say it all.
    X_tr, X_te = (
        ((values(X) - nc.x_mean) / nc.x_scale).clamp(-LARGE, LARGE)
        for X in (snapshot.X_tr, snapshot.X_te)
    )
    shift = (X_tr.mean(dim=1) - X_te.mean(dim=1)).flatten(1).square().mean(dim=1).sqrt()
    if nc.labels:
        shares = nc.targets(snapshot.Y_tr, classes=snapshot.H_te.shape[-1]).mean(dim=1)  # (B, C)
        targets = _entropy(shares)
        predictions = 1 - _entropy(softmax(snapshot.H_te, dim=-1)).mean(dim=1)
    else:
        both = (snapshot.Y_tr, snapshot.H_te)
        targets, predictions = (_size((Y - nc.y_mean) / nc.y_scale) for Y in both)
    return torch.stack([shift, _size(X_te), targets, predictions], dim=1)


def _size(values: Tensor) -> Tensor:
    """Returns the logarithm of the root mean square of each learner's values, (B,)."""
    return (values.flatten(1).square().mean(dim=1) + SMALL**2).sqrt().log()


def _entropy(shares: Tensor) -> Tensor:
    """Returns the entropy of distributions (..., C) over the largest possible one, (...)."""
    entropy: Tensor = torch.special.entr(shares).sum(dim=-1)
    return entropy / max(math.log(shares.shape[-1]), SMALL)


def _surprise(nc: NeuralComplexity, snapshot: Snapshot, unit: float) -> Tensor:
    """Compares what NC predicts at hidden training points with their targets, (B, 1)."""
    M, C = snapshot.H_tr.shape[1:]
    if M == 1:  # nothing can be hidden
        return snapshot.H_tr.new_zeros(len(snapshot), 1)
    # At random: in somebody's order every other point may be of the same class.
    some = torch.randperm(M, generator=stream(0, "surprise"))[:CONTEXT_SIZE]
    (E,), Y = embed_in_parts(nc, snapshot.X_tr[:, some]), snapshot.Y_tr[:, some]
    context = nc.context(E[:, ::2], Y[:, ::2], E[:, 1::2], classes=C)
    T = nc.targets(Y[:, ::2], classes=C)  # (B, seen, C)
    guess = nc.loss.constant(T.mean(dim=1, keepdim=True), 1 / T.shape[1])
    belief = nc.head.belief(context.state)
    H_te = guess.expand(-1, len(some) // 2, -1) if belief is None else belief.prediction
    told = nc.losses(context, guess.expand_as(T), H_te).mean(dim=1, keepdim=True).clamp(min=0)
    true = nc.loss(H_te, Y[:, 1::2]).mean(dim=1, keepdim=True)
    return (true / unit + SMALL).log() - (told / unit + SMALL).log()
