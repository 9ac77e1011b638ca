"""Synthetic tables of every kind, from which an NC learns to judge any table."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from neural_complexity.task import Task
from neural_complexity.tasks.families import check_sizes
from neural_complexity.tasks.mechanisms import MECHANISMS, Draws, standardized

__all__ = ["LEARNABLE", "Tables", "explained"]

LEVELS = 12  # most values of a feature of categories
MOST = 20  # classes
JUDGED = 200  # rows, at most, by which a table is said to be learnable
LEARNABLE = 0.05  # the share of the targets' variance that a simple model must explain


@dataclass(frozen=True, kw_only=True)
class Tables:
    """Tables with real targets, or labels; all that are drawn at once have the same sizes.

    Missing values are NaN. Rows are independent; where test inputs have moved, training rows and
    test rows are chosen by a feature, by a direction, or by how far they are from one row.
    """

    classes: int = 10  # Most classes of a table; 0 for real targets.
    train_points: tuple[int, int] = (10, 512)  # Training rows, M: few are as likely as many.
    test_points: int = 128  # Test rows, N.
    features: tuple[int, int] = (2, 30)  # Features, D, likewise.
    moved: float = 0.4  # The share of tables whose test inputs have moved.
    easy: float = 10.0  # How much log-odds of a table grow with the share that can be learned.
    unlearnable: float = 0.05  # The share of tables of which next to nothing can be learned.

    def __post_init__(self) -> None:
        check_sizes(test_points=self.test_points)
        for name in ("train_points", "features"):
            low, high = getattr(self, name)
            if not 2 <= low <= high:
                wanted = "a range from at least 2 to as many or more"
                raise ValueError(f"{name} must be {wanted}, got {(low, high)}")
        if self.classes not in (0, *range(2, MOST + 1)):
            raise ValueError(f"classes must be 0, or from 2 to {MOST}, got {self.classes}")
        for name in ("moved", "unlearnable"):
            if not 0 <= (rate := getattr(self, name)) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {rate}")

    def sample(self, batch: int, generator: torch.Generator) -> Task:
        """Draws `batch` tables of one size."""
        check_sizes(batch=batch)
        draws = Draws(generator)
        M, D = (int(draws.spread(low, high + 0.99, 1)) for low, high in self._ranges())
        N = self.test_points
        many = 4 * batch + 4  # half of them are not learnable
        X, Y = self._pool(draws, many, max(2 * (M + N), M + 2 * N), D)
        share = explained(X, Y, self.classes)
        found = share > LEARNABLE
        X_tr, Y_tr, X_te, Y_te = self._divide(draws, X, Y, M)
        several = torch.ones_like(found)
        if self.classes:
            Y_tr, Y_te, several = _known_classes(draws, Y_tr, Y_te, self.classes)
        # In a share of the tables nothing can be learned; of the others, the more, the likelier.
        order = draws.gumbel(many) + self.easy * share.clamp(min=0) - 1e3 * ~several
        good, bad = ((order + 1e2 * kind).topk(batch).indices for kind in (found, ~found))
        kept = torch.where(draws.happens(self.unlearnable, batch), bad, good)
        return Task(X_tr[kept], Y_tr[kept], X_te[kept], Y_te[kept])

    def _ranges(self) -> tuple[tuple[int, int], ...]:
        return self.train_points, self.features

    def _pool(self, draws: Draws, B: int, P: int, D: int) -> tuple[Tensor, Tensor]:
        """Draws rows, X (B, P, D), and labels, (B, P), or targets, (B, P, 1), by all mechanisms."""
        S = max(self.classes, 2)
        counts = torch.bincount(draws.index(len(MECHANISMS), B), minlength=len(MECHANISMS)).tolist()
        drawn = [
            mechanism(draws, count, P, D, S)
            for count, mechanism in zip(counts, MECHANISMS.values(), strict=True)
            if count
        ]
        X, scores = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        Y = _labels(draws, scores) if self.classes else _targets(draws, scores)
        return disguise(draws, X), Y

    def _divide(self, draws: Draws, X: Tensor, Y: Tensor, M: int) -> tuple[Tensor, ...]:
        """Chooses M rows for training and N for testing, some of them by where they are."""
        (B, P, D), N = X.shape, self.test_points
        Z = standardized(X.nan_to_num())
        one = torch.zeros(B, D, device=Z.device).scatter(1, draws.index(D, B, 1), 1.0)
        direction = torch.where(draws.happens(0.5, B, 1), one, draws.normal(B, D))
        along = (Z @ direction.unsqueeze(-1)).squeeze(-1)  # (B, P)
        near = -(Z - Z[:, :1]).square().sum(dim=-1)
        at = torch.where(draws.happens(0.6, B, 1), along, near)
        at = at + 1e-3 * draws.normal(B, P)  # values that occur often are divided, too
        rank = at.argsort(dim=1).argsort(dim=1) / (P - 1)  # from 0 to 1
        # The odds of being a test row grow with the rank, from a little to almost surely.
        moved = draws.happens(self.moved, B, 1)
        odds = torch.where(moved, draws.spread(1.0, 30.0, B, 1), 0.0)
        pull = odds * rank
        test = (pull + draws.gumbel(B, P)).topk(N, dim=1).indices
        free = (draws.gumbel(B, P) - pull).scatter(1, test, -math.inf)
        train = free.topk(M, dim=1).indices
        wide = [rows.unsqueeze(-1).expand(-1, -1, D) for rows in (train, test)]
        targets = [r if Y.ndim == 2 else r.unsqueeze(-1) for r in (train, test)]
        X_tr, X_te = (X.gather(1, rows) for rows in wide)
        Y_tr, Y_te = (Y.gather(1, rows) for rows in targets)
        return X_tr, Y_tr, X_te, Y_te


def _noisy(draws: Draws, scores: Tensor) -> Tensor:
    """Adds noise to scores (B, P, S): of one size, or of one that depends on the row."""
    B, P, S = scores.shape
    depends = draws.uniform(B, 1, 1) * draws.happens(0.3, B, 1, 1)
    size = (depends * scores[..., -1:].clamp(-3, 3)).exp() * draws.spread(0.003, 0.7, B, 1, 1)
    tails = torch.where(draws.happens(0.3, B, 1, 1), draws.spread(0.3, 3.0, B, P, 1), 1.0)
    return scores + size * tails * draws.normal(B, P, S)


def _targets(draws: Draws, scores: Tensor) -> Tensor:
    """Returns real targets, (B, P, 1); some are skewed."""
    y = standardized(_noisy(draws, scores)[..., :1])
    skew = draws.spread(0.1, 1.5, y.shape[0], 1, 1)
    skewed = standardized((skew * y.clamp(-4, 4)).exp())
    return torch.where(draws.happens(0.25, y.shape[0], 1, 1), skewed, y)


def _labels(draws: Draws, scores: Tensor) -> Tensor:
    """Returns labels, (B, P): classes are parts of one score's range, or the largest of several."""
    B, P, C = scores.shape
    noisy = standardized(_noisy(draws, scores))
    two = draws.happens(0.45, B, 1)
    classes = torch.where(two, 2, 2 + (draws.uniform(B, 1).square() * (C - 1)).long())  # (B, 1)
    exists = torch.arange(C, device=scores.device) < classes  # (B, C)
    weight = draws.spread(0.1, 1.2, B, 1) * draws.normal(B, C)  # some classes are rare
    share = weight.masked_fill(~exists, -math.inf).softmax(dim=-1)
    rank = noisy[..., 0].argsort(dim=1).argsort(dim=1) / P  # (B, P)
    parts = (rank.unsqueeze(-1) >= share.cumsum(dim=-1)[:, None, :-1]).sum(dim=-1)
    bias = (share + 1e-9).log() * draws.uniform(B, 1)
    largest = (
        (noisy + bias.unsqueeze(1)).masked_fill(~exists.unsqueeze(1), -math.inf).argmax(dim=-1)
    )
    Y = torch.where(draws.happens(0.5, B, 1), parts, largest)
    wrong = draws.uniform(B, 1).pow(3) * 0.4 * draws.happens(0.3, B, 1)  # the rate of wrong labels
    other = Y.gather(1, draws.order(B, P))
    return torch.where(draws.happens(wrong, B, P), other, Y)


