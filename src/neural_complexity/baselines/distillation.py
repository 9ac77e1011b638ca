"""NC's image encoder as a plain classifier: what a user would train instead of NC."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from neural_complexity.losses import cross_entropy
from neural_complexity.meta.trainer import Augment, lr_factor
from neural_complexity.model.encoders import ImageEncoder, ResidualEncoder
from neural_complexity.seeding import stream

__all__ = ["Classifier", "train_classifier"]

PART = 2048  # images at a time: bounds memory


class Classifier(nn.Module):
    """An image encoder, a hidden layer, and a logit for each class.

    Args:
        encoder: Embeds images.
        classes: Classes, C.
        width: Units of the hidden layer.
    """

    def __init__(
        self, encoder: ImageEncoder | ResidualEncoder, classes: int, *, width: int
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = nn.Sequential(
            nn.Linear(encoder.features, width), nn.ReLU(), nn.Linear(width, classes)
        )

    def forward(self, X: Tensor) -> Tensor:
        """Gives logits of images (P, channels, height, width), as (P, C)."""
        logits: Tensor = self.decoder(self.encoder(X))
        return logits

    @torch.no_grad()
    def classify(self, look_up: Callable[[Tensor], Tensor], numbers: Tensor) -> Tensor:
        """Gives logits of images by number, (P, C)."""
        return torch.cat([self(look_up(part)) for part in numbers.split(PART)])


def train_classifier(
    model: Classifier,
    look_up: Callable[[Tensor], Tensor],
    numbers: Tensor,
    labels: Tensor,
    *,
    updates: int,
    batch: int,
    lr: float,
    warmup: float = 0.1,
    augment: Augment | None = None,
    seed: int,
    watch: Callable[[int, float], None] | None = None,
) -> None:
    """Trains a classifier of numbered images, as NC is trained: same optimizer, rates and moves.

    Args:
        model: The classifier; its encoder's statistics are taken from the images first.
        look_up: Gives the images of numbers.
        numbers: The training images, (P,).
        labels: Their labels, (P,).
        updates: How many.
        batch: Images of each.
        lr: The peak learning rate.
        warmup: The part of training in which it rises; then it falls along a cosine.
        augment: Changes images at random.
        seed: Decides which images each update sees, and how they are changed.
        watch: Told the number of updates and the loss, now and then.

    Raises:
        FloatingPointError: If the loss is not finite.
    """
    model.encoder.calibrate(look_up(numbers[:PART]))
    adam = torch.optim.Adam(model.parameters(), lr=lr, fused=True)
    generator = stream(seed, "classifier")
    for update in range(updates):
        for group in adam.param_groups:
            group["lr"] = lr * lr_factor(update / updates, warmup=warmup, decay=True)
        chosen = torch.randint(len(numbers), (batch,), generator=generator).to(numbers.device)
        X = look_up(numbers[chosen])
        H = model(X if augment is None else augment(X, generator))
        loss = cross_entropy(H[None], labels[chosen][None]).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        if update % 50 == 0 or update == updates - 1:
            value = loss.item()
            if not math.isfinite(value):
                raise FloatingPointError(
                    f"the classifier's loss must be finite, got {value} at update {update}; a "
                    f"smaller lr may help"
                )
            if watch is not None:
                watch(update + 1, value)
