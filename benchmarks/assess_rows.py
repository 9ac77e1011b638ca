"""An assessment of many rows, against one of a tenth of them: time and memory."""

import resource
import time

import torch
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier

from neural_complexity import assess
from timing import Ratio, show

ROWS = 100_000
TRAIN = 2000


def main() -> None:
    torch.set_num_threads(1)
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
