import numpy as np
import pytest

from neural_complexity.experiments.base.plain_loop import train_and_predict
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import seeded

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.mark.parametrize("regularized", [False, True])
def test_a_loop_learns_what_can_be_learned(regularized: bool) -> None:
    random = np.random.default_rng(0)
    X, X_te = random.normal(size=(2, 60, 2)).astype(np.float32)
    y, y_te = ((points[:, 0] > 0).astype(int) for points in (X, X_te))
    nc = NeuralComplexity.pretrained("tables") if regularized else None
    with seeded(0, "loop"):
        told = train_and_predict(X, y, X_te, classes=2, steps=60, nc=nc)
    assert (told == y_te).mean() > 0.85
