"""The settings of Algorithm 2, and where it stands."""

import math
from dataclasses import asdict, dataclass
from typing import Literal

from neural_complexity.meta.optimizer import warmup_cosine

__all__ = ["MetaTraining", "Status"]


@dataclass(frozen=True, kw_only=True)
class MetaTraining:
    """The settings of Algorithm 2.

    Args:
        iterations: How often learners are trained for the bank.
        updates: NC updates per iteration.
        batch: Bank rows per update.
        tasks: Tasks per collection, where the trainer makes the collector.
        lr: The peak learning rate of Adam.
        warmup: The part of training in which the learning rate rises.
        decay: Whether it falls to zero afterwards.
        ramp: The part of training in which the weight of NC rises.
        spread_weights: See `LearnerCollector`; where the trainer makes the collector.
        capacity: Rows of the bank.
        supervision: `"point"` gives each test point its own target, whose mean is the gap; `"set"`
            is the paper's one target per learner.
        criterion: `"huber"`, or `"squared"` for half the squared error.
        belief_weight: How much the belief about the test targets counts beside the gap, for heads
            that have one: a learner that is already right teaches it little through the gap.
        pseudo_predictions: The share of each batch whose learners are replaced by
            pseudo-predictions (labels only).
        run: Rows of the bank that are drawn together; see `MemoryBank.sample`.
        lag: How many iterations ahead collections are made.
        interval: Iterations between two checkpoints, and between two scores; a twentieth of all if
            0.
    """

    iterations: int
    updates: int
    batch: int = 512
    tasks: int = 512
    lr: float = 0.003
    warmup: float = 0.1
    decay: bool = True
    ramp: float = 0.5
    spread_weights: bool = True
    capacity: int = 100_000
    supervision: Literal["point", "set"] = "point"
    criterion: Literal["huber", "squared"] = "huber"
    belief_weight: float = 1.0
    pseudo_predictions: float = 0.0
    run: int = 1
    lag: int = 0
    interval: int = 0

    def __post_init__(self) -> None:
        if self.lag < 0:
            raise ValueError(f"lag must not be negative, got {self.lag}")

    @property
    def period(self) -> int:
        """Iterations between two checkpoints, and between two scores."""
        return self.interval or max(1, self.iterations // 20)

    def weight(self, iteration: int) -> float:
        """Returns the weight of NC in the collection of an iteration."""
        ramp = self.ramp * self.iterations
        return min(1.0, iteration / ramp) if ramp else 1.0

    def lr_factor(self, update: int) -> float:
        """Returns what the learning rate is multiplied by at an update."""
        progress = update / max(1, self.iterations * self.updates)
        return warmup_cosine(progress, warmup=self.warmup, decay=self.decay)

    def version(self, index: int) -> int:
        """Returns the iteration at whose start NC had the weights that make a collection."""
        return max(0, index - self.lag)


@dataclass(frozen=True)
class Status:
    """Where meta-learning stands."""

    iteration: int
    iterations: int
    bank: int  # rows in the bank
    dropped: int  # rows refused because their learner diverged
    seconds: float  # spent so far, over all sessions
    loss: float = math.nan
    r2: float = math.nan  # on held-out learners, as last measured

    def to_json(self) -> dict[str, float]:
        """Returns the numbers that JSON has; the others are NaN again in `Status(**numbers)`."""
        return {name: number for name, number in asdict(self).items() if math.isfinite(number)}
