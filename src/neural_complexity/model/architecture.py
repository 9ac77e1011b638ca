"""The sizes and switches of NC, as one value that is saved with its weights."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from neural_complexity.losses import LOSSES, Loss

__all__ = ["Architecture"]

LEAST = {"self_layers": 0, "rounds": 0, "clip": 0}  # of what may be zero; 1 for other numbers


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """NC's sizes and switches.

    Args:
        inputs: Input features, D, or channels, height and width of an image.
        outputs: Outputs or classes, C. A symmetric NC answers for any other number of classes too.
        head: `"posterior"` (ours) predicts p(y | x, S), and so the expected loss of h;
            `"direct"` (the paper's) sees (x, h(x)) and predicts the loss itself.
        loss: The name of the loss whose gap is predicted; `"cross_entropy"` is that of labels.
        width: The width d of every layer.
        heads: Attention heads.
        encoder_layers: Linear layers of the encoder, n_enc.
        decoder_layers: Linear layers of the decoder, n_dec.
        query_skip: Whether the decoder also sees the test point's own embedding.
        observed_loss: Whether the direct head predicts a test loss, from which the observed
            training loss is subtracted, instead of the gap. The posterior head always does.
        pool_first: Whether test points are averaged before decoding (appendix C; direct head only).
        scale_by_width: Whether attention divides by the root of the width, as the official code.
        channels: Filters of each layer of the image encoder.
        image_layers: Layers of the image encoder, or stages of two blocks each.
        image_encoder: `"conv"`, that of prototypical networks, or `"resnet"`, for such learners.
        self_layers: Layers of self-attention over the training points, n_self.
        bilinear: Whether targets act on V through the interaction layer of Eq. (9).
        bias: Whether that layer has its 1.
        loss_conditioning: Whether V sees the learner's loss at each training point (direct head).
        symmetric: Whether classes are treated alike, so that there can be any number of them.
        metric: Whether attention goes by distance, in one space of queries and keys.
        rounds: Rounds of soft k-means that move keys to the test points that choose them.
        vote: Whether the decoder corrects the attention on each label (posterior head only).
        clip: How many standard deviations a feature may be off its mean; any number if 0. A
            feature that hardly ever changes would otherwise tell points apart by itself.

    Raises:
        ValueError: If a size is too small, or switches do not go together.
    """

    inputs: int | tuple[int, ...]
    outputs: int
    head: str = "posterior"
    loss: str = "squared_error"
    width: int = 128
    heads: int = 4
    encoder_layers: int = 3
    decoder_layers: int = 3
    query_skip: bool = True
    observed_loss: bool = True
    pool_first: bool = False
    scale_by_width: bool = False
    channels: int = 64
    image_layers: int = 4
    image_encoder: Literal["conv", "resnet"] = "conv"
    self_layers: int = 0
    bilinear: bool = False
    bias: bool = True
    loss_conditioning: bool = False
    symmetric: bool = False
    metric: bool = False
    rounds: int = 0
    vote: bool = False
    clip: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.inputs, Sequence):
            object.__setattr__(self, "inputs", tuple(self.inputs))
        for field in fields(self):
            least, got = LEAST.get(field.name, 1), getattr(self, field.name)
            if field.type in (int, float) and not got >= least:
                raise ValueError(f"{field.name} must be at least {least}, got {got}")
        if len(self.shape) not in (1, 3) or min(self.shape) < 1:
            wanted = "a number of features or (channels, height, width)"
            raise ValueError(f"inputs must be {wanted}, got {self.inputs}")
        if self.loss not in LOSSES:
            raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {self.loss}")
        if self.width % self.heads:
            got = f"width={self.width}, heads={self.heads}"
            raise ValueError(f"width must be a multiple of heads, got {got}")
        if self.symmetric and not self.the_loss.labels:
            raise ValueError("symmetric must be off for real targets, which have no classes")
        if (self.rounds or self.vote) and not self.metric:
            raise ValueError("metric must be on for rounds and vote, got it off")

    @property
    def the_loss(self) -> Loss:
        """The loss that is named."""
        return LOSSES[self.loss]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (D,), or (channels, height, width)."""
        return (self.inputs,) if isinstance(self.inputs, int) else self.inputs

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON has them."""
        inputs = self.inputs if isinstance(self.inputs, int) else list(self.inputs)
        return {**asdict(self), "inputs": inputs}
