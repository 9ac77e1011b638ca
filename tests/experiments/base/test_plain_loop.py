import numpy as np
import pytest

from conftest import holds_for_seeds
from neural_complexity.experiments.base.plain_loop import train_and_predict
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import seeded

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.mark.trains
@pytest.mark.parametrize("regularized", [False, True])
def test_a_loop_learns_what_can_be_learned(regularized: bool) -> None:
    nc = NeuralComplexity.pretrained("tables") if regularized else None

    def check(seed: int) -> bool:
        X, X_te = np.random.default_rng(seed).normal(size=(2, 60, 2)).astype(np.float32)
        y, y_te = ((points[:, 0] > 0).astype(int) for points in (X, X_te))
        with seeded(seed, "loop"):
            told = train_and_predict(X, y, X_te, classes=2, steps=60, nc=nc)
        return bool((told == y_te).mean() > 0.85)

    holds_for_seeds(check)
