"""A network that somebody trains in a loop of their own, perhaps with one more term in its loss."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn, optim

from neural_complexity.learners.networks import mlp
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.regularizers.loop import NCRegularizer

__all__ = ["BATCH", "train_and_predict"]

BATCH = 32  # points of a step
Array = NDArray[Any]


def train_and_predict(
    X: Array, y: Array, X_te: Array, *, classes: int, steps: int, nc: NeuralComplexity | None = None
) -> Array:
    """Trains a network with one layer of 64 by Adam; returns its labels of the test points.

    Args:
        X: Training inputs, (M, D).
        y: Their labels, (M,).
        X_te: Test inputs, (N, D).
        classes: How many there are.
        steps: Updates.
        nc: What `NCRegularizer` is made of, at its defaults, which judges on the test inputs.
    """
    device = None if nc is None else nc.x_mean.device
    x, x_te = (torch.tensor(points, dtype=torch.float32, device=device) for points in (X, X_te))
    t = torch.tensor(y, device=device)
    penalty = None if nc is None else NCRegularizer(nc, X_tr=x, y_tr=t)
    model = mlp(X.shape[1], (64,), classes).to(x)
    optimizer = optim.Adam(model.parameters(), lr=0.003)
    for _ in range(steps):
        some, others = (torch.randint(len(points), (BATCH,)) for points in (x, x_te))
        loss = nn.functional.cross_entropy(model(x[some]), t[some])
        if penalty is not None:
            loss = loss + penalty(model, x[some], t[some], x_te[others])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return model(x_te).argmax(dim=1).cpu().numpy()  # type: ignore[no-any-return]