def _known_classes(
    draws: Draws, Y_tr: Tensor, Y_te: Tensor, C: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers the classes of the training rows, (B, M), at random from 0, without gaps.

    Labels of test rows, (B, N), of which there is no training row become one that there is. Also
    returns which tables have several classes, (B,).
    """
    B = len(Y_tr)
    seen = torch.zeros(B, C, dtype=torch.bool, device=Y_tr.device).scatter(1, Y_tr, True)
    key = draws.uniform(B, C) + (~seen)  # those that are seen come first
    number = key.argsort(dim=1).argsort(dim=1)  # of each class, (B, C)
    stray = ~seen.gather(1, Y_te)
    Y_te = torch.where(stray, Y_tr[:, :1], Y_te)
    several = (seen.sum(dim=1) > 1) & (stray.float().mean(dim=1) < 0.1)
    return number.gather(1, Y_tr), number.gather(1, Y_te), several


def disguise(draws: Draws, X: Tensor) -> Tensor:
    """Turns features, (B, P, D), into those of real tables.

    Some are skewed, heavy-tailed, of few values, categories, copies of others, useless or missing.
    """
    B, P, D = X.shape
    copied = draws.happens(0.05, B, D)
    whose = torch.where(copied, draws.index(D, B, D), torch.arange(D, device=X.device))
    X = X.gather(2, whose.unsqueeze(1).expand(-1, P, -1))
    X = torch.where(
        copied.unsqueeze(1), X + draws.spread(0.01, 1.0, B, 1, D) * draws.normal(B, P, D), X
    )
    useless = draws.happens(draws.uniform(B, 1).square() * draws.happens(0.5, B, 1), B, D)
    X = torch.where(useless.unsqueeze(1), X.gather(1, draws.order(B, D, P).mT), X)
    rank = X.argsort(dim=1).argsort(dim=1) / P  # (B, P, D), below 1
    levels = draws.spread(2, LEVELS + 0.99, B, 1, D).floor()
    level = (levels * rank ** draws.spread(0.5, 2.0, B, 1, D)).long()  # of uneven sizes
    codes = draws.order(B, D, LEVELS).mT  # (B, LEVELS, D)
    power = draws.spread(0.3, 3.0, B, 1, D)
    kinds = torch.stack(
        [
            X,
            (draws.spread(0.2, 1.5, B, 1, D) * X.clamp(-4, 4)).exp(),
            X.sign() * X.abs() ** power,
            rank,
            (X - draws.uniform(B, 1, D, low=-1, high=1)).relu(),
            (X * draws.spread(0.5, 10.0, B, 1, D)).round(),
            level.to(X.dtype),
            codes.gather(1, level).to(X.dtype),
            (rank > draws.uniform(B, 1, D, low=0.1, high=0.9)).to(X.dtype),
        ]
    )
    # All features are as they were drawn, or a part; the others are of the few kinds of a table.
    changed = draws.happens(draws.uniform(B, 1) * draws.happens(0.75, B, 1), B, D)
    kind = draws.index(len(kinds), B, 3).gather(1, draws.index(3, B, D)) * changed
    X = kinds.gather(0, kind[None, :, None].expand(1, -1, P, -1)).squeeze(0)
    rate = draws.uniform(B, 1, D).square() * 0.5 * draws.happens(0.2, B, 1, 1)
    rate = rate * torch.where(draws.happens(0.3, B, 1, D), 2 * rank, 1.0)  # large ones are missing
    return X.masked_fill(draws.happens(rate, B, P, D), math.nan)


def explained(X: Tensor, Y: Tensor, classes: int) -> Tensor:
    """Returns the share of the targets' variance that kernel ridge regression explains, (B,).

    Args:
        X: Features, (B, P, D), of which a part are for training and as many for testing.
        Y: Labels, (B, P), or targets, (B, P, 1).
        classes: Of labels; 0 for real targets.
    """
    half = min(JUDGED, X.shape[1] // 2)
    Z, D = standardized(X[:, : 2 * half].nan_to_num()).clamp(-4, 4), X.shape[-1]
    T = (Y.unsqueeze(-1) == torch.arange(classes, device=Y.device)) if classes else Y
    T = T[:, : 2 * half].to(Z.dtype)
    T_tr, T_te = T.split(half, dim=1)
    mean = T_tr.mean(dim=1, keepdim=True)
    distance = torch.cdist(Z, Z).square() / D
    K = (-distance).exp() + 0.2 * (Z @ Z.mT) / D
    eye = torch.eye(half, device=Z.device)
    weights = torch.linalg.solve(K[:, :half, :half] + 0.5 * eye, T_tr - mean)
    error = (T_te - mean - K[:, half:, :half] @ weights).square().sum(dim=(1, 2))
    usual = (T_te - mean).square().sum(dim=(1, 2))
    share = 1 - error / usual.clamp(min=torch.finfo(usual.dtype).tiny)
    return torch.where(usual > 0, share, 0.0)  # nothing is to be learned of a constant
