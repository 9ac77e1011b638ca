"""What NC descends: the Huber loss on the gap, for learners or pseudo-predictions."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import huber_loss, mse_loss, one_hot

from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.points import Embeddings, map_inputs, raw
from neural_complexity.snapshot import Snapshot, point_gaps

__all__ = ["Augment", "TrainingInputs", "nc_loss", "pseudo_predictions"]

Augment = Callable[[Tensor, torch.Generator], Tensor]
# Half of the squared error, as the Huber loss is for small errors.
CRITERIA: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "huber": huber_loss,
    "squared": lambda a, b: 0.5 * mse_loss(a, b),
}
SHARPNESS = (0.3, 12.0)  # the logit of the class that a pseudo-prediction names


@dataclass(frozen=True)
class TrainingInputs:
    """How inputs that are `Points` reach NC while it learns."""

    augment: Augment | None = None  # changes inputs at random, (P, ...), before NC embeds them
    embeddings: Embeddings | None = None  # of all inputs, if NC's image encoder is not trained

    def encode(self, nc: NeuralComplexity, snapshot: Snapshot, draw: torch.Generator) -> Context:
        """Returns the context of the learners' tasks."""
        sets, augment = (snapshot.X_tr, snapshot.X_te), self.augment
        if self.embeddings is not None:
            E = [self.embeddings(raw(X)) for X in sets]
        elif augment is not None:
            # In one part: how many inputs are drawn for at a time decides the draws.
            E = map_inputs(lambda X: nc.embed(augment(X, draw)), *sets, part=None)
        else:
            E = map_inputs(nc.embed, *sets)
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
    """Computes NC's loss, the Huber loss of Eq. (5) on the gap, a scalar; see `MetaTraining`.

    Only the loss sees Y_te, (B, N, C); `context` is of the learners' tasks, if that is at hand.
    """
    if context is None:
        classes = snapshot.H_te.shape[-1]
        context = nc.encode(snapshot.X_tr, snapshot.Y_tr, snapshot.X_te, classes=classes)
    predicted = nc.points(context, snapshot.H_tr, snapshot.H_te)  # (B, N)
    true = point_gaps(nc.loss, snapshot, Y_te)  # (B, N)
    if supervision == "set":
        predicted, true = predicted.mean(dim=1), true.mean(dim=1)  # (B,)
    value = CRITERIA[criterion](predicted, true)
    supervised = nc.head.supervise(context.state, Y_te) if belief_weight else None
    return value if supervised is None else value + belief_weight * supervised


def pseudo_predictions(
    snapshot: Snapshot, Y_te: Tensor, generator: torch.Generator, *, share: float = 1.0
) -> Snapshot:
    """Replaces a share of the learners by logits that mix right and wrong labels.

    Learners of few images are mostly unsure or mostly wrong, and NC learns little from either. Here
    each row names the right class for its own share of the points, and any class for the others,
    more or less sharply and with some noise. Most rows are right on their training points, as
    learners are. Test labels are (B, N), and the generator is on the CPU.
    """
    (B, _, C), device, dtype = snapshot.H_tr.shape, Y_te.device, snapshot.H_te.dtype

    def draw(*size: int) -> Tensor:
        return torch.rand(*size, generator=generator, dtype=dtype).to(device)

    low, high = SHARPNESS
    sharpness, noise = low * (high / low) ** draw(B, 1, 1), draw(B, 1, 1)

    def logits(Y: Tensor, right: Tensor) -> Tensor:
        other = (draw(*Y.shape) * C).long()
        named = torch.where(draw(*Y.shape) < right, Y, other)  # (B, points)
        spread = torch.randn(*Y.shape, C, generator=generator, dtype=dtype).to(device)
        return sharpness * one_hot(named, C) + noise * spread

    H_te = logits(Y_te, draw(B, 1))
    H_tr = logits(snapshot.Y_tr, (2 * draw(B, 1) + 0.5).clamp(max=1))
    kept = (torch.rand(B, generator=generator) >= share)[:, None, None].to(device)
    H_tr, H_te = torch.where(kept, snapshot.H_tr, H_tr), torch.where(kept, snapshot.H_te, H_te)
    return replace(snapshot, H_tr=H_tr, H_te=H_te)
