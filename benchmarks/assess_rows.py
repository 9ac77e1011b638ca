"""An assessment of many rows, against one of a tenth of them, and of few: time and memory."""

import resource
import time

import torch
from sklearn.datasets import make_classification, make_regression
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from neural_complexity import assess
from timing import Ratio, show

ROWS = 100_000
TRAIN = 2000
FEW, FEATURES = 200, 30


def assess_few(*, labels: bool) -> Ratio:
    """Returns the seconds of one assessment of few rows, the second one of this process."""
    make, forest = (
        (make_classification, RandomForestClassifier)
        if labels
        else (make_regression, RandomForestRegressor)
    )
    spent = []
    for seed in range(2):  # of other rows: nothing that is kept of the first helps
        X, y = make(2 * FEW, FEATURES, n_informative=8, random_state=seed)
        known, targets, new = X[:FEW], y[:FEW], X[FEW:]
        model = forest(random_state=0).fit(known, targets)
        start = time.process_time()
        assess(model, known, targets, new)
        spent.append(time.process_time() - start)
    what = "labels" if labels else "numbers"
    more = f"{FEW} training and {FEW} new rows, {FEATURES} features; the first one {spent[0]:.1f} s"
    name = f"assess, few rows of {what}: seconds on one core"
    return Ratio(name, spent[1], "<= 1", spent[1] <= 1, more)


def main() -> None:
    torch.set_num_threads(1)
    show([assess_few(labels=labels) for labels in (True, False)])
    X, y = make_classification(TRAIN + ROWS, 20, n_informative=8, random_state=0)
    known, labels, new = X[:TRAIN], y[:TRAIN], X[TRAIN:]
    forest = RandomForestClassifier(random_state=0).fit(known, labels)
    assess(forest, known, labels, new[:100])  # what is loaded once
    seconds, memory = [], []
    for rows in (ROWS // 10, ROWS):
        start = time.process_time()
        assess(forest, known, labels, new[:rows])
        seconds.append(time.process_time() - start)
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    times = f"{seconds[1]:.0f} s on one core, {seconds[0]:.0f} s for a tenth of the rows"
    more = f"at most {memory[1]:.0f} MB in all, {memory[0]:.0f} MB for a tenth"
    growth = seconds[1] / seconds[0]
    show(
        [
            Ratio("assess, ten times the rows: time", growth, "<= 10", growth <= 10, times),
            Ratio(
                "assess, 100,000 rows: share of a minute",
                seconds[1] / 60,
                "<= 1",
                seconds[1] <= 60,
                more,
            ),
        ]
    )


if __name__ == "__main__":
    main()
