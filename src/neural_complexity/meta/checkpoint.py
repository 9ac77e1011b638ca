"""Checkpoints: one safetensors file, whole or absent."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from neural_complexity.files import write_bytes

__all__ = ["read_checkpoint", "write_checkpoint"]


def write_checkpoint(path: Path, tensors: dict[str, Tensor], counters: dict[str, Any]) -> None:
    """Writes tensors and JSON values to one file, atomically."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_bytes(path, save(whole, {"counters": json.dumps(counters)}))


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads what `write_checkpoint` wrote.

    Raises:
        ValueError: If the file is damaged or of another kind.
    """
    try:
        with safe_open(path, framework="pt") as file:
            counters = json.loads((file.metadata() or {})["counters"])
            return {name: file.get_tensor(name) for name in file.keys()}, counters  # noqa: SIM118
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} must be a checkpoint, got a damaged file ({error})") from None
