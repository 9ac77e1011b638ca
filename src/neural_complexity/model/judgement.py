"""NC's judgement of learners on sets of any size, in parts that NC can see."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import softmax

from neural_complexity.losses import zero_one
from neural_complexity.model.heads import Sets
from neural_complexity.model.indexed import predict_losses
from neural_complexity.model.network import SHOWN, Context, NeuralComplexity
from neural_complexity.reliability.calibration import Calibration, join
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap

__all__ = ["FEATURES", "Judgement", "features", "judge", "measure", "measure_all"]

PARTS = 4  # of the training points that NC answers from, at most
TEST_PART = 2048  # test points at a time: bounds memory
NUMBERS = 2**19  # points times classes at a time, likewise
IMAGES = 1024  # images that are embedded at a time, likewise
VALUES = 2**22  # of inputs that are looked at at a time, likewise
# What tells learners and tasks apart that NC knows from others, as people would say it.
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


@dataclass(frozen=True)
class Judgement:
    """What NC says about B learners; NaN for those whose predictions are not finite."""

    points: Tensor  # (B, N), each test point's predicted loss minus the training loss
    gap: Tensor  # (B,), the mean of `points`
    loss_tr: Tensor  # (B,), of all training points
    spread: Tensor  # (B,), NC's own standard deviation of the mean test loss, positive
    accuracy: Tensor  # (B,), predicted; NaN but for the posterior head on labels

    @property
    def loss_te(self) -> Tensor:
        """The predicted mean test loss, (B,)."""
        return self.loss_tr + self.gap


@torch.no_grad()
def judge(
    nc: NeuralComplexity, snapshot: Snapshot, *, points: int | None = None, seed: int = 0
) -> Judgement:
    """Asks NC about learners whose sets may be larger than what NC can see at once.

    Training points beyond `points` are cut at random into parts of that size, and NC answers from
    each of at most four parts; the answers are averaged. The spread then has two sources, as the
    variance of a mixture has: what NC is unsure of once it has seen a part (with the posterior
    head, the variance of each test point's loss under the belief, as if points were independent;
    with the direct head, how far its answers differ between test points), and how far its answers
    differ between parts.

    Test points are asked about in parts, too, of equal size as far as that goes. This changes no
    answer, but for an NC whose test points see each other (`rounds` or `pool_first`): it sees 2,048
    of them at a time, and fewer where there are very many classes.

    Args:
        nc: The gap predictor.
        snapshot: B learners, on sets of any size.
        points: Training points that NC sees at once; what NC was trained to see if `None`.
        seed: Draws the parts, the same ones for all learners on so many training points.

    Returns:
        The judgement, without gradients.

    Raises:
        TypeError: As by `NeuralComplexity.check`.
        ValueError: Likewise, or if NC is to see no training points.
    """
    shown = nc.shown if points is None else points
    if shown < 1:
        raise ValueError(f"points must be at least 1, got {shown}")
    (B, N, C), M = snapshot.H_te.shape, snapshot.H_tr.shape[1]
    fine = snapshot.H_tr.isfinite().all(dim=2).all(dim=1)
    fine &= snapshot.H_te.isfinite().all(dim=2).all(dim=1)  # (B,)
    rows = fine.nonzero().squeeze(1)
    told = snapshot.H_te.new_full((B, N + 3), torch.nan)
    if len(rows):
        X_tr, Y_tr, H_tr, X_te, H_te = (snapshot if fine.all() else snapshot[rows]).tensors()
        nc.check(X_tr=X_tr, Y_tr=Y_tr, H_tr=H_tr, X_te=X_te, H_te=H_te)
        parts = _parts(M, shown, stream(seed, "parts of training points"))
        learners = max(1, NUMBERS // (C * (min(N, _test_part(C)) + len(parts[0]))))
        for some in rows.split(learners):
            told[some] = _judge(nc, snapshot[some], parts)
    # A loss may be too large for a number even where predictions are not.
    told[~told[:, :-1].isfinite().all(dim=1)] = torch.nan
    losses, loss_tr, spread, accuracy = told.split([N, 1, 1, 1], dim=1)
    answers = losses - loss_tr
    return Judgement(
        answers, answers.mean(dim=1), loss_tr.squeeze(1), spread.squeeze(1), accuracy.squeeze(1)
    )


def _parts(M: int, shown: int, generator: torch.Generator) -> list[Tensor]:
    """Cuts training points at random; what is missing in the last part comes from the first."""
    if shown >= M:
        return [torch.arange(M)]
    order = torch.randperm(M, generator=generator)
    count = min(PARTS, -(-M // shown))
    return [order[torch.arange(i * shown, (i + 1) * shown) % M] for i in range(count)]


def _test_part(classes: int) -> int:
    return max(1, min(TEST_PART, NUMBERS // classes))


def _judge(nc: NeuralComplexity, snapshot: Snapshot, parts: list[Tensor]) -> Tensor:
    """Gives predicted losses, training loss, spread and accuracy of few learners, (B, N + 3)."""
    N, C = snapshot.H_te.shape[1:]
    E_tr, E_te = _embed(nc, snapshot.X_tr), _embed(nc, snapshot.X_te)
    test = torch.arange(N).tensor_split(-(-N // _test_part(C)))
    answers = []
    for tr in parts:
        H_tr, Y_tr = snapshot.H_tr[:, tr], snapshot.Y_tr[:, tr]
        told = []
        for te in test:
            context = nc.context(E_tr[:, tr], Y_tr, E_te[:, te], classes=C if nc.labels else None)
            told.append(_ask(nc, context, H_tr, snapshot.H_te[:, te]))
        answers.append(torch.cat(told, dim=-1))
    losses, variances, right = torch.stack(answers).unbind(dim=1)  # (parts, B, N) each
    if isinstance(context.known, Sets):
        within = losses.var(dim=2, correction=0) / N  # (parts, B)
    else:
        within = variances.sum(dim=2) / N**2
    between = losses.mean(dim=2).var(dim=0, correction=0)  # (B,)
    # An NC that answers every point alike, or is certain, still is not to be divided by zero.
    spread = (within.mean(dim=0) + between).sqrt().clamp(min=torch.finfo(losses.dtype).eps)
    loss_tr = nc.loss(snapshot.H_tr, snapshot.Y_tr).mean(dim=1)
    each = torch.stack([loss_tr, spread, right.mean(dim=2).mean(dim=0)], dim=1)  # (B, 3)
    return torch.cat([losses.mean(dim=0), each], dim=1)


def _ask(nc: NeuralComplexity, context: Context, H_tr: Tensor, H_te: Tensor) -> Tensor:
    """Gives each point's predicted loss, its variance and the chance to be right, (3, B, N).

    The direct head knows nothing of the latter two: they are NaN.
    """
    losses = predict_losses(nc, context, H_tr, H_te)
    variance, right = torch.full_like(losses, torch.nan), torch.full_like(losses, torch.nan)
    if not isinstance(context.known, Sets):
        variance = nc.loss.variance(H_te, context.known)
        if nc.labels:
            right = 1 - zero_one.expected(H_te, context.known)
    return torch.stack([losses, variance, right])


def _embed(nc: NeuralComplexity, X: Tensor) -> Tensor:
    if nc.image_encoder is None:
        return nc.embed(X)
    parts = [nc.embed(part) for part in X.flatten(0, 1).split(IMAGES)]
    return torch.cat(parts).view(*X.shape[:2], -1)


@torch.no_grad()
def features(nc: NeuralComplexity, snapshot: Snapshot, judgement: Judgement) -> Tensor:
    """Describes learners and their tasks by what can be seen without test targets.

    Learners that NC is asked about should be like those that it was calibrated on in these
    features (`likeness.unlike` tests it). All are averages, mostly as logarithms, so that numbers
    of points matter little. The last one hides half of some training points from NC, at random,
    and compares what a guess about them costs with what NC says it costs: a task of another kind
    gives itself away there, whatever the learner.

    Args:
        nc: The gap predictor.
        snapshot: B learners.
        judgement: What NC says about them.

    Returns:
        One row per learner, (B, 8), in the order of `FEATURES`; NaN for learners that NaN stands
        for in the judgement.
    """
    unit = 1.0 if nc.labels else float(nc.y_scale.square().mean())  # of a loss
    columns = [
        (judgement.loss_tr / unit + SMALL).log(),
        (judgement.loss_te / unit).clamp(min=0).add(SMALL).log(),
        (judgement.spread / unit + SMALL).log(),
    ]
    learners = max(1, VALUES // (snapshot.X_tr[0].numel() + snapshot.X_te[0].numel()))
    parts = [
        torch.cat([_of_sets(nc, snapshot[rows]), _surprise(nc, snapshot[rows], unit)], dim=1)
        for rows in torch.arange(len(snapshot)).split(learners)
    ]
    found = torch.cat([torch.stack(columns, dim=1), torch.cat(parts)], dim=1)
    found[judgement.gap.isnan()] = torch.nan
    return found


def _of_sets(nc: NeuralComplexity, snapshot: Snapshot) -> Tensor:
    """Describes inputs, training targets and predictions, (B, 4)."""
    # What hardly varies is huge in its own units once it does: one such value would say it all.
    X_tr, X_te = (
        ((X - nc.x_mean) / nc.x_scale).clamp(-LARGE, LARGE) for X in (snapshot.X_tr, snapshot.X_te)
    )
    shift = (X_tr.mean(dim=1) - X_te.mean(dim=1)).flatten(1).square().mean(dim=1).sqrt()
    if nc.labels:
        shares = nc.targets(snapshot.Y_tr, classes=snapshot.H_te.shape[-1]).mean(dim=1)  # (B, C)
        targets = _entropy(shares)
        predictions = 1 - _entropy(softmax(snapshot.H_te, dim=-1)).mean(dim=1)
    else:
        targets = _size((snapshot.Y_tr - nc.y_mean) / nc.y_scale)
        predictions = _size((snapshot.H_te - nc.y_mean) / nc.y_scale)
    return torch.stack([shift, _size(X_te), targets, predictions], dim=1)


def measure(nc: NeuralComplexity, snapshot: Snapshot, Y_te: Tensor) -> Calibration:
    """Compares what NC says about held-out learners with what is true, for bounds.

    Args:
        nc: The gap predictor.
        snapshot: B learners, each on a task of its own; those that diverged are left out.
        Y_te: Their test targets, (B, N, C), or labels, (B, N).

    Raises:
        ValueError: If nothing is left, or as by `judge`.
    """
    return measure_all(nc, [(snapshot, Y_te)])


def measure_all(nc: NeuralComplexity, held_out: Sequence[tuple[Snapshot, Tensor]]) -> Calibration:
    """Does the same as `measure` for learners with sets of several sizes.

    Args:
        nc: The gap predictor.
        held_out: Learners and their test targets, those with sets of one size together.

    Raises:
        ValueError: If nothing is left of all of them, or as by `judge`.
    """
    parts = [_measure(nc, snapshot, Y_te) for snapshot, Y_te in held_out]
    found = [part for part in parts if part is not None]
    total = sum(len(snapshot) for snapshot, _ in held_out)
    n = sum(len(part) for part in found)
    if n == 0:
        raise ValueError(f"at least one learner must not have diverged, got {total} that did")
    note = f"{total - n} of {total} learners diverged and are left out" if n < total else ""
    return replace(join(found), note=note)


def _measure(nc: NeuralComplexity, snapshot: Snapshot, Y_te: Tensor) -> Calibration | None:
    judgement = judge(nc, snapshot)
    # What is left out is told by what can be seen of a new learner, too: its predictions.
    kept = ~judgement.gap.isnan()
    M, N = snapshot.X_tr.shape[1], snapshot.X_te.shape[1]
    if not kept.any():
        return None
    nc.check(X_te=snapshot.X_te, Y_te=Y_te, H_te=snapshot.H_te[kept][:1].expand(len(kept), -1, -1))
    true = gap(nc.loss, snapshot[kept], Y_te[kept])
    return Calibration(
        judgement.gap[kept],
        true.nan_to_num(nan=math.inf, posinf=math.inf),
        judgement.spread[kept],
        features(nc, snapshot, judgement)[kept],
        FEATURES_OF_LABELS if nc.labels else FEATURES,
        ((M, M), (N, N)),
    )


def _size(values: Tensor) -> Tensor:
    """Gives the logarithm of the root mean square of each learner's values, (B,)."""
    return (values.flatten(1).square().mean(dim=1) + SMALL**2).sqrt().log()


