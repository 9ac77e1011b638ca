"""Checkpoints: one safetensors file, whole or absent."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from neural_complexity.files import read_tensors, write_tensors

__all__ = ["read_checkpoint", "write_checkpoint"]


def write_checkpoint(path: Path, tensors: dict[str, Tensor], counters: dict[str, Any]) -> None:
    """Writes tensors and JSON values to one file, atomically."""
    write_tensors(path, tensors, {"counters": json.dumps(counters)})


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads what `write_checkpoint` wrote.

    Raises:
        ValueError: If the file is damaged or of another kind.
    """
    tensors, header = read_tensors(path)
    try:
        return tensors, json.loads(header["counters"])
    except (KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} must be a checkpoint, got another file ({error})") from None
