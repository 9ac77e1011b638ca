"""TRANSITION: `experiment.Parts` replaces it."""

from pathlib import Path
from typing import Any

from neural_complexity.experiments.base.experiment import Parts
from neural_complexity.progress import Tell
from neural_complexity.workspace import Workspace, fingerprint

__all__ = ["Pieces"]


class Pieces(Parts):
    """TRANSITION."""

    def __init__(self, total: int, config: Any, folder: Path | None, tell: Tell | None) -> None:
        super().__init__(Workspace(folder, fingerprint(config)), total, tell)
        self.tell = tell
