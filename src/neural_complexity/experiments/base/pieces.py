"""Work in pieces, each done once, so that a run goes on where it was stopped."""

import json
import re
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from neural_complexity.files import read_tensors, write_tensors
from neural_complexity.progress import Tell

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["Pieces"]


class Pieces:
    """Does named pieces of work and keeps what they give in a folder.

    A piece must be a pure function of the run's config: what an earlier session did is not done
    again.

    Args:
        total: How many pieces there will be.
        config: The run's config; pieces of another one are refused.
        folder: Where their results are kept; nowhere if `None`.
        tell: Told about the progress.
    """

    def __init__(
        self,
        total: int,
        config: "DataclassInstance",
        folder: Path | None,
        tell: Tell | None,
    ) -> None:
        self.total, self.folder, self.tell = total, folder, tell
        self.identity = json.dumps(asdict(config))
        self.seconds: dict[str, float] = {}  # by piece, over all sessions
        self.fresh = 0.0  # seconds spent in this session

    def do(self, name: str, work: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Gives the tensors of a piece, from the folder if it was done before.

        Args:
            name: Names the piece; no two may have the same name.
            work: Does it. The mean of the last row of its tensor `loss_te` is shown, if it has one.

        Raises:
            ValueError: If the kept piece is of another config.
        """
        assert name not in self.seconds, f"two pieces are called {name}"
        path = None if self.folder is None else self.folder / f"{_slug(name)}.safetensors"
        if path is not None and path.is_file():
            tensors, header = read_tensors(path)
            if header.get("config") != self.identity:
                raise ValueError(f"{path} must be of the same config, got one of another")
            self.seconds[name] = float(header["seconds"])
        else:
            start = time.perf_counter()
            tensors = {key: tensor.detach().cpu() for key, tensor in work().items()}
            self.seconds[name] = time.perf_counter() - start
            self.fresh += self.seconds[name]
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                header = {"seconds": str(self.seconds[name]), "config": self.identity}
                write_tensors(path, tensors, header)
        if self.tell is not None:
            shown = {name: tensors["loss_te"][-1].mean().item()} if "loss_te" in tensors else {}
            self.tell("evaluation", len(self.seconds), self.total, self.fresh, shown)
        # A file has an order of its own: the caller must not see where the tensors came from.
        return {key: tensors[key] for key in sorted(tensors)}


def _slug(name: str) -> str:
    """Makes a file name of a piece's name; different names stay different."""
    plain = re.sub(r"[^a-z0-9.]+", "-", name.lower())
    return f"{plain}-{zlib.crc32(name.encode()):08x}"