def _entropy(shares: Tensor) -> Tensor:
    """Gives the entropy of distributions (..., C) as a part of the largest possible one, (...)."""
    C = shares.shape[-1]
    entropy: Tensor = torch.special.entr(shares).sum(dim=-1)
    return entropy / max(math.log(C), SMALL)


def _surprise(nc: NeuralComplexity, snapshot: Snapshot, unit: float) -> Tensor:
    """Compares what NC says of training points that it is not shown with their targets, (B, 1)."""
    M, C = snapshot.H_tr.shape[1:]
    if M == 1:  # nothing can be hidden
        return snapshot.H_tr.new_zeros(len(snapshot), 1)
    # At random: in somebody's order every other point may be of the same class.
    some = torch.randperm(M, generator=stream(0, "surprise"))[:SHOWN]
    classes = C if nc.labels else None
    E, Y = _embed(nc, snapshot.X_tr[:, some]), snapshot.Y_tr[:, some]
    context = nc.context(E[:, ::2], Y[:, ::2], E[:, 1::2], classes=classes)
    T = nc.targets(Y[:, ::2], classes=classes)  # (B, shown, C)
    guess = T.mean(dim=1, keepdim=True)
    if nc.labels:  # shares of classes become logits; one that is not shown is still possible
        guess = (guess + 1 / T.shape[1]).log()
    H_tr, H_te = guess.expand_as(T), guess.expand(-1, len(some) // 2, -1)
    if not isinstance(context.known, Sets):
        H_te = context.known.prediction
    told = predict_losses(nc, context, H_tr, H_te).mean(dim=1, keepdim=True).clamp(min=0)
    true = nc.loss(H_te, Y[:, 1::2]).mean(dim=1, keepdim=True)
    return (true / unit + SMALL).log() - (told / unit + SMALL).log()
