"""What every experiment gives back."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from neural_complexity.experiments.base.rows import Row
from neural_complexity.meta.training_loop import Moment
from neural_complexity.model.network import NeuralComplexity

__all__ = ["Outcome"]


@dataclass(frozen=True)
class Outcome:
    """What a run leaves: rows for tables, tensors for figures, networks, and the way there."""

    rows: list[Row]
    tensors: dict[str, Tensor]
    networks: dict[str, NeuralComplexity] = field(default_factory=dict)
    history: dict[str, list[Moment]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)  # what else a reader should know, as JSON
