"""Checkpoints: one safetensors file, whole or absent."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from neural_complexity.files import read_tensors, write_tensors

__all__ = ["pack", "read_checkpoint", "unpack", "write_checkpoint"]


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


def pack(module: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Gives the state of a module and of its optimizer as tensors by name, for a checkpoint."""
    tensors = {f"module.{name}": t for name, t in module.state_dict().items()}
    for i, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{i}.{name}": t for name, t in moments.items()}
    return tensors


def unpack(tensors: dict[str, Tensor], module: nn.Module, optimizer: Optimizer) -> None:
    """Puts a module and its optimizer, both as they were built, where `pack` found others."""
    part = {n.split(".", 1)[1]: t for n, t in tensors.items() if n.startswith("module.")}
    module.load_state_dict(part)
    state = optimizer.state_dict()
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, i, moment = name.split(".")
            state["state"].setdefault(int(i), {})[moment] = tensor
    optimizer.load_state_dict(state)
