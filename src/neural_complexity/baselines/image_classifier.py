"""NC's image encoder as a plain classifier: what a user would train instead of NC."""

import torch
from torch import Tensor, nn

from neural_complexity import ledger
from neural_complexity.baselines.optimize import Optimization, optimize
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.nc_loss import Augment
from neural_complexity.model.encoders import ImageEncoder, ResidualEncoder
from neural_complexity.points import Points, indexed
from neural_complexity.progress import ProgressCallback
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
        """Returns logits of images, (P, channels, height, width), as (P, C)."""
        logits: Tensor = self.decoder(self.encoder(X))
        return logits

    @torch.no_grad()
    def classify(self, images: Points) -> Tensor:
        """Returns logits of images of a store, (P, C)."""
        parts = images.indices.split(PART)
        return torch.cat([self(images.store(part)) for part in parts])


def train_classifier(
    model: Classifier,
    images: Points,
    labels: Tensor,
    training: Optimization,
    *,
    batch: int,
    seed: int,
    augment: Augment | None = None,
    callback: ProgressCallback | None = None,
) -> None:
    """Trains a classifier in place as NC is trained: same optimizer, rates and augmentation.

    Args:
        model: The classifier; its encoder's statistics are taken from the images first.
        images: The training images, (P,) of a store.
        labels: Their labels, (P,).
        training: The settings of Adam.
        batch: Images of each update.
        seed: Decides which images each update sees, and how they are changed.
        augment: Changes images at random.
        callback: Called after each update.
    """
    model.encoder.calibrate(images[:PART].values())
    generator = stream(seed, "classifier")

    def loss(_: int) -> Tensor:
        chosen = torch.randint(len(images), (batch,), generator=generator).to(images.device)
        some = images[chosen]
        ledger.record("train", indexed(some.indices, some.store), labels[chosen])
        X = some.values()
        H = model(X if augment is None else augment(X, generator))
        return cross_entropy(H[None], labels[chosen][None]).mean()

    optimize(model, loss, training, stage="image classifier", callback=callback)
