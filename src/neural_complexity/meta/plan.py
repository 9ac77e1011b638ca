"""How much work fits into a budget of time."""

import math
import re
from dataclasses import asdict, dataclass

from neural_complexity.tasks.families import check_sizes

__all__ = ["FEWEST", "Plan", "make_plan", "seconds"]

UNITS = {"s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600}
# Shares of the budget; what is left goes to setting up and to saving.
TRAINING, REPORT, CHOICE = 0.6, 0.2, 0.08
FEWEST_LEARNERS, MOST_LEARNERS = 40, 400  # to report on; 59 give bounds at 95 % with any meaning
FEWEST_CHOSEN_BY, MOST_CHOSEN_BY = 8, 48
FEWEST = FEWEST_LEARNERS + FEWEST_CHOSEN_BY  # held-out learners, however short the budget
FEWEST_ITERATIONS, MOST_ITERATIONS = 20, 1000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The work of `meta_learn`; the same plan gives the same NC on any machine.

    Args:
        iterations: How often learners are trained for the bank.
        updates: NC updates after each time.
        learners: Held-out learners that the report is about, at least.
        chosen_by: Other held-out learners, by which the best NC on the way is chosen, at least.
    """

    iterations: int
    updates: int
    learners: int = MOST_LEARNERS
    chosen_by: int = MOST_CHOSEN_BY

    def __post_init__(self) -> None:
        check_sizes(**asdict(self))


def seconds(budget: str | float) -> float:
    """Returns a positive time in seconds: a number, or text such as "90s", "10min" or "1.5h"."""
    value = math.nan
    if isinstance(budget, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", budget.lower())
        value = float(found[1]) * UNITS.get(found[2], math.nan) if found else math.nan
    elif isinstance(budget, int | float) and not isinstance(budget, bool):
        value = float(budget)
    if not 0 < value < math.inf:
        raise ValueError(
            f'budget must be a positive time such as "30s", "10min" or "2h", got {budget!r}'
        )
    return value


def make_plan(
    budget: float, *, collecting: float, updating: float, learner: float, most_updates: float
) -> Plan:
    """Divides a budget by what a collection, an update of NC and a held-out learner take.

    All are in seconds. NC gets as much time as the learners it learns from: either alone would be
    wasted. Some of the budget may be left where more than `most_updates` of NC in all would only
    learn the data by heart.
    """
    updates = min(200, max(10, round(collecting / updating)))
    # Many small helpings rather than a few large ones, where there are not many updates.
    if most_updates < updates * FEWEST_ITERATIONS:
        updates = max(1, round(most_updates / FEWEST_ITERATIONS))
    iterations = TRAINING * budget / (collecting + updates * updating)
    iterations = min(iterations, most_updates / updates)
    learners, chosen_by = (share * budget / learner for share in (REPORT, CHOICE))
    return Plan(
        iterations=min(MOST_ITERATIONS, max(2, round(iterations))),
        updates=updates,
        learners=min(MOST_LEARNERS, max(FEWEST_LEARNERS, round(learners))),
        chosen_by=min(MOST_CHOSEN_BY, max(FEWEST_CHOSEN_BY, round(chosen_by))),
    )
