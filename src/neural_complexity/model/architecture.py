"""The sizes and switches of NC, as one value that is saved with its weights."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from neural_complexity.losses import LOSSES
from neural_complexity.points import raw, values
from neural_complexity.task import check_sets

__all__ = ["Architecture"]

LEAST = {"self_layers": 0, "rounds": 0, "clip": 0, "table_layers": 0}
LEAST |= {"extra_rows": 0, "bins": 0}  # of what may be zero; 1 for other numbers
MOST = {"rounds": 1000, "bins": 10_000, "clip": 1e9}  # of what no weights bound


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """NC's sizes and switches.

    Raises:
        ValueError: If a size is too small, or switches do not go together.
    """

    inputs: int | tuple[int, ...]  # features, D, or channels, height and width of an image
    outputs: int  # or classes, C; a symmetric NC answers for other numbers of classes, too
    head: str = "posterior"  # predicts p(y | x, S); "direct" (the paper's) the loss of h itself
    loss: str = "squared_error"  # whose gap is predicted; "cross_entropy" is that of labels
    width: int = 128  # d, of every layer
    heads: int = 4  # of attention
    encoder_layers: int = 3  # linear layers, n_enc
    decoder_layers: int = 3  # linear layers, n_dec
    query_skip: bool = True  # whether the decoder also sees the test point's own embedding
    observed_loss: bool = True  # whether the direct head predicts the test loss, not the gap
    pool_first: bool = False  # whether to average test points, then decode (appendix C; direct)
    scale_by_width: bool = False  # whether attention divides by the root of d, as the official code
    channels: int = 64  # filters of each layer of the image encoder
    image_layers: int = 4  # of the image encoder, or stages of two blocks each
    image_encoder: Literal["conv", "resnet"] = "conv"  # that of prototypical networks, or a ResNet
    self_layers: int = 0  # of self-attention over the training points, n_self
    bilinear: bool = False  # whether targets act on V through the interaction layer of Eq. (9)
    bias: bool = True  # whether that layer has its 1
    loss_conditioning: bool = False  # whether V sees h's loss at each training point (direct head)
    symmetric: bool = False  # whether classes are treated alike: there can be any number of them
    metric: bool = False  # whether attention goes by distance, in one space of queries and keys
    rounds: int = 0  # of soft k-means, which move keys to the test points that choose them
    # Whether the decoder corrects the attention on each label (posterior head) or sees it (direct).
    vote: bool = False
    for_tables: bool = False  # whether NC is for tables of any features and any classes
    table_layers: int = 0  # of the network for tables; without any, its beliefs are in closed form
    extra_rows: int = 0  # rows that are learned, and seen in every table
    bins: int = 0  # of the histogram that is believed of a real target; a Gaussian if 0
    # How many standard deviations a feature may be off its mean; any number if 0. One that hardly
    # ever changes would otherwise tell points apart by itself.
    clip: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.inputs, Sequence):
            object.__setattr__(self, "inputs", tuple(self.inputs))
        for field in fields(self):
            least, got = LEAST.get(field.name, 1), getattr(self, field.name)
            if field.type in (int, float) and not got >= least:
                raise ValueError(f"{field.name} must be at least {least}, got {got}")
            if field.name in MOST and got > (most := MOST[field.name]):
                raise ValueError(f"{field.name} must be at most {most}, got {got}")
        if len(self.shape) not in (1, 3) or min(self.shape) < 1:
            wanted = "a number of features or (channels, height, width)"
            raise ValueError(f"inputs must be {wanted}, got {self.inputs}")
        if self.loss not in LOSSES:
            raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {self.loss}")
        if self.width % self.heads:
            got = f"width={self.width}, heads={self.heads}"
            raise ValueError(f"width must be a multiple of heads, got {got}")
        if self.symmetric and not LOSSES[self.loss].labels:
            raise ValueError("symmetric must be off for real targets, which have no classes")
        if self.bins and (LOSSES[self.loss].labels or self.outputs > 1):
            raise ValueError("bins must be 0 but for one real target")
        if self.for_tables and (self.head != "posterior" or len(self.shape) != 1):
            raise ValueError("for_tables must be off but for the posterior head, and features")
        if self.for_tables and not (LOSSES[self.loss].labels or self.bins):
            raise ValueError("bins must be at least 1 for tables of real targets, got 0")
        if self.for_tables and self.symmetric:
            raise ValueError("symmetric must be off for tables, whose classes always are")
        if (self.rounds or self.vote) and not self.metric:
            raise ValueError("metric must be on for rounds and vote, got it off")

    def check(self, dtype: torch.dtype, classes: int | None, tensors: dict[str, Tensor]) -> None:
        """Refuses what NC cannot judge; see `NeuralComplexity.check`."""
        real = not LOSSES[self.loss].labels
        labels = {} if real else {n: Y for n, Y in tensors.items() if n[0] == "Y"}
        for name, Y in labels.items():
            # First: real numbers would be asked for features, which labels do not have.
            if isinstance(Y, Tensor) and Y.dtype != torch.int64:
                raise TypeError(f"{name} must be labels of type torch.int64, got {Y.dtype}")
        check_sets(**tensors)
        if real:
            classes = self.outputs
        elif classes is None:
            classes = next((H.shape[-1] for n, H in tensors.items() if n[0] == "H"), self.outputs)
            if self.for_tables and not any(n[0] == "H" for n in tensors):  # as many as there are
                classes = max((int(Y.max()) + 1 for Y in labels.values() if Y.numel()), default=1)
        if classes != self.outputs and not (self.symmetric or self.for_tables):
            wanted = f"the {self.outputs} classes that NC was made for"
            raise ValueError(f"labels must be of {wanted}, got {classes}")
        for name, tensor in tensors.items():
            # Points are many and come from one store: the first of them speaks for all.
            seen = tensor if raw(tensor) is tensor else values(tensor[:1, :1])
            shape = () if name in labels else self.shape if name[0] == "X" else (classes,)
            if self.for_tables and name[0] == "X" and seen.ndim == 3:
                # Any features; some may be missing.
                shape, seen = seen.shape[2:], torch.where(seen.isnan(), 0.0, seen)
            if tuple(seen.shape[2:]) != shape:
                wanted = ", ".join(["tasks", "points", *map(str, shape)])
                raise ValueError(f"{name} must be ({wanted}), got shape {tuple(seen.shape)}")
            if name in labels:
                low, high = map(int, torch.aminmax(seen))
                if low < 0 or high >= classes:
                    raise ValueError(f"{name} must be from 0 to {classes - 1}, got {low} to {high}")
            elif seen.dtype != dtype:
                raise TypeError(f"{name} must be {dtype} like NC, got {seen.dtype}")
            elif not seen.isfinite().all():
                raise ValueError(f"{name} must be finite, got NaN or infinity")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (D,), or (channels, height, width)."""
        return (self.inputs,) if isinstance(self.inputs, int) else self.inputs
