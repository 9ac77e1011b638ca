"""Checkpoints: one safetensors file, whole or absent."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from neural_complexity.files import read_tensors, write_tensors

__all__ = ["optimizer_tensors", "read_checkpoint", "restore_optimizer", "write_checkpoint"]


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


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Gives what an optimizer such as Adam remembers of each parameter, by name."""
    return {
        f"optimizer.{i}.{name}": tensor
        for i, moments in optimizer.state_dict()["state"].items()
        for name, tensor in moments.items()
    }


def restore_optimizer(optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    """Gives an optimizer its memory back.

    Args:
        optimizer: A new one, of the same parameters.
        tensors: From `optimizer_tensors`; other names among them are left alone.
    """
    state = optimizer.state_dict()
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, i, moment = name.split(".")
            state["state"].setdefault(int(i), {})[moment] = tensor
    optimizer.load_state_dict(state)
