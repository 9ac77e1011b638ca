"""What NC descends: the Huber loss on the gap, and how its inputs are encoded for that."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import huber_loss, mse_loss

from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.points import Embeddings, map_inputs, raw
from neural_complexity.snapshot import Snapshot, gap, point_gaps

__all__ = ["CRITERIA", "Augment", "TrainingInputs", "nc_loss"]

Augment = Callable[[Tensor, torch.Generator], Tensor]
# Half of the squared error, as the Huber loss is for small errors.
CRITERIA: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "huber": huber_loss,
    "squared": lambda a, b: 0.5 * mse_loss(a, b),
}


@dataclass(frozen=True)
class TrainingInputs:
    """How inputs that are `Points` reach NC while it learns.

    Args:
        augment: Changes inputs at random, (P, ...), before NC embeds them.
        embeddings: Of all inputs, if NC's image encoder is not trained.
    """

    augment: Augment | None = None
    embeddings: Embeddings | None = None

    def encode(
        self, nc: NeuralComplexity, snapshot: Snapshot, generator: torch.Generator
    ) -> Context:
        """Returns the context of the learners' tasks."""
        if self.embeddings is not None:
            E = [self.embeddings(raw(X)) for X in (snapshot.X_tr, snapshot.X_te)]
        elif self.augment is not None:
            augment = self.augment
            sets = (snapshot.X_tr, snapshot.X_te)
            # In one part: how many inputs are drawn for at a time decides the draws.
            E = map_inputs(lambda X: nc.embed(augment(X, generator)), *sets, part=None)
        else:
            E = map_inputs(nc.embed, snapshot.X_tr, snapshot.X_te)
        return nc.context(E[0], snapshot.Y_tr, E[1], classes=snapshot.H_te.shape[-1])


def nc_loss(
    nc: NeuralComplexity,
    snapshot: Snapshot,
    Y_te: Tensor,
    *,
    supervision: Literal["point", "set"] = "point",
    criterion: Literal["huber", "squared"] = "huber",
    belief_weight: float = 1.0,
    context: Context | None = None,
) -> Tensor:
    """Computes NC's loss, the Huber loss of Eq. (5) on the gap, a scalar.

    Args:
        nc: The gap predictor.
        snapshot: B learners.
        Y_te: Their test targets, (B, N, C), which only the loss sees.
        supervision: As in `MetaTraining`.
        criterion: As in `MetaTraining`.
        belief_weight: As in `MetaTraining`.
        context: What `nc.encode` returned for the learners' tasks, if that is at hand.
    """
    if context is None:
        classes = snapshot.H_te.shape[-1]
        context = nc.encode(snapshot.X_tr, snapshot.Y_tr, snapshot.X_te, classes=classes)
    predicted = nc.points(context, snapshot.H_tr, snapshot.H_te)  # (B, N)
    if supervision == "point":
        value = CRITERIA[criterion](predicted, point_gaps(nc.loss, snapshot, Y_te))
    else:
        value = CRITERIA[criterion](predicted.mean(dim=1), gap(nc.loss, snapshot, Y_te))
    supervised = nc.head.supervise(context.state, Y_te) if belief_weight else None
    return value if supervised is None else value + belief_weight * supervised
