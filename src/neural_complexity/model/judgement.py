"""From a snapshot to predicted gaps, for sets of any size, in parts that NC can see."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from neural_complexity.losses import zero_one
from neural_complexity.model.cached import Encoder
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import map_inputs
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot

__all__ = ["Judgement", "embed_in_parts", "judge", "judge_minibatches"]

PARTS = 4  # of the training points that NC answers from, at most
TEST_PART = 2048  # test points at a time: bounds memory
NUMBERS = 2**19  # points times classes at a time, likewise
IMAGES = 1024  # images that are embedded at a time, likewise


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
        points: Training points that NC sees at once; its context size if `None`.
        seed: Draws the parts, the same ones for all learners on so many training points.

    Returns:
        The judgement, without gradients.

    Raises:
        TypeError: As by `NeuralComplexity.check`.
        ValueError: Likewise, or if NC is to see no training points.
    """
    size = nc.card.context_size if points is None else points
    if size < 1:
        raise ValueError(f"points must be at least 1, got {size}")
    (B, N, C), M = snapshot.H_te.shape, snapshot.H_tr.shape[1]
    finite = snapshot.finite()
    rows = finite.nonzero().squeeze(1)
    told = snapshot.H_te.new_full((B, N + 3), torch.nan)
    if len(rows):
        nc.check(**(snapshot if finite.all() else snapshot[rows]).named())
        train = _parts(M, size, stream(seed, "parts of training points"))
        most = max(1, min(TEST_PART, NUMBERS // C))  # test points at a time
        test = torch.arange(N).tensor_split(-(-N // most))
        learners = max(1, NUMBERS // (C * (min(N, most) + len(train[0]))))
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
    """Predicts the gaps of learners on large tasks, (B,), each test point judged once.

    NC sees minibatches of the size that it was trained on, M training and N test points.
    """
    test = torch.arange(snapshot.H_te.shape[1], device=snapshot.H_te.device).split(N)
    train = torch.arange(snapshot.H_tr.shape[1], device=snapshot.H_tr.device).split(M)
    total = snapshot.H_te.new_zeros(len(snapshot))
    for i, te in enumerate(test):
        part = snapshot.part(train[i % len(train)], te)
        total += nc.losses(encode(part), part.H_tr, part.H_te).sum(dim=1)
    # Only the test points are cut: the training loss is that of all training points.
    loss_tr = nc.loss(snapshot.H_tr, snapshot.Y_tr).mean(dim=1)
    return total / snapshot.H_te.shape[1] - loss_tr


def _parts(M: int, size: int, generator: torch.Generator) -> list[Tensor]:
    """Cuts training points at random; what is missing in the last part comes from the first."""
    if size >= M:
        return [torch.arange(M)]
    order, starts = torch.randperm(M, generator=generator), range(0, min(PARTS * size, M), size)
    return [order[torch.arange(i, i + size) % M] for i in starts]


def _judge(
    nc: NeuralComplexity, snapshot: Snapshot, train: list[Tensor], test: tuple[Tensor, ...]
) -> Tensor:
    """Returns predicted losses, training loss, spread and accuracy of few learners, (B, N + 3)."""
    N, C = snapshot.H_te.shape[1:]
    E_tr, E_te = embed_in_parts(nc, snapshot.X_tr, snapshot.X_te)
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
    spread_of_answers = losses.var(dim=2, correction=0) / N  # (parts, B)
    unknown = variances.isnan().any(dim=2)
    within = torch.where(unknown, spread_of_answers, variances.sum(dim=2) / N**2)
    between = losses.mean(dim=2).var(dim=0, correction=0)  # (B,)
    # An NC that answers every point alike, or is certain, still is not to be divided by zero.
    spread = (within.mean(dim=0) + between).sqrt().clamp(min=torch.finfo(losses.dtype).eps)
    loss_tr = nc.loss(snapshot.H_tr, snapshot.Y_tr).mean(dim=1)
    each = torch.stack([loss_tr, spread, right.mean(dim=2).mean(dim=0)], dim=1)  # (B, 3)
    return torch.cat([losses.mean(dim=0), each], dim=1)


def embed_in_parts(nc: NeuralComplexity, *sets: Tensor) -> list[Tensor]:
    """Embeds sets of inputs, (B, n, ...) each, as (B, n, features), images a few at a time."""

    def embed(X: Tensor) -> Tensor:
        if nc.image_encoder is None:
            return nc.embed(X)
        images = X.flatten(0, X.ndim - 4)
        return torch.cat([nc.embed(part) for part in images.split(IMAGES)]).view(*X.shape[:-3], -1)

    return map_inputs(embed, *sets)
