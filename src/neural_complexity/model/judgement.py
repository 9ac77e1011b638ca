"""From a snapshot to predicted gaps, for sets of any size, and to the calibration of NC."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from neural_complexity.losses import zero_one
from neural_complexity.model.cached import Encoder
from neural_complexity.model.card import CONTEXT_SIZE
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.model.table_network import describe_cells
from neural_complexity.points import map_inputs, values
from neural_complexity.reliability.calibration import Calibration, features_of, join
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap

__all__ = ["PARTS", "TEST_PART", "Judgement", "choose_parts", "feature_names", "features", "judge"]
__all__ += ["judge_minibatches", "measure"]

PARTS = 4  # of the training points that NC answers from, at most
TEST_PART = 2048  # test points at a time: bounds memory
NUMBERS = 2**19  # points times classes at a time, likewise
CACHED = 2**17  # the same of several learners: with more, a processor waits for its memory
VALUES = 2**22  # of inputs that are looked at at a time, likewise
LARGE = 10.0  # standard deviations from which on inputs are all the same: far away
SMALL = 1e-3  # differences of losses below this part of their unit tell nothing


@dataclass(frozen=True)
class Judgement:
    """What NC predicts about B learners; NaN for those whose predictions are not finite."""

    points: Tensor  # (B, N), each test point's predicted loss minus the training loss
    gap: Tensor  # (B,), the mean of `points`
    loss_tr: Tensor  # (B,), of all training points
    spread: Tensor  # (B,), NC's own standard deviation of the mean test loss, positive
    accuracy: Tensor  # (B,), predicted; NaN but for the posterior head on labels

    def __getitem__(self, rows: slice | Tensor) -> "Judgement":
        return Judgement(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def loss_te(self) -> Tensor:
        """The predicted mean test loss, (B,)."""
        return self.loss_tr + self.gap


@torch.no_grad()
def judge(
    nc: NeuralComplexity, snapshot: Snapshot, *, points: int | None = None, seed: int = 0
) -> Judgement:
    """Predicts the gaps of learners whose sets may be larger than what NC can see at once.

    Training points beyond `points` are cut at random into parts of that size; answers from at most
    four are averaged. The spread is that of a mixture: how unsure NC is given a part (the variance
    of each test point's loss under the belief, as if points were independent, or without a belief
    how far answers differ between test points), and how far answers differ between parts. At most
    2,048 test points are asked about at a time, which matters only where they see each other
    (`rounds`, `pool_first`).

    Args:
        nc: The gap predictor.
        snapshot: B learners, on sets of any size.
        points: Training points that NC sees at once; its context size if `None`.
        seed: Draws the parts, the same ones for all learners on so many training points.

    Raises:
        TypeError: As by `NeuralComplexity.check`.
        ValueError: Likewise, or if `points` is less than 1.
    """
    size = nc.card.context_size if points is None else points
    if size < 1:
        raise ValueError(f"points must be at least 1, got {size}")
    (B, N, C), M = snapshot.H_te.shape, snapshot.H_tr.shape[1]
    finite = snapshot.finite()
    rows = finite.nonzero().squeeze(1)
    told = snapshot.H_te.new_full((B, N + 3), torch.nan)
    if len(rows):
        nc.check(classes=None, **vars(snapshot if finite.all() else snapshot[rows]))
        train = choose_parts(M, size, seed)
        most = max(1, min(TEST_PART, NUMBERS // C))  # test points at a time
        test = torch.arange(N).tensor_split(-(-N // most))
        learners = max(1, CACHED // (C * (min(N, most) + len(train[0]))))
        for some in rows.split(learners):
            told[some] = _judge(nc, snapshot[some], train, test)
    # A loss may be too large for a number even where predictions are not.
    told[~told[:, :-1].isfinite().all(dim=1)] = torch.nan
    losses, (loss_tr, spread, accuracy) = told[:, :N], told[:, N:].unbind(dim=1)
    answers = losses - loss_tr.unsqueeze(1)
    return Judgement(answers, answers.mean(dim=1), loss_tr, spread, accuracy)


@torch.no_grad()
def judge_minibatches(
    nc: NeuralComplexity, encode: Encoder, snapshot: Snapshot, *, M: int, N: int
) -> Tensor:
    """Predicts gaps on large tasks, (B,), from minibatches of M and N points, as NC was trained."""
    test = torch.arange(snapshot.H_te.shape[1], device=snapshot.H_te.device).split(N)
    train = torch.arange(snapshot.H_tr.shape[1], device=snapshot.H_tr.device).split(M)
    total = snapshot.H_te.new_zeros(len(snapshot))
    for i, te in enumerate(test):
        part = snapshot.part(train[i % len(train)], te)
        total += nc.losses(encode(part), part.H_tr, part.H_te).sum(dim=1)
    # Only the test points are cut: the training loss is that of all training points.
    loss_tr = nc.loss(snapshot.H_tr, snapshot.Y_tr).mean(dim=1)
    return total / snapshot.H_te.shape[1] - loss_tr


def choose_parts(M: int, size: int, seed: int = 0, most: int = PARTS) -> list[Tensor]:
    """Cuts training points at random; what is missing in the last part comes from the first."""
    if size >= M:
        return [torch.arange(M)]
    generator = stream(seed, "parts of training points")
    order, starts = torch.randperm(M, generator=generator), range(0, min(most * size, M), size)
    return [order[torch.arange(i, i + size) % M] for i in starts]


def _judge(
    nc: NeuralComplexity, snapshot: Snapshot, train: list[Tensor], test: tuple[Tensor, ...]
) -> Tensor:
    """Returns predicted losses, training loss, spread and accuracy of few learners, (B, N + 3)."""
    N, C = snapshot.H_te.shape[1:]
    E_tr, E_te = map_inputs(nc.embed, snapshot.X_tr, snapshot.X_te)
    answers = []
    for tr in train:
        told = []
        for te in test:
            part = snapshot.part(tr, te)
            context = nc.context(E_tr[:, tr], part.Y_tr, E_te[:, te], classes=C)
            each = nc.losses(context, part.H_tr, part.H_te)
            # A head without beliefs knows neither variances nor the chance to be right.
            variance, right = torch.full((2, *each.shape), torch.nan).to(each)
            belief = nc.head.belief(context.state)
            if belief is not None:
                variance = nc.loss.variance(part.H_te, belief)
                right = 1 - zero_one.expected(part.H_te, belief) if nc.labels else right
            told.append(torch.stack([each, variance, right]))
        answers.append(torch.cat(told, dim=-1))
    losses, variances, right = torch.stack(answers).unbind(dim=1)  # (parts, B, N) each
    # Without a belief, the differences between test points are all there is.
    unknown, answered = variances.isnan().any(dim=2), losses.var(dim=2, correction=0) / N
    within = torch.where(unknown, answered, variances.sum(dim=2) / N**2)  # (parts, B)
    between = losses.mean(dim=2).var(dim=0, correction=0)  # (B,)
    # An NC that answers every point alike, or is certain, still is not to be divided by zero.
    spread = (within.mean(dim=0) + between).sqrt().clamp(min=torch.finfo(losses.dtype).eps)
    loss_tr = nc.loss(snapshot.H_tr, snapshot.Y_tr).mean(dim=1)
    each = torch.stack([loss_tr, spread, right.mean(dim=2).mean(dim=0)], dim=1)  # (B, 3)
    return torch.cat([losses.mean(dim=0), each], dim=1)


def feature_names(nc: NeuralComplexity) -> tuple[str, ...]:
    """Returns what a person would call each of the `features`."""
    return features_of(labels=nc.labels, sees_predictions=nc.head.sees_predictions)


@torch.no_grad()
def features(nc: NeuralComplexity, snapshot: Snapshot, judgement: Judgement) -> Tensor:
    """Describes learners and tasks by what can be seen without test targets; see `feature_names`.

    Learners that NC is asked about should be like those that it was calibrated on in these
    features, (B, k) (`detect_shift` tests it). All are averages, mostly as logarithms, so that
    numbers of points matter little. The last one hides half of some training points from NC, at
    random, and compares what a guess about them costs with what NC predicts that it costs: a task
    of another kind shows there, whatever the learner. Where the judgement is NaN, they are, too.
    """
    unit = float(nc.loss.unit(nc.y_scale))
    told = (judgement.spread, judgement.loss_tr)[: 1 + nc.head.sees_predictions]
    columns = torch.stack([(each / unit + SMALL).log() for each in told], dim=1)
    points = snapshot.H_tr.shape[1] + snapshot.H_te.shape[1]
    learners = max(1, VALUES // (points * math.prod(nc.shape)))
    few = torch.arange(len(snapshot)).split(learners)
    rest = torch.cat([_describe(nc, snapshot[rows], unit) for rows in few])
    found = torch.cat([columns, rest], dim=1)
    found[judgement.gap.isnan()] = torch.nan
    return found


def measure(
    nc: NeuralComplexity,
    held_out: Sequence[tuple[Snapshot, Tensor]],
    judgements: Sequence[Judgement] | None = None,
) -> Calibration:
    """Compares what NC predicts, or the judgements at hand, with the truth; see `NC.calibrate`."""
    judged = [judge(nc, snapshot) for snapshot, _ in held_out] if judgements is None else judgements
    found, total = [], sum(len(snapshot) for snapshot, _ in held_out)
    names = feature_names(nc)
    for (snapshot, Y_te), judgement in zip(held_out, judged, strict=True):
        # What is left out is seen in what can be seen of a new learner, too: its predictions.
        kept = ~judgement.gap.isnan()
        if not kept.any():
            continue
        one, M = snapshot.H_te[kept][:1].expand(len(kept), -1, -1), snapshot.H_tr.shape[1]
        nc.check(X_te=snapshot.X_te, Y_te=Y_te, H_te=one)
        true = gap(nc.loss, snapshot[kept], Y_te[kept]).nan_to_num(math.inf, math.inf)
        told, seen = judgement[kept], features(nc, snapshot, judgement)[kept]
        sizes = ((M, M), (one.shape[1], one.shape[1]))
        found.append(Calibration(told.gap, true, told.spread, seen, names, sizes))
    n = sum(map(len, found))
    if n == 0:
        raise ValueError(f"at least one learner must not have diverged, got {total} that did")
    note = f"{total - n} of {total} learners diverged and are left out" if n < total else ""
    return replace(join(found), note=note)


def _describe(nc: NeuralComplexity, snapshot: Snapshot, unit: float) -> Tensor:
    """Describes inputs, training targets, and NC's surprise at the targets, (B, 4)."""
    # What hardly varies is huge in its own units once it does: one such value would say it all.
    if nc.architecture.for_tables:  # in units of each table
        cells = describe_cells(snapshot.X_tr, snapshot.X_te)[..., 0]
        X_tr, X_te = cells.split([snapshot.X_tr.shape[1], snapshot.X_te.shape[1]], dim=1)
    else:
        own = ((values(X) - nc.x_mean) / nc.x_scale for X in (snapshot.X_tr, snapshot.X_te))
        X_tr, X_te = (X.clamp(-LARGE, LARGE) for X in own)
    shift = (X_tr.mean(dim=1) - X_te.mean(dim=1)).flatten(1).square().mean(dim=1).sqrt()
    M, C = snapshot.H_tr.shape[1:]
    if nc.labels:
        targets = _entropy(nc.targets(snapshot.Y_tr, classes=C).mean(dim=1))
    else:
        targets = _size((snapshot.Y_tr - nc.y_mean) / nc.y_scale)
    seen = [shift, _size(X_te), targets]  # (B,) each
    if M == 1:  # nothing can be hidden
        return torch.stack([*seen, torch.zeros_like(shift)], dim=1)
    # At random: in somebody's order every other point may be of the same class.
    some = torch.randperm(M, generator=stream(0, "surprise"))[:CONTEXT_SIZE]
    (E,), Y = map_inputs(nc.embed, snapshot.X_tr[:, some]), snapshot.Y_tr[:, some]
    context = nc.context(E[:, ::2], Y[:, ::2], E[:, 1::2], classes=C)
    T = nc.targets(Y[:, ::2], classes=C)  # (B, seen, C)
    guess = nc.loss.constant(T.mean(dim=1, keepdim=True), 1 / T.shape[1])
    belief = nc.head.belief(context.state)
    H_te = guess.expand(-1, len(some) // 2, -1) if belief is None else belief.prediction
    told = nc.losses(context, guess.expand_as(T), H_te).mean(dim=1).clamp(min=0)
    true = nc.loss(H_te, Y[:, 1::2]).mean(dim=1)
    surprise = (true / unit + SMALL).log() - (told / unit + SMALL).log()
    return torch.stack([*seen, surprise], dim=1)


def _size(values: Tensor) -> Tensor:
    """Returns the logarithm of the root mean square of each learner's values, (B,)."""
    return (values.flatten(1).square().mean(dim=1) + SMALL**2).sqrt().log()


def _entropy(shares: Tensor) -> Tensor:
    """Returns the entropy of distributions (..., C) over the largest possible one, (...)."""
    entropy: Tensor = torch.special.entr(shares).sum(dim=-1)
    return entropy / max(math.log(shares.shape[-1]), SMALL)
